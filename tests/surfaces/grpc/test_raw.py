"""Calls that no client of gRPC makes, frame by frame: the service goes on answering and logs nothing of them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from tests.conftest import KEYS
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import Client

KEY = KEYS["ADMIN"].split(":")[0].encode()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS = 0, 1, 3, 4
END_STREAM, END_HEADERS = 1, 4
GET = b"/stentor.v1.TaskService/GetTask"
Pair = tuple[bytes, bytes]


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def head(path: bytes, *more: Pair) -> bytes:
    """Each field as a literal without an index (RFC 7541, 6.2.2); none is longer than 126 bytes."""
    usual = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"stentor")]
    fields = [*usual, (b"te", b"trailers"), (b"content-type", b"application/grpc"), *more]
    return b"".join(b"\0" + b"".join(bytes([len(part)]) + part for part in field) for field in fields)


def frames(connection: socket.socket) -> Iterator[int]:
    """The kinds of the frames that come."""
    while start := connection.recv(9, socket.MSG_WAITALL):
        connection.recv(int.from_bytes(start[:3]), socket.MSG_WAITALL)
        yield start[3]


def call(client: Client, path: bytes, *more: Pair, message: bytes = b"\0\0\0\0\x06\x0a\x04none") -> bool:
    """Whether anything was answered on the stream of this call."""
    host, port = client.service.ready["grpc"].split(":")
    with socket.create_connection((host, int(port)), timeout=200) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        connection.sendall(frame(HEADERS, END_HEADERS, 1, head(path, *more)) + frame(DATA, END_STREAM, 1, message))
        return any(kind in (HEADERS, RESET) for kind in frames(connection))


CALLS: dict[str, tuple[bytes, list[Pair]]] = {
    "a path that is no UTF-8": (b"/\xff\xfe/x", []),
    "the same with a key": (b"/\xff\xfe/x", [(b"x-api-key", KEY)]),
    "no path": (b"", []),
    "a path without a slash": (b"x", []),
    "a key that is no UTF-8": (GET, [(b"x-api-key", b"\xe9\xff-7c1e")]),
    "a bearer that is no UTF-8": (GET, [(b"authorization", b"Bearer \xe9\xff-7c1e")]),
    "two keys": (GET, [(b"x-api-key", KEY), (b"x-api-key", b"nobodys-key")]),
    "a request id that is no UTF-8": (GET, [(b"x-api-key", KEY), (b"x-request-id", b"a\xff")]),
    "a trace that is no UTF-8": (GET, [(b"x-api-key", KEY), (b"traceparent", b"a\xff")]),
    "binary metadata that is none": (GET, [(b"x-api-key", KEY), (b"a-bin", b"!!!")]),
    "a deadline that is none": (GET, [(b"x-api-key", KEY), (b"grpc-timeout", b"x")]),
    "a deadline that has passed": (GET, [(b"x-api-key", KEY), (b"grpc-timeout", b"0n")]),
    "an encoding that there is not": (GET, [(b"x-api-key", KEY), (b"grpc-encoding", b"z")]),
}


@requirement("scale.grpc-tasks")
@pytest.mark.parametrize(("path", "more"), CALLS.values(), ids=CALLS)
def test_a_call_that_no_client_makes_is_answered_and_leaves_the_service_as_it_was(
    client: Client, path: bytes, more: list[Pair]
) -> None:
    """That nothing was logged of it is seen when the service of this module ends."""
    assert call(client, path, *more)
    assert client.submit()


@requirement("scale.grpc-tasks")
def test_an_ordinary_call_frame_by_frame_is_answered_too(client: Client) -> None:
    assert call(client, GET, (b"x-api-key", KEY))


@requirement("scale.grpc-tasks")
def test_what_is_no_http2_is_not_answered_and_does_no_harm(client: Client) -> None:
    host, port = client.service.ready["grpc"].split(":")
    for content in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(200), bytes(5000)):
        with socket.create_connection((host, int(port)), timeout=200) as connection:
            connection.sendall(content)
            assert HEADERS not in list(frames(connection))
    assert client.submit()
