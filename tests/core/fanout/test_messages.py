"""Payloads of messages, without any transport."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.fanout import Address, Fanout, FanoutMessage, TaskChanged, TaskQueued, TokenBatch, fanout
from stentor.core.fanout import fanout as messages
from tests.patience import soon

TEXTS = st.text(max_size=40)
MESSAGES = st.one_of(
    st.builds(TaskQueued, TEXTS, st.booleans()),
    st.builds(TaskChanged, TEXTS, TEXTS),
    st.builds(
        TokenBatch,
        TEXTS,
        TEXTS,
        TEXTS,
        st.integers(1, 99),
        st.lists(TEXTS, max_size=5).map(tuple),
        st.booleans(),
        TEXTS,
    ),
)


@given(st.lists(MESSAGES, max_size=40), st.integers(300, 2_000))
def test_what_fits_into_a_payload_comes_out_as_it_was_and_none_is_larger_than_the_limit(
    sent: list[FanoutMessage], limit: int
) -> None:
    made = list(messages.encode_payloads("me", sent, limit))
    assert all(len(payload) <= limit for payload in made)
    fitting = [one for one in sent if len(messages._encode(one)) <= limit - len('["me",[]]')]
    assert [one for payload in made for one in messages.decode_payload(payload, "you")] == fitting


def test_ones_own_messages_are_passed_over() -> None:
    payload = next(messages.encode_payloads("me", [TaskChanged("a", "b")], 500))
    assert list(messages.decode_payload(payload, "me")) == []


@pytest.mark.parametrize(
    "payload",
    ["", "x", "[]", '["a"]', '["a",[["?",1]]]', '["a",[["c",1,2]]]', '["a",[1]]', '{"a":1}', "[" * 5_000, b"\xff\xfe"],
)
def test_what_nobody_can_read_is_passed_over(payload: str | bytes) -> None:
    assert list(messages.decode_payload(payload, "me")) == []


def test_what_is_unknown_does_not_hide_what_follows() -> None:
    known = json.loads(messages._encode(TaskChanged("a", "b")))
    assert list(messages.decode_payload(json.dumps(["x", [["new", 1], known]]), "me")) == [TaskChanged("a", "b")]


def test_tokens_of_one_attempt_are_joined_and_others_are_not() -> None:
    first = [TokenBatch("t", "a", "one", n, (str(n),), False, "p") for n in (1, 2, 3)]
    other = TokenBatch("t", "b", "one", 1, ("x",), False, "p")
    again = TokenBatch("t", "a", "two", 1, ("y",), False, "p")
    gap = TokenBatch("t", "a", "two", 5, ("z",), False, "p")
    joined = fanout._merge_tokens([first[0], other, first[1], first[2], again, gap])
    assert joined == [TokenBatch("t", "a", "one", 1, ("1", "2", "3"), False, "p"), other, again, gap]


async def test_without_others_nothing_waits_and_nothing_runs() -> None:
    alone = Fanout()
    await alone.start()
    alone.send(TaskChanged("a", "b"))
    await alone.stop()
    assert (alone.is_single_process, alone.is_connected) == (True, False)


class Silent:
    """A transport whose server is away."""

    limit = 1_000

    def __init__(self) -> None:
        self.tries = 0

    async def listen(self, own_id: str, receive: object, ready: object) -> None:
        self.tries += 1
        raise ConnectionError("away")

    async def publish(self, payloads: list[tuple[Address, bytes]]) -> None:
        raise ConnectionError("away")

    async def close(self) -> None:
        return None


async def test_an_outage_of_the_messages_costs_nobody_anything(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fanout, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(fanout, "MAX_QUEUED_MESSAGES", 10)
    transport = Silent()
    lonely = Fanout(transport)
    await lonely.start()
    for n in range(100):
        lonely.send(TaskChanged("a", str(n)))
    assert len(lonely._queued) == 10
    await soon(lambda: transport.tries >= 4)
    await lonely.stop()
    assert caplog.text.count("fanout: disconnected") == 1
