"""Providers' streams of events are read as the standard for server-sent events says, however they are cut."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.errors import ProviderTimeout
from stentor.domains.llm.providers import transport
from stentor.domains.llm.providers.transport import CallEvidence, EventSource

STREAMS = {
    "a byte order mark": (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [("", b"a"), ("", b"b")]),
    "a name without data": (b"event: error\n\ndata: a\n\n", [("", b"a")]),
    "a name for one event": (b"event: error\ndata: a\n\ndata: b\n\n", [("error", b"a"), ("", b"b")]),
    "data of two lines": (b"event: x\ndata: a\ndata: b\n\n", [("x", b"a\nb")]),
    "lines of Windows": (b"event: x\r\ndata: a\r\n\r\ndata: b\r\n\r\n", [("x", b"a"), ("", b"b")]),
    "comments and blank lines": (b": beat\n\n\n\ndata: a\n: beat\n\n", [("", b"a")]),
    "no blank line at the end": (b"data: a\n\ndata: b", [("", b"a"), ("", b"b")]),
}


class Blocks:
    """An answer whose lines come in these blocks."""

    def __init__(self, blocks: list[bytes]) -> None:
        self._blocks = blocks

    async def read_lines(self, max_bytes: int, idle_timeout: float) -> bytes:
        return self._blocks.pop(0) if self._blocks else b""


async def events(*blocks: bytes, idle_seconds: float = 1) -> list[tuple[str, bytes]]:
    answer: Any = Blocks(list(blocks))
    return [event async for event in EventSource(answer, CallEvidence(), idle_seconds)]


@pytest.mark.parametrize(("text", "found"), STREAMS.values(), ids=STREAMS)
async def test_a_stream_means_the_same_in_one_block_and_line_by_line(
    text: bytes, found: list[tuple[str, bytes]]
) -> None:
    assert await events(text) == found
    assert await events(*text.splitlines(keepends=True)) == found


PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@pytest.mark.parametrize("beat", [b": beat\n\n", PING], ids=["comments", "pings"])
async def test_a_stream_of_nothing_but_heartbeats_ends(monkeypatch: pytest.MonkeyPatch, beat: bytes) -> None:
    pings = [("ping", b'{"type": "ping"}')] * 2 if beat is PING else []
    assert await events(beat, beat, b"data: a\n\n") == [*pings, ("", b"a")]
    monkeypatch.setattr(transport, "MAX_SECONDS_WITHOUT_EVENT", -1.0)
    with pytest.raises(ProviderTimeout, match="only heartbeats"):
        await events(b"data: a\n\n", beat, b"data: b\n\n", idle_seconds=-1)
