"""Two hubs that hear each other: what a watcher gets of a task that runs elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from stentor.core.fanout import Address, Fanout, fanout, live
from stentor.core.fanout.live import INTEREST_SECONDS, Hub, RunLogChanged, StreamedToken, TaskWatcher
from stentor.core.runlog import EventDraft
from tests.requirements import requirement

KEY = ("default", "task")


class Wire:
    """Carries payloads at once, in this process; counts those that each receives."""

    limit = 7_900

    def __init__(self) -> None:
        self.receivers: dict[str, Callable[[bytes | str], None]] = {}
        self.received: Counter[str] = Counter()
        self.cut = False

    async def listen(self, own_id: str, receive: Callable[[bytes | str], None], ready: Callable[[], None]) -> None:
        self.receivers[own_id] = receive
        ready()
        await asyncio.Event().wait()

    async def publish(self, payloads: list[tuple[Address, bytes]]) -> None:
        for to, payload in payloads if not self.cut else ():
            for process in self.receivers if to is None else (to,):
                self.received[process] += 1
                self.receivers[process](payload)

    async def close(self) -> None:
        return None


class Pair:
    def __init__(self) -> None:
        self.wire = Wire()
        self.fanouts = [Fanout(self.wire) for _ in range(3)]
        self.runs, self.watches, self.third = (Hub(one) for one in self.fanouts)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    for one in made.fanouts:
        await one.start()
    await asyncio.sleep(0.01)
    yield made
    for one in made.fanouts:
        await one.stop()


async def tokens(watcher: TaskWatcher, number: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(60):
        while len(found) < number:
            message = await watcher.get()
            if isinstance(message, StreamedToken):
                found.append(message.text)
    return found


async def test_a_watcher_that_comes_late_gets_what_was_said_and_then_what_is_said(pair: Pair) -> None:
    for text in ("a", "b"):
        pair.runs.append_token(*KEY, "attempt", text)
    with pair.watches.watch(*KEY) as watcher:
        assert await tokens(watcher, 2) == ["a", "b"]
        pair.runs.append_token(*KEY, "attempt", "c")
        assert await tokens(watcher, 1) == ["c"]
        with pair.third.watch(*KEY) as other:
            assert await tokens(other, 3) == ["a", "b", "c"]
            pair.runs.append_token(*KEY, "attempt", "d")
            assert await tokens(other, 1) == ["d"]
        assert await tokens(watcher, 1) == ["d"]  # and what the third was sent once more is not repeated
    assert pair.watches.tokens(*KEY) == []


@requirement("scale.streams-across-instances")
async def test_the_tokens_of_a_worker_that_speaks_to_several_processes_all_arrive(pair: Pair) -> None:
    with pair.watches.watch(*KEY) as watcher, pair.third.watch(*KEY) as own:
        await asyncio.sleep(0.05)
        for number, (hub, text) in enumerate(
            [(pair.runs, "a"), (pair.third, "b"), (pair.runs, "c"), (pair.third, "d")]
        ):
            hub.append_token(*KEY, "attempt", text)
            for one in (watcher, own):
                assert await tokens(one, 1) == [text], number
    assert [token.n for token in pair.third.tokens(*KEY)] == [1, 2, 3, 4]
    with pair.watches.watch(*KEY) as late:
        assert sorted(await tokens(late, 4)) == ["a", "b", "c", "d"]


@requirement("scale.streams-across-instances")
async def test_tokens_have_been_sent_before_the_worker_can_speak_to_another_process(pair: Pair) -> None:
    pair.runs.append_token(*KEY, "attempt", "a")
    with pair.watches.watch(*KEY) as watcher:
        assert await tokens(watcher, 1) == ["a"]
        for text in ("b", "c"):
            pair.runs.append_token(*KEY, "attempt", text)
            await pair.runs.wait_tokens_sent(*KEY)
            # They are there already: the wire delivers at once what is sent.
            assert not watcher.is_empty
            assert await tokens(watcher, 1) == [text]


async def test_a_wire_that_is_stuck_stops_nobody(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "MAX_WAIT_SECONDS", 0.01)
    pair.runs.append_token(*KEY, "attempt", "a")
    with pair.watches.watch(*KEY) as watcher:
        assert await tokens(watcher, 1) == ["a"]
        monkeypatch.setattr(pair.wire, "publish", lambda payloads: asyncio.Event().wait())
        pair.runs.append_token(*KEY, "attempt", "b")
        async with asyncio.timeout(60):
            await pair.runs.wait_tokens_sent(*KEY)
        assert watcher.is_empty


async def test_more_than_one_message_can_hold_arrives_in_order(pair: Pair) -> None:
    said = [f"{n} " * 50 for n in range(200)]
    for text in said:
        pair.runs.append_token(*KEY, "attempt", text)
    with pair.watches.watch(*KEY) as watcher:
        assert await tokens(watcher, 200) == said


@requirement("scale.streams-across-instances")
async def test_a_text_too_long_for_one_message_arrives_with_what_follows_it(pair: Pair) -> None:
    said = "漢" * 5_000
    with pair.watches.watch(*KEY) as watcher:
        await asyncio.sleep(0.05)
        pair.runs.append_token(*KEY, "attempt", said)
        pair.runs.append_token(*KEY, "attempt", "!")
        found = ""
        while not found.endswith("!"):
            found += (await tokens(watcher, 1))[0]
    assert found == said + "!"


async def test_a_change_elsewhere_makes_a_watcher_look_and_nobody_else_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 600)
    with pair.watches.watch(*KEY) as watcher, pair.third.watch("default", "other") as other:
        await asyncio.sleep(0.05)
        pair.runs.publish_events(*KEY, [])
        async with asyncio.timeout(60):  # by itself it would look later
            assert isinstance(await watcher.get(), RunLogChanged)
        assert other.is_empty


@requirement("scale.own-messages")
async def test_changes_and_tokens_reach_only_the_processes_that_watch_the_task(pair: Pair) -> None:
    with pair.watches.watch(*KEY) as watcher:
        await asyncio.sleep(0.05)
        before = pair.wire.received.copy()
        pair.runs.append_token(*KEY, "attempt", "a")
        assert await tokens(watcher, 1) == ["a"]
        pair.runs.publish_events(*KEY, [])
        async with asyncio.timeout(60):
            assert isinstance(await watcher.get(), RunLogChanged)
    received = pair.wire.received - before
    assert set(received) == {pair.fanouts[1].own_id}


async def test_without_messages_a_watcher_looks_by_itself(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.05)
    pair.wire.cut = True
    with pair.watches.watch(*KEY) as watcher:
        async with asyncio.timeout(60):
            assert isinstance(await watcher.get(), RunLogChanged)


async def test_interest_ends_when_nobody_speaks_of_it_any_more(pair: Pair) -> None:
    with pair.watches.watch(*KEY):
        await asyncio.sleep(0.05)
    remote = pair.runs._remote
    assert remote is not None
    assert KEY in remote._interest
    later = remote._clock() + INTEREST_SECONDS + 1
    remote._clock = lambda: later
    pair.runs.renew_interest()
    assert remote._interest == {}


async def test_a_new_attempt_elsewhere_begins_anew(pair: Pair) -> None:
    with pair.watches.watch(*KEY) as watcher:
        await asyncio.sleep(0.05)
        pair.runs.append_token(*KEY, "first", "a")
        assert await tokens(watcher, 1) == ["a"]
        pair.third.append_token(*KEY, "second", "b")
        assert await tokens(watcher, 1) == ["b"]
        assert [token.attempt for token in pair.watches.tokens(*KEY)] == ["second"]


def test_the_kinds_of_messages_have_marks_of_their_own() -> None:
    marks = [kind.__struct_config__.tag for kind in fanout.FanoutMessage.__subclasses__()]
    assert len(set(marks)) == len(marks)


def test_a_listener_hears_of_the_changes_with_an_event_that_it_wants() -> None:
    hub, heard = Hub(), list[tuple[str, list[str]]]()

    def listener(name: str) -> live.Listener:
        return lambda _tenant, _task_id, events: heard.append((name, [event.event_id for event in events]))

    hub.listen(listener("all"))
    hub.listen(listener("ends"), live.TERMINAL_EVENTS)
    started, updated = (
        EventDraft("task_started", "", "", event_id="1"),
        EventDraft("learning_updated", "", "", event_id="3"),
    )
    hub.publish_events(*KEY, [started])
    hub.publish_events(*KEY, [EventDraft("task_completed", "", "", event_id="2"), updated])
    assert heard == [("all", ["1"]), ("all", ["2", "3"]), ("ends", ["2", "3"])]
