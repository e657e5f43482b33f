"""What a task writes: nothing for a feature that it does not use."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.db import AppendOnlyTable, Sql, Tx
from stentor.core.runlog import EVENT_COLUMNS
from tests.conftest import World

TASK_ID = EVENT_COLUMNS.index("task_id")


async def test_a_task_writes_nothing_for_what_it_does_not_use(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_id = await world.register()
    written: list[tuple[Tx, str]] = []
    of_tasks: list[tuple[Tx, Any]] = []

    def record_statements(name: str) -> None:
        method = getattr(Tx, name)

        def recorded(tx: Tx, sql: Sql, *args: Any, **params: Any) -> Any:
            if sql.writes:
                written.append((tx, " ".join(sql.text.split()[:3])))
            return method(tx, sql, *args, **params)

        monkeypatch.setattr(Tx, name, recorded)

    append = Tx.append

    def record_row(tx: Tx, table: AppendOnlyTable, row: tuple[Any, ...]) -> None:
        written.append((tx, table.table))
        if table.table == "events":
            of_tasks.append((tx, row[TASK_ID]))
        append(tx, table, row)

    for name in ("run", "rows", "many", "put"):
        record_statements(name)
    monkeypatch.setattr(Tx, "append", record_row)
    task_id = await world.do(agent_id)
    # Background jobs write too, but in transactions without an event of the task.
    own = [tx for tx, of_task in of_tasks if of_task == task_id]
    assert [what for tx, what in written if tx in own and not what.startswith("events")] == [
        "insert into tasks",
        "update tasks set",
        "insert into hebbian_weights",
        "hebbian_history",
        "insert into trust_scores",
        "trust_changes",
        "update tasks set",
    ]
    # Submitted, routed, queued, started, ended, learned; and each waits for its number in the Merkle tree.
    assert len(own) == 6
    assert sum(what.startswith("events") for tx, what in written if tx in own) == 12
