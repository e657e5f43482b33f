"""What a task writes: nothing for a feature that it does not use."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.db import AppendOnlyTable, RowUpdate, Sql, Tx
from stentor.core.runlog import EVENT_COLUMNS
from tests.conftest import World
from tests.requirements import requirement

TASK_ID = EVENT_COLUMNS.index("task_id")


class Writes:
    """What is written, by transaction, and the transactions of events of tasks."""

    def __init__(self) -> None:
        self.written: list[tuple[Tx, str]] = []
        self.of_tasks: list[tuple[Tx, Any]] = []

    def of(self, task_id: str) -> tuple[int, list[str], int]:
        """Return how many events a task has, what else its transactions write, and how many transactions there are.

        Background jobs write too, but in transactions without an event of the task.
        """
        own = [tx for tx, of_task in self.of_tasks if of_task == task_id]
        written = [what for tx, what in self.written if tx in own]
        # Each event waits for its number in the Merkle tree.
        assert sum(what.startswith("events") for what in written) == 2 * len(own)
        return len(own), [what for what in written if not what.startswith("events")], len(set(map(id, own)))


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    writes = Writes()
    written, of_tasks = writes.written, writes.of_tasks

    def record_statements(name: str) -> None:
        method = getattr(Tx, name)

        def recorded(tx: Tx, sql: Sql, *args: Any, **params: Any) -> Any:
            if sql.writes:
                written.append((tx, " ".join(sql.text.split()[:3])))
            return method(tx, sql, *args, **params)

        monkeypatch.setattr(Tx, name, recorded)

    append, update_row = Tx.append, Tx.update_row

    def record_update(tx: Tx, update: RowUpdate, **params: Any) -> bool:
        before = len(written)
        is_updated = update_row(tx, update, **params)
        if len(written) == before:  # `run` did not do it, so the commit will
            written.append((tx, " ".join(update.one.text.split()[:3])))
        return is_updated

    def record_rows(tx: Tx, table: AppendOnlyTable, *rows: tuple[Any, ...]) -> None:
        written.extend((tx, table.table) for _ in rows)
        if table.table == "events":
            of_tasks.extend((tx, row[TASK_ID]) for row in rows)
        append(tx, table, *rows)

    for name in ("run", "rows", "many", "put"):
        record_statements(name)
    monkeypatch.setattr(Tx, "append", record_rows)
    monkeypatch.setattr(Tx, "update_row", record_update)
    return writes


LEARNED = ["insert into hebbian_weights", "hebbian_history", "insert into trust_scores", "trust_changes"]
"""What an outcome that counts writes of what was learned."""
EVENTS = 6
"""Submitted, routed, queued, started, ended, learned."""


async def test_a_task_writes_nothing_for_what_it_does_not_use(world: World, writes: Writes) -> None:
    task_id = await world.do(await world.register())
    statements = ["tasks", "update tasks set", *LEARNED, "update tasks set"]
    assert writes.of(task_id) == (EVENTS, statements, 3)


@requirement("execution.start-at-once")
async def test_a_task_that_starts_at_once_is_stored_as_one_that_executes(world: World, writes: Writes) -> None:
    await world.register(capabilities=["sum"], runtime={"kind": "builtin", "name": "summarizer"})
    task_id = await world.submit(required_capabilities=["sum"], input="A text.")
    assert (await world.ended(task_id))["status"] == "completed"
    assert writes.of(task_id) == (EVENTS, ["tasks", *LEARNED, "update tasks set"], 2)
