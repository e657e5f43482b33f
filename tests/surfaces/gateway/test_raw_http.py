"""Requests that no HTTP library sends: against a real service, byte by byte."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress

import httpx
import pytest

from tests.conftest import Service
from tests.requirements import requirement

HEAD = b"Host: localhost\r\nX-API-Key: admin-key-7c1e\r\n"
BODY = json.dumps({"type": "echo", "input": "x", "required_capabilities": []}).encode()
SUBMIT = b"POST /api/v1/tasks HTTP/1.1\r\n" + HEAD


@pytest.fixture(scope="module")
def service(serve_module: Callable[..., Service]) -> Service:
    """One service for all of these."""
    return serve_module()


def connect(service: Service) -> socket.socket:
    url = httpx.URL(service.address)
    return socket.create_connection((url.host, url.port or 80), timeout=200)


def exchange(service: Service, request: bytes) -> bytes:
    """What comes back until the service closes."""
    with closing(connect(service)) as connection:
        with suppress(ConnectionError):
            connection.sendall(request)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    answer = b""
    with suppress(TimeoutError, ConnectionError):
        while part := connection.recv(65536):
            answer += part
    return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def stored(service: Service) -> int:
    with service.client() as client:
        return int(client.get("/api/v1/tasks").json()["total"])


AMBIGUOUS = {
    "length and chunked": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SUBMIT,
    "two lengths": b"Content-Length: 2\r\nContent-Length: 100\r\n\r\n{}",
    "a length that is no number": b"Content-Length: +5\r\n\r\nhello",
    "a negative length": b"Content-Length: -5\r\n\r\nhello",
    "an unknown transfer coding": b"Transfer-Encoding: chunkedx\r\n\r\n0\r\n\r\n",
    "a broken chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a folded header": b"Content-Length: 2\r\nX: a\r\n b\r\n\r\n{}",
    "a space before the colon": b"Content-Length : 2\r\n\r\n{}",
}


@pytest.mark.parametrize("rest", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_a_request_that_two_readers_could_read_differently_is_refused(service: Service, rest: bytes) -> None:
    before = stored(service)
    answer = exchange(service, SUBMIT + rest)
    assert 400 <= status(answer) < 500 or answer == b"", answer
    assert answer.count(b"HTTP/1.1") <= 1
    assert stored(service) == before


@requirement("http.body-limit-413")
def test_a_chunked_body_over_the_limit_is_cut_off_early(service: Service) -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    sent = 0
    with closing(connect(service)) as connection:
        connection.sendall(SUBMIT + b"Transfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(200):
                connection.sendall(chunk)
                sent += len(chunk)
        except (ConnectionError, TimeoutError):
            pass
        answer = received(connection)
    assert sent < 150_000_000
    assert status(answer) in (413, 0)  # 0 when the reset overtook the answer


@requirement("http.body-limit-413")
def test_a_length_over_the_limit_is_refused_before_the_body_comes(service: Service) -> None:
    for length in (b"10000001", b"9" * 30, b"0" * 30 + b"10000001"):
        answer = exchange(service, SUBMIT + b"Content-Length: " + length + b"\r\n\r\n")
        assert status(answer) in (400, 413), answer


@requirement("http.body-limit-413")
def test_a_client_that_sends_all_of_a_body_over_the_limit_first_reads_why(service: Service) -> None:
    with closing(connect(service)) as connection:
        connection.sendall(SUBMIT + b"Content-Length: 30000000\r\n\r\n" + b" " * 30_000_000)
        answer = received(connection)
    assert (status(answer), b"PAYLOAD_TOO_LARGE" in answer) == (413, True)


def test_half_a_body_leaves_nothing(service: Service) -> None:
    before = stored(service)
    for rest in (b"Content-Length: 1000\r\n\r\n" + BODY, b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"ty'):
        with closing(connect(service)) as connection:
            connection.sendall(SUBMIT + rest)
            time.sleep(0.1)
    assert stored(service) == before


def test_more_headers_than_anybody_needs_are_refused(service: Service) -> None:
    flood = b"".join(b"X-%d: %s\r\n" % (i, b"x" * 1000) for i in range(2000))
    answer = exchange(service, b"GET /health HTTP/1.1\r\n" + HEAD + flood + b"\r\n")
    assert status(answer) in (0, 431)  # 0 when the reset overtook the answer
    assert status(exchange(service, b"GET /health HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n")) == 200


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"GET /health HTTP/1.0", {200}),
        (b"GET http://localhost/health HTTP/1.1", {200}),
        (b"BREW /api/v1/tasks HTTP/1.1", {400, 405}),
        (b"OPTIONS * HTTP/1.1", {400, 401, 404, 405}),
        (b"GET //api/v1/tasks HTTP/1.1", {404}),
        (b"GET /api/v1/../v1/tasks/x HTTP/1.1", {404}),
        (b"GET /api/v1/tasks/..%2f..%2fetc%2fpasswd HTTP/1.1", {404}),
        (b"GET /api/v1/tasks/%ff%fe HTTP/1.1", {404}),
        (b"GET /api/v1/tasks/%zz HTTP/1.1", {404}),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1", {431}),
        (b"GET /health HTTP/9.9", {400, 505, 0, 200}),
        (b"nonsense", {400, 0}),
    ],
)
def test_strange_request_lines_are_answered_or_refused(service: Service, line: bytes, expected: set[int]) -> None:
    answer = exchange(service, line + b"\r\n" + HEAD + b"Connection: close\r\n\r\n")
    assert status(answer) in expected, answer[:300]


def test_two_requests_in_one_packet_get_two_answers(service: Service) -> None:
    one = b"GET /health HTTP/1.1\r\n" + HEAD
    answer = exchange(service, one + b"\r\n" + one + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 2


def test_a_header_with_a_line_break_in_it_is_no_second_header(service: Service) -> None:
    answer = exchange(
        service, b"GET /health HTTP/1.1\r\n" + HEAD + b"X-Request-Id: a\rSet-Cookie: b\r\nConnection: close\r\n\r\n"
    )
    assert b"set-cookie" not in answer.lower()
