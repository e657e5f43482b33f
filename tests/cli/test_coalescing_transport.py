"""Writes that belong together leave together."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from stentor.web.server.connections import ConnectionLimits, ConnectionRegistry
from stentor.web.server.protocol import CoalescingTransport, LimitedProtocol
from tests.conftest import Service
from tests.patience import soon


class Wire:
    """What a transport is told, piece by piece."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.sent.append(data)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.fixture
async def joining(wire: Wire) -> Any:
    return CoalescingTransport(wire, asyncio.get_running_loop())  # pyrefly: ignore[bad-argument-type] - a transport, as far as this writes to one


async def test_a_head_and_its_body_are_one_piece_at_once(wire: Wire, joining: Any) -> None:
    joining.write(b"head")
    assert wire.sent == []
    joining.write(b"body")
    assert wire.sent == [b"headbody"]
    await asyncio.sleep(0)
    assert wire.sent == [b"headbody"]


async def test_a_piece_alone_waits_for_no_other(wire: Wire, joining: Any) -> None:
    for number, piece in enumerate((b"one", b"two", b"three"), 1):
        joining.write(piece)
        await asyncio.sleep(0)
        assert len(wire.sent) == number
    assert b"".join(wire.sent) == b"onetwothree"


async def test_many_pieces_keep_their_order(wire: Wire, joining: Any) -> None:
    pieces = [b"%d " % n for n in range(101)]
    for at, piece in enumerate(pieces):
        joining.write(piece)
        if at % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert b"".join(wire.sent) == b"".join(pieces)


async def test_what_is_kept_goes_out_before_the_end(wire: Wire, joining: Any) -> None:
    joining.write(b"last")
    joining.close()
    assert (wire.sent, wire.closing, joining.is_closing()) == ([b"last"], True, True)


async def test_what_is_kept_is_lost_with_the_connection(wire: Wire, joining: Any) -> None:
    joining.write(b"late")
    wire.closing = True
    await asyncio.sleep(0)
    assert wire.sent == []


def test_an_answer_of_the_service_comes_in_one_piece(serve: Callable[..., Service]) -> None:
    service = serve(SERVICE_MEMORY="0")
    host, _, port = service.address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        for _ in range(5):
            connection.sendall(b"GET /api/v1/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = connection.recv(65_536).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert body.startswith(b"{")


async def test_a_closed_connection_is_freed_without_the_garbage_collector() -> None:
    config = uvicorn.Config(PlainTextResponse("there"), lifespan="off", log_config=None)
    config.load()
    connections = ConnectionRegistry(ConnectionLimits())
    protocol = partial(LimitedProtocol, config, ServerState(), {}, connections=connections)
    async with await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0) as server:
        gc.collect()  # what other tests have left
        gc.disable()
        try:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"there")
            writer.close()
            await soon(lambda: not any(type(found) is LimitedProtocol for found in gc.get_objects()))
        finally:
            gc.enable()
