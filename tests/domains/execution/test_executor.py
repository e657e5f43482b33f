"""Attempts that end without the agent's doing: without a driver, or by an error of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stentor.core.db import RowsSql, Tx
from stentor.core.db.sql import Row
from stentor.domains.execution.model import AgentFailed, AttemptOutcome
from stentor.domains.execution.runtimes import EmitToken, RuntimeDriver
from stentor.domains.learning import store as learning_store
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.model import TaskClaim
from stentor.domains.trust import store as trust_store
from tests.conftest import World
from tests.domains.steps.test_starts import at
from tests.requirements import requirement


class Raising:
    """A driver whose own call timed out; without `at_once` it waits until it is stopped."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        if not self._at_once:
            await asyncio.Event().wait()
        raise TimeoutError


async def run_with(world: World, driver: RuntimeDriver | None, **fields: Any) -> dict[str, Any]:
    """Run a task of a builtin agent by this driver, or without any."""
    drivers: dict[str, RuntimeDriver] = world.kernel.tasks.lease_renewer._executor._drivers  # type: ignore[assignment]
    del drivers["builtin"]
    if driver is not None:
        drivers["builtin"] = driver
    await world.register(runtime={"kind": "builtin", "name": "summarizer"})
    return await world.ended(await world.submit(**{"timeout_seconds": 1, **fields}))


async def weights(world: World, agent: str) -> dict[str, float]:
    answer = await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent})
    return dict(answer.json()["weights"])


async def test_a_runtime_that_the_process_does_not_know_is_logged_and_not_held_against_the_agent(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task = await run_with(world, None)
    assert (task["error"]["code"], task["outcome_class"]) == ("AGENT_BROKEN", "provider_failure")
    agent = task["assigned_agent"]
    assert f"executor: no driver runtime=builtin agent_id={agent} task_id={task['task_id']}" in caplog.text
    assert await weights(world, agent) == {}


async def test_a_call_of_a_driver_that_times_out_is_not_the_timeout_of_the_task(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    task = await run_with(world, Raising(at_once=True))
    assert (task["status"], task["error"]["code"], task["outcome_class"]) == ("failed", "AGENT_BROKEN", "agent_failure")
    assert "executor: agent failed unexpectedly" in caplog.text


async def test_what_the_end_of_a_task_changes_is_read_at_the_beginning_of_the_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For PostgreSQL a statement of its own is one more message and its answer."""
    statements = list[RowsSql]()
    rows_for = Tx.rows_for

    def record(tx: Tx, sql: RowsSql, given: Sequence[Row], **params: Any) -> list[Row]:
        statements.append(sql)
        return rows_for(tx, sql, given, **params)

    monkeypatch.setattr(Tx, "rows_for", record)
    agent = await world.register(runtime={"kind": "builtin", "name": "summarizer"})
    await asyncio.gather(*[world.ended(await world.submit()) for _ in range(3)])
    await world.ended(await world.submit())
    (learned,) = (await weights(world, agent)).values()
    assert learned > 0.5
    assert not {learning_store._FIND, trust_store._FIND}.intersection(statements)


async def test_a_task_that_runs_longer_than_its_timeout_is_aborted(world: World) -> None:
    task = await run_with(world, Raising(at_once=False))
    assert (task["status"], task["error"]["code"], task["outcome_class"]) == ("aborted", "TIMEOUT", "timeout")


class Late:
    """A driver that fails after the deadline of the task."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        self._world.clock.advance(seconds=11)
        raise AgentFailed("SUBTASK_REFUSED", "The subtask was refused.")


@requirement("tasks.deadline")
async def test_a_failure_after_the_deadline_is_that_of_no_agent(world: World) -> None:
    task = await run_with(world, Late(world), deadline=at(world, 10), timeout_seconds=3600)
    assert (task["status"], task["error"]["code"]) == ("aborted", "DEADLINE_EXCEEDED")
    assert await weights(world, task["assigned_agent"]) == {}
