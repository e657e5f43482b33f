"""On PostgreSQL the turns that new tasks get with their insert are those that the trigger would give them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stentor.core import migrations
from stentor.core.db import NO_LOCKS, AppendOnlyTable, Database, Sql, Tx
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sql import as_literal
from stentor.domains.tasks import store
from tests.requirements import requirement

TABLE = store._TASKS
OTHER = AppendOnlyTable("events_waiting", ("event_id", "leaf"))
Row = dict[str, Any]
DEFAULTS: Row = dict.fromkeys(TABLE.columns) | {
    "tenant": "t",
    "type": "echo",
    "created_at": 1,
    "timeout_seconds": 60,
    "epoch": 0,
    "attempt_epoch": 0,
    "retry_epoch": 0,
    "learning_pending": 0,
    "provenance_id": "p",
    "head_id": "h",
    "submitted_status": "queued",
    "estimated_start": 0,
    "estimated_completion": 0,
    "body_hash": "b",
    "required_capabilities": "[]",
    "metadata": "{}",
    "input": "1",
}
COLUMNS = [name for name in TABLE.columns if DEFAULTS[name] is not None] + [
    "task_id",
    "status",
    "priority",
    "assigned_agent",
    "submitted_by",
    "queued_at",
]
# Of a process of the version before, one task after the other.
BY_TRIGGER = as_literal(
    f"insert into tasks ({', '.join(COLUMNS)}) values ({', '.join(f'%({name})s' for name in COLUMNS)})"
)
READ = "select task_id, turn from tasks where status = 'queued' and task_id = any(%s)"
END = """update tasks set status = 'cancelled', completion_time = 1 where task_id in (
    select task_id from tasks where status = 'queued' and assigned_agent = %s
    order by priority, turn, queued_at limit %s)"""
MOVE = """update tasks set assigned_agent = %s where task_id in (
    select task_id from tasks where status = 'queued' order by random() limit 2)"""
COUNT_UNSET = Sql("select count(*) from tasks where turn < 0")


@pytest.fixture
def db(postgres_url: str) -> Iterator[Database]:
    driver = PostgresDriver(postgres_url)
    migrations.upgrade(driver)
    database = Database(driver)
    yield database
    database.close()


def append(rows: list[Row], place: int) -> Any:
    def work(tx: Tx) -> None:
        # The tasks before, between and after the rows of other tables.
        if place == 1:
            tx.append(OTHER, (f"before {rows[0]['task_id']}", None))
        for row in rows:
            tx.append(TABLE, tuple((DEFAULTS | row)[name] for name in TABLE.columns))
        if place == 2:
            tx.append(OTHER, (f"after {rows[0]['task_id']}", None))

    return work


@requirement("tasks.fairness")
@pytest.mark.parametrize("submitters", [1, 3, 100])
async def test_an_insert_gives_the_turns_of_the_trigger(db: Database, postgres_url: str, submitters: int) -> None:
    rng, number, now = random.Random(submitters), 0, 1_000_000
    with psycopg.connect(postgres_url, autocommit=True) as other:
        for step in range(60):
            # A clock that was set back once makes tasks that are older than those that wait.
            now += rng.randrange(1, 1000) if step != 30 else -5000
            batch: list[Row] = []
            for _ in range(rng.choice((1, 1, 2, 3, 6, 7, 20, 70))):
                number += 1
                batch.append(
                    {
                        "task_id": f"task {number:06}",
                        "status": "queued" if rng.random() < 0.9 else "waiting",
                        "priority": rng.choice((1, 2, 2, 2)),
                        "assigned_agent": rng.choice(("a", "a", "a", "b")),
                        "submitted_by": f"key {rng.randrange(submitters)}",
                        "queued_at": now,
                    }
                )
            ids = [row["task_id"] for row in batch]
            with other.transaction(force_rollback=True):
                for row in batch:
                    other.execute(BY_TRIGGER, DEFAULTS | row)
                expected = dict(other.execute(READ, (ids,)).fetchall())
            await db.write(append(batch, step % 3), NO_LOCKS)
            assert dict(other.execute(READ, (ids,)).fetchall()) == expected
            if rng.random() < 0.3:
                other.execute(MOVE, (rng.choice("ab"),))
            if rng.random() < 0.8:
                other.execute(END, (rng.choice("ab"), rng.randrange(40)))
    [(unset,)] = await db.read(lambda tx: tx.rows(COUNT_UNSET))
    assert unset == 0
