"""Long polls of workers in one process: which of them a hint wakes, and what becomes of the hint of one that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stentor.core.errors import StoreUnavailable
from stentor.domains.execution.dispatch.postgres_dispatcher import ClaimPoll, ClaimPolls
from stentor.domains.tasks.model import TaskClaim
from tests.requirements import requirement


class Queue:
    """Finds nothing in any queue; notes who has looked."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        self.handed_back: list[str] = []
        self.during: Callable[[], object] = lambda: None
        self.polls = ClaimPolls(self.look, self.handed_back.append)

    async def look(self, agent_id: str, limit: int, lease: int) -> list[TaskClaim]:
        self.looks.append(agent_id)
        self.during()
        return []


async def look(poll: ClaimPoll) -> None:
    assert await poll.claim(1, 1) == []


@requirement("scale.one-process-is-told")
async def test_a_poll_looks_when_it_begins_and_then_at_each_hint() -> None:
    queue = Queue()
    with queue.polls.open("ann") as poll:
        for _ in range(3):
            await look(poll)
        assert queue.looks == ["ann"]
        assert queue.polls.wake_one("ann")
        assert await poll.wait(200)
        for _ in range(2):
            await look(poll)
        assert queue.looks == ["ann", "ann"]
    assert queue.handed_back == []


@requirement("scale.one-process-is-told")
async def test_a_hint_wakes_one_poll_of_its_agent_and_none_is_told_twice() -> None:
    queue = Queue()
    with queue.polls.open("bob"), queue.polls.open("ann") as first, queue.polls.open("ann") as second:
        assert [queue.polls.wake_one("ann") for _ in range(3)] == [True, True, False]
        assert not queue.polls.wake_one("eve")
        for poll in (first, second):
            await look(poll)
        assert queue.looks == ["ann", "ann"]


@requirement("scale.one-process-is-told")
async def test_a_hint_that_comes_during_a_look_causes_another() -> None:
    queue = Queue()
    with queue.polls.open("ann") as poll:
        queue.during = lambda: queue.polls.wake_one("ann")
        await look(poll)
        queue.during = lambda: None
        assert await poll.wait(200)
        await look(poll)
        assert len(queue.looks) == 2


@requirement("scale.one-process-is-told")
async def test_the_hint_of_a_poll_that_ends_is_handed_back() -> None:
    queue = Queue()
    with queue.polls.open("ann") as poll:
        await look(poll)
        queue.polls.wake_one("ann")
    assert queue.handed_back == ["ann"]
    assert not queue.polls.wake_one("ann")


@requirement("scale.one-process-is-told")
@pytest.mark.parametrize("error", [StoreUnavailable("away"), asyncio.CancelledError()])
async def test_the_hint_of_a_look_that_fails_is_handed_back(error: BaseException) -> None:
    queue = Queue()

    def fail() -> None:
        raise error

    with queue.polls.open("ann") as poll:
        await look(poll)
        queue.polls.wake_one("ann")
        queue.during = fail
        with pytest.raises(type(error)):
            await look(poll)
    assert queue.handed_back == ["ann"]
