"""A database in which very many tasks wait, and a look into it from outside while a service serves it.

A few hundred tasks come to wait through the API: submitted, claimed, a wait begun, suspended. Their rows are then
copied by SQL under other ids, with the counts, but without their run log.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.service import Client, Service, serving
from bench.tasks.processes import postgres

SLEEP_SECONDS = 90 * 86_400
CLAIMED = 100
_COPIES = "with recursive copies (n) as (select 1 union all select n + 1 from copies where n < {copies})"
_COPY = _COPIES + " insert into {table} ({columns}) select {values} from {table} join copies on 1 = 1 where {which}"
_WHICH = {"tasks": "status = 'waiting'", "task_steps": "state = 'started'"}


@dataclass
class Store:
    """A database of the service. Write only while no service runs: SQLite allows one writer."""

    name: str
    folder: Path
    url: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Yield a connection that commits each statement."""
        if self.url:
            import psycopg

            with psycopg.connect(self.url, autocommit=True) as connection:
                yield connection
        else:
            with closing(sqlite3.connect(self.folder / "data" / "stentor.db", isolation_level=None)) as connection:
                yield connection

    @contextmanager
    def serve(self) -> Iterator[Service]:
        with serving(self.folder / "data", self.settings) as service:
            yield service

    def begin_waits(self, tasks: int) -> None:
        """Let so many tasks wait for a time in 90 days, through the API."""
        with self.serve() as service, service.connect() as client:
            _begin_waits(client, tasks)

    def copy_waits(self, copies: int) -> None:
        """Add so many copies of each task that waits."""
        with self.open() as connection:
            for table, which in _WHICH.items():
                names = [column[0] for column in connection.execute(f"select * from {table} limit 0").description]
                values = ["task_id || '-' || n" if name == "task_id" else name for name in names]
                copy = {"table": table, "columns": ", ".join(names), "values": ", ".join(values), "which": which}
                connection.execute(_COPY.format(copies=copies, **copy))
            connection.execute(f"update task_counts set n = n * {copies + 1} where status = 'waiting'")
            if self.url:  # autovacuum would do it within a minute
                connection.execute("vacuum analyze")

    def set_due(self, first: float, every: float, tasks: int) -> None:
        """Let so many tasks come due one after the other. Times in seconds."""
        with self.open() as connection:
            ranked = (
                "select key, task_id, row_number() over (order by task_id) as n from task_steps where state = 'started'"
            )
            connection.execute(
                f"""update task_steps set wake_at = {int(first * 1e6)} + {int(every * 1e6)} * ranked.n
                from ({ranked}) as ranked where task_steps.task_id = ranked.task_id and task_steps.key = ranked.key
                and task_steps.state = 'started' and ranked.n <= {tasks}"""
            )


@contextmanager
def stores(folder: Path) -> Iterator[list[Store]]:
    """Yield a store of each database that is there."""
    settings = {"SERVICE_MEMORY": "0"}
    made = [Store("SQLite", folder / "sqlite", settings=settings)]
    (folder / "sqlite").mkdir()
    try:
        with postgres(folder / "postgres") as server:
            url = server.get_uri()
            (folder / "shared").mkdir()
            yield [*made, Store("PostgreSQL", folder / "shared", url, {**settings, "SERVICE_DATABASE_URL": url})]
    except ImportError:
        yield made


def count_queued(connection: Any) -> int:
    """Return how many tasks of workers are queued, from the counts that are committed with each change."""
    row = connection.execute(
        "select coalesce(sum(n), 0) from task_counts where hour = -1 and status = 'queued'"
    ).fetchone()
    return int(row[0])


def watch(store: Store, tasks: int, seconds: float) -> list[tuple[float, int]]:
    """Return when how many tasks were queued again, until all are: times of the clock, every 10 ms at best."""
    seen: list[tuple[float, int]] = []
    ends = time.time() + seconds
    with store.open() as connection:
        while (not seen or seen[-1][1] < tasks) and time.time() < ends:
            count = count_queued(connection)
            seen.append((time.time(), count))
            time.sleep(0.01)
    return seen


def _begin_waits(client: Client, tasks: int) -> None:
    worker = {"name": "sleeper", "capabilities": ["sleep"], "runtime": {"kind": "worker"}}
    agent = _post(client, "registry/agents", **worker)["agent_id"]
    for _ in range(tasks):
        _post(client, "tasks", type="sleep", input="x" * 100, required_capabilities=["sleep"])
    suspended = 0
    while suspended < tasks:
        for claim in _post(client, f"agents/{agent}/claims", max=CLAIMED, lease_seconds=60)["tasks"]:
            path, epoch = f"tasks/{claim['task_id']}", claim["epoch"]
            _post(client, f"{path}/waits", epoch=epoch, key="nap", name="nap", kind="sleep", seconds=SLEEP_SECONDS)
            _post(client, f"{path}/suspend", epoch=epoch, keys=["nap"])
            suspended += 1


def _post(client: Client, path: str, **body: Any) -> Any:
    return json.loads(client.send("POST", f"/api/v1/{path}", json.dumps(body).encode()))
