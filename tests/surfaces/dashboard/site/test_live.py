"""What open pages hear: which topics, of which tenant, how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from stentor.core import runlog_queries
from stentor.core.db import Tx
from stentor.core.ids import new_id, rewind
from stentor.core.runlog import EventDraft, EventType
from stentor.core.runlog_queries import NewEvent
from stentor.surfaces.dashboard.site import live_updates
from stentor.surfaces.dashboard.site.live_updates import LiveUpdates, topic_of
from stentor.web.sse import SseEvent
from tests.conftest import World
from tests.patience import soon
from tests.requirements import requirement


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "POLL_SECONDS", 0.02)


async def ended(frames: AsyncIterator[SseEvent]) -> None:
    """As a reader who leaves ends it."""
    assert isinstance(frames, AsyncGenerator)
    await frames.aclose()


@requirement("dashboard.live")
async def test_readers_hear_of_their_own_tenant_in_one_message_however_much_happens(world: World) -> None:
    told = LiveUpdates(world.kernel.infra.db)
    ours, theirs = told.stream_changes("default", new_id()), told.stream_changes("other", new_id())
    assert (await anext(ours)).data == (await anext(theirs)).data == {"topics": []}
    elsewhere = asyncio.ensure_future(anext(theirs))
    agent = await world.register("ann")
    heard: set[str] = set()
    while "tasks" not in heard:
        heard |= set((await asyncio.wait_for(anext(ours), 60)).data["topics"])
        if "agents" in heard:
            await world.do(agent)
    assert heard >= {"agents", "tasks"}
    assert not elsewhere.done()
    elsewhere.cancel()
    await asyncio.gather(elsewhere, return_exceptions=True)
    await ended(ours)
    await ended(theirs)
    assert not told._readers
    await told.close()


@requirement("dashboard.live")
async def test_what_happened_while_a_page_was_on_its_way_is_told_first(world: World) -> None:
    made = new_id()
    await world.register("ann")
    told = LiveUpdates(world.kernel.infra.db)
    ours, theirs, later = (
        told.stream_changes(name, since) for name, since in (("default", made), ("other", made), ("default", new_id()))
    )
    assert (await anext(ours)).data == {"topics": ["agents"]}
    assert (await anext(theirs)).data == (await anext(later)).data == {"topics": []}
    for frames in (ours, theirs, later):
        await ended(frames)
    await told.close()


async def record(world: World, event_type: EventType, event_id: str) -> None:
    draft = EventDraft(event_type, "test", "m", event_id=event_id)
    await world.kernel.infra.db.write(lambda tx: world.runlog.append(tx, "default", [draft]))


@requirement("dashboard.live")
async def test_an_event_that_is_committed_after_later_ones_is_told_too_and_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = 0

    def counting(tx: Tx, after: str) -> list[NewEvent]:
        nonlocal polls
        polls += 1
        return whole(tx, after)

    whole = runlog_queries.list_events_after
    monkeypatch.setattr(runlog_queries, "list_events_after", counting)
    early = new_id()
    told = LiveUpdates(world.kernel.infra.db)
    frames = told.stream_changes("default", rewind(early, 1_000))
    await anext(frames)
    await record(world, "trust_changed", new_id())
    assert (await asyncio.wait_for(anext(frames), 60)).data == {"topics": ["agents"]}
    await record(world, "memory_written", early)
    assert (await asyncio.wait_for(anext(frames), 60)).data == {"topics": ["memory"]}
    following, told_at = asyncio.ensure_future(anext(frames)), polls
    await soon(lambda: polls >= told_at + 3)
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await told.close()


@requirement("dashboard.live")
async def test_more_events_than_are_read_at_once_are_all_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlog_queries, "MAX_NEW_EVENTS", 2)
    told = LiveUpdates(world.kernel.infra.db)
    frames = told.stream_changes("default", new_id())
    await anext(frames)
    for event_type in ("trust_changed", "trust_changed", "trust_changed", "trust_changed", "memory_written"):
        await record(world, event_type, new_id())
    heard: set[str] = set()
    while "memory" not in heard:
        heard |= set((await asyncio.wait_for(anext(frames), 60)).data["topics"])
    await ended(frames)
    await told.close()


@requirement("dashboard.live")
async def test_an_outage_of_the_store_ends_no_stream(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told = LiveUpdates(world.kernel.infra.db)
    frames = told.stream_changes("default", new_id())
    await anext(frames)
    await asyncio.sleep(0.1)
    whole, failed, loop = runlog_queries.list_events_after, asyncio.Event(), asyncio.get_running_loop()

    def broken(tx: Tx, after: str) -> list[NewEvent]:
        loop.call_soon_threadsafe(failed.set)
        raise OSError("the disk is away")

    monkeypatch.setattr(runlog_queries, "list_events_after", broken)
    await failed.wait()
    monkeypatch.setattr(runlog_queries, "list_events_after", whole)
    await world.register("ann")
    assert (await asyncio.wait_for(anext(frames), 60)).data == {"topics": ["agents"]}
    await ended(frames)
    await told.close()


@requirement("dashboard.live")
@pytest.mark.parametrize(
    ("event_type", "about"),
    [("task_completed", "tasks"), ("routing_decision", "tasks"), ("violation_recorded", "agents"), ("x", "tasks")],
)
def test_an_event_is_about_one_topic(event_type: str, about: str) -> None:
    assert topic_of(NewEvent("default", event_type, "e")) == about
