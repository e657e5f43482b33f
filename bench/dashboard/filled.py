"""A database with very many tasks, made by bulk inserts that keep to the schema and to what the service writes.

Ninety days of tasks of two tenants: agents of very different diligence, all states, failures and denials
among them, priorities, inputs and results of realistic length, the hourly counts that lists read, and for
every tenth task the whole run log. Everything is made from one seed.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from bench.dashboard.rows import AGENTS, TENANTS, Rows
from bench.sizes import say
from stentor.core import jsontext, migrations
from stentor.core.clock import HOUR, SECOND, SystemClock
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.runlog import RunLogEvent
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.model import Task

BATCH = 50_000
SAMPLE = 10
"""Every so many tasks have their events in the run log."""
LAYOUT = 2
"""Part of the folder's name: a change here makes a kept database anew."""
STRUCTURED = ("required_capabilities", "metadata", "error", "result", "capabilities", "runtime", "sandbox_whitelist")

Value = str | int | float | None


def database(folder: Path, rows: int, agents: Mapping[str, int] = AGENTS) -> Path:
    """The data folder of a filled database in `folder`; made unless one is there."""
    many = "" if agents is AGENTS else f"-{sum(agents.values())}"
    data = folder / f"tasks-{rows}{many}-{migrations.HEAD}-{LAYOUT}"
    if not data.exists():
        half = folder / f"{data.name}.part"
        shutil.rmtree(half, ignore_errors=True)
        _make(half, rows, agents)
        half.rename(data)
    _lease_again(data / "stentor.db")
    return data


def _make(data: Path, rows: int, agents: Mapping[str, int]) -> None:
    data.mkdir(parents=True)
    migrations.upgrade(SqliteDriver(data / "stentor.db"))
    with closing(sqlite3.connect(data / "stentor.db", isolation_level=None)) as db:
        # Not durable while it is made: a half made one has another name and is not used.
        for pragma in ("journal_mode=off", "synchronous=off", "locking_mode=exclusive", "cache_size=-262144"):
            db.execute(f"pragma {pragma}")
        indexes = _drop_indexes(db)
        _fill(db, Rows(rows, SystemClock().now(), agents))
        say("lists: indexes and counts ...")
        for create in indexes:
            db.execute(create)
        _count(db)
        db.execute("pragma journal_mode=wal")


def _drop_indexes(db: sqlite3.Connection) -> list[str]:
    """Drops the indexes of the large tables; answers the schema's own statements to make them again."""
    query = "select name, sql from sqlite_master where type = 'index' and tbl_name in ('tasks', 'events')"
    found = db.execute(f"{query} and sql is not null").fetchall()
    for name, _ in found:
        db.execute(f"drop index {name}")
    return [create for _, create in found]


def _fill(db: sqlite3.Connection, rows: Rows) -> None:
    db.execute("begin")
    _insert(db, "agents", Agent.__struct_fields__, map(_values, rows.agents()))
    columns = (*Task.__struct_fields__, "input")
    for done in range(0, rows.count, BATCH):
        pairs = [rows.task(n) for n in range(done, min(rows.count, done + BATCH))]
        _insert(db, "tasks", columns, ((*_values(task), text) for task, text in pairs))
        sampled = (event for n, (task, _) in enumerate(pairs, done) if n % SAMPLE == 0 for event in rows.events(task))
        _insert(db, "events", RunLogEvent.__struct_fields__, map(_values, sampled))
        say(f"lists: {done + len(pairs):,} of {rows.count:,} tasks")
    db.execute("commit")


def _values(record: Agent | Task | RunLogEvent) -> tuple[Value, ...]:
    return tuple(_stored(name, getattr(record, name)) for name in record.__struct_fields__)


def _stored(name: str, value: object) -> Value:
    """As the stores write it: structures as JSON, flags as 0 and 1."""
    if isinstance(value, bool):
        return int(value)
    if value is None or not (name in STRUCTURED or isinstance(value, dict)):
        return value  # pyrefly: ignore[bad-return] - the columns of the rows have no other types
    return jsontext.dump(value)


def _insert(
    db: sqlite3.Connection,
    table: str,
    columns: Iterable[str],
    values: Iterator[tuple[Value, ...]] | map[tuple[Value, ...]],
) -> None:
    names = tuple(columns)
    db.executemany(f"insert into {table} ({', '.join(names)}) values ({', '.join('?' * len(names))})", values)


def _count(db: sqlite3.Connection) -> None:
    """The counts as the service keeps them: per hour of creation, and over all, by state and agent."""
    for hour in ("-1", f"created_at / {HOUR}"):
        db.execute(
            f"""insert into task_counts (tenant, hour, status, agent_id, n)
            select tenant, {hour}, status, coalesce(assigned_agent, ''), count(*) from tasks
            group by 1, 2, 3, 4 order by 1, 2, 3, 4"""
        )


def _lease_again(path: Path) -> None:
    """Executing tasks of a kept database get new leases, else the reconciler would end them at the start."""
    now = SystemClock().now()
    with closing(sqlite3.connect(path)) as db, db:
        values = (now + 3_000 * SECOND, now + 3_600 * SECOND)
        db.execute("update tasks set lease_until = ?, deadline_at = ? where status = 'executing'", values)


def sampled_ids(path: Path, count: int) -> list[str]:
    """Ids of tasks of the first tenant with a run log, spread over all of time."""
    with closing(sqlite3.connect(path)) as db:
        query = f"select task_id from tasks where rowid % {SAMPLE} = 1 and tenant = ? order by created_at"
        ids = [row[0] for row in db.execute(query, (TENANTS[0],))]
    return ids[:: max(1, len(ids) // count)][:count]
