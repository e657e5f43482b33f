"""What runs in a process, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stentor.domains.execution.dispatch.dispatcher import RunningTasks
from stentor.domains.execution.dispatch.postgres_dispatcher import PostgresDispatcher
from stentor.domains.tasks.model import TaskClaim
from tests.conftest import World
from tests.requirements import requirement

KEY = ("default", "a-task")


@requirement("execution.lost-lease")
@pytest.mark.parametrize(("epoch", "is_stopped"), [(1, False), (2, True), (3, True), (None, True)])
async def test_an_attempt_is_stopped_by_its_epoch_and_not_by_what_was_said_of_an_earlier_one(
    epoch: int | None, is_stopped: bool
) -> None:
    running = RunningTasks(lambda _: None)
    over = asyncio.Event()

    async def attempt(_done: Callable[[], None]) -> None:
        await over.wait()

    running.start(KEY, "ann", 2, attempt)
    task = running._tasks[KEY]
    running.stop(KEY, epoch)
    over.set()
    await asyncio.wait([task])
    assert task.cancelled() == is_stopped
    assert not running.has(KEY)


async def test_an_agent_has_room_again_when_it_has_done_its_work_and_only_its_outcome_is_not_stored_yet() -> None:
    freed: list[str] = []
    running = RunningTasks(freed.append)
    over = asyncio.Event()

    async def attempt(done: Callable[[], None]) -> None:
        done()
        await over.wait()

    running.start(KEY, "ann", 1, attempt)
    task = running._tasks[KEY]
    assert running.taken_by("ann") == 1
    await asyncio.sleep(0)
    assert (running.taken_by("ann"), running.count_taken()["ann"]) == (0, 0)
    assert freed == ["ann"]
    assert running.count_by_agent["ann"] == 1, "to routing it is busy until it is known how the work ended"
    assert running.has(KEY), "it can still be stopped, and is waited for at the end"
    over.set()
    await asyncio.wait([task])
    assert not running.has(KEY)
    assert not running.count_by_agent
    assert freed == ["ann"], "it is not given back twice"


@pytest.mark.only("postgresql", reason="a process alone leaves its tasks to its next start")
@requirement("scale.drain")
async def test_what_is_claimed_while_a_process_stops_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = world.kernel.tasks.dispatcher
    assert isinstance(dispatcher, PostgresDispatcher)
    claim_next = dispatcher._claim_next
    claimed, let_go = asyncio.Event(), asyncio.Event()

    async def claim_slowly() -> list[TaskClaim]:
        claims = await claim_next()
        if claims:
            claimed.set()
            await let_go.wait()
        return claims

    async def stay(claim: TaskClaim, _done: Callable[[], None]) -> None:
        dispatcher._executor.held_claims[claim.tenant, claim.task_id] = claim
        await asyncio.Event().wait()

    monkeypatch.setattr(dispatcher, "_claim_next", claim_slowly)
    monkeypatch.setattr(dispatcher, "reserve", lambda *_: None)
    monkeypatch.setattr(dispatcher._executor, "run_claim", stay)
    await world.register(capabilities=["sum"], runtime={"kind": "builtin", "name": "summarizer"})
    task_id = await world.submit(required_capabilities=["sum"])
    await claimed.wait()
    closing = asyncio.ensure_future(dispatcher.close(0, asyncio.Event()))
    await asyncio.sleep(0)
    let_go.set()
    assert [claim.task_id for claim in await closing] == [task_id]
