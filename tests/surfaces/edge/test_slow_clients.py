"""Clients that are slow, or open many connections, do not keep others out."""

from __future__ import annotations

import socket
from collections.abc import Callable

import httpx
import pytest

from tests.patience import until
from tests.service import Service
from tests.surfaces.edge.sockets import LIVE, connected, is_alive, peak_mb, talk, until_end

HALF = LIVE + b"X-Half: "
FILES = ("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh")
"""Starts a program with as many descriptors as most systems give it."""
WORKER = {"name": "worker", "capabilities": ["x"], "runtime": {"kind": "worker"}}
SUBMIT = {"type": "note", "input": {"text": "hello"}, "required_capabilities": ["x"]}


def hold(address: str, count: int, sent: bytes = HALF) -> list[socket.socket]:
    held = []
    for _ in range(count):
        client = connected(address)
        client.sendall(sent)
        held.append(client)
    return held


def a_worker(client: httpx.Client) -> str:
    return str(client.post("/api/v1/registry/agents", json=WORKER).raise_for_status().json()["agent_id"])


def claim(client: httpx.Client, agent: str, wait_seconds: int) -> httpx.Response:
    body = {"max": 1, "wait_seconds": wait_seconds, "lease_seconds": 30}
    return client.post(f"/api/v1/agents/{agent}/claims", json=body)


def answer_to(address: str, sent: bytes) -> bytes:
    """What comes until the service ends the connection; nothing when it did before all was sent.

    Where a deadline is short, a test asks until it was fast enough itself: what the service says is what is tested.
    """
    try:
        with connected(address) as client:
            client.sendall(sent)
            return until_end(client)
    except OSError:
        return b""


@pytest.mark.requirement("http.slow-clients")
def test_half_a_head_is_given_up_at_its_deadline(start: Callable[..., Service]) -> None:
    service = start(SERVICE_HEAD_TIMEOUT_SECONDS="0.5")
    for name in ("gateway", "dashboard", "vault", "vault_tls", "notes", "mcp"):
        address = service.ready[name]
        until(lambda: answer_to(address, HALF).startswith(b"HTTP/1.1 408 "), name)  # noqa: B023 - asked at once


@pytest.mark.requirement("http.slow-clients")
def test_a_head_that_trickles_is_given_up_at_its_deadline(start: Callable[..., Service]) -> None:
    service = start(SERVICE_HEAD_TIMEOUT_SECONDS="0.5")
    until(lambda: trickled(service.address).startswith(b"HTTP/1.1 408 "))


def trickled(address: str) -> bytes:
    """The answer to a head that has no end, a byte at a time."""
    with connected(address) as client:
        answer = b""
        try:
            client.sendall(HALF)
            client.settimeout(0.05)
            while True:
                try:
                    client.sendall(b"a")
                    if not (data := client.recv(4096)):
                        return answer
                    answer += data
                except TimeoutError:
                    continue
        except OSError:
            return answer


@pytest.mark.requirement("http.slow-clients")
def test_a_connection_without_a_request_is_closed(start: Callable[..., Service]) -> None:
    service = start(SERVICE_HEAD_TIMEOUT_SECONDS="0.5", SERVICE_KEEP_ALIVE_SECONDS="0.5")
    assert answer_to(service.address, b"") == b""
    for end in (b"\r\n", b"\r\n\r\n\r\n"):
        until(lambda: answer_to(service.address, LIVE + end).count(b"HTTP/1.1 200 ") == 1)  # noqa: B023 - asked at once


@pytest.mark.requirement("http.slow-clients")
def test_a_body_that_trickles_is_given_up_at_its_deadline(start: Callable[..., Service]) -> None:
    service = start(SERVICE_BODY_TIMEOUT_SECONDS="0.5")
    head = f"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {service.key}\r\nContent-Length: 5000\r\n\r\n"
    until(lambda: answer_to(service.address, head.encode() + b"{").startswith(b"HTTP/1.1 408 "))


@pytest.mark.requirement("http.slow-clients")
def test_a_request_that_takes_longer_than_the_deadlines_is_answered(start: Callable[..., Service]) -> None:
    deadlines = ("SERVICE_HEAD_TIMEOUT_SECONDS", "SERVICE_BODY_TIMEOUT_SECONDS", "SERVICE_KEEP_ALIVE_SECONDS")
    service = start(**dict.fromkeys(deadlines, "0.2"))

    def is_served() -> bool:
        try:
            with service.client() as client:
                return claim(client, a_worker(client), wait_seconds=2).status_code == 200
        except httpx.HTTPError:
            return False  # this machine was too slow to send it in time

    until(is_served)


@pytest.mark.requirement("http.slow-clients")
def test_1100_half_heads_keep_nobody_out_and_the_store_can_be_written(start: Callable[..., Service]) -> None:
    service = start(under=FILES, SERVICE_HEAD_TIMEOUT_SECONDS="600")
    held = hold(service.address, 1_100)
    try:
        assert is_alive(service.address, "127.0.0.2")
        assert is_alive(service.address)
        with service.client() as writer:
            writer.post("/api/v1/registry/agents", json=WORKER).raise_for_status()
            assert writer.post("/api/v1/tasks", json=SUBMIT).status_code == 202
            note = {"operation": "write", "document": {"path": "a.md", "content": "kept"}}
            assert writer.post("/api/v1/memory/write", json=note).status_code == 200
    finally:
        for client in held:
            client.close()


@pytest.mark.slow
@pytest.mark.requirement("http.slow-clients")
def test_1100_handshakes_that_never_end_keep_nobody_out(start: Callable[..., Service]) -> None:
    service = start(under=FILES, SERVICE_HEAD_TIMEOUT_SECONDS="600")
    held = hold(service.ready["vault_tls"].replace("https", "http"), 1_100, b"\x16\x03\x01")
    try:
        assert is_alive(service.address)
        with connected(service.ready["vault_tls"]) as other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert until_end(other).startswith(b"HTTP/1.1 200 ")
    finally:
        for client in held:
            client.close()


@pytest.mark.requirement("http.connection-limits")
def test_the_oldest_waiting_connection_gives_way_to_a_new_one(start: Callable[..., Service]) -> None:
    service = start(SERVICE_MAX_CONNECTIONS_PER_ADDRESS="3", SERVICE_HEAD_TIMEOUT_SECONDS="600")
    held = hold(service.address, 3)
    assert is_alive(service.address)
    assert until_end(held[0]) == b""
    for client in held:
        client.close()


@pytest.mark.requirement("http.connection-limits")
def test_one_address_cannot_take_the_connections_of_another(start: Callable[..., Service]) -> None:
    service = start(SERVICE_MAX_CONNECTIONS="4", SERVICE_HEAD_TIMEOUT_SECONDS="600")
    mine = connected(service.address, "127.0.0.2")
    mine.sendall(LIVE)
    held = hold(service.address, 10)
    mine.sendall(b"Connection: close\r\n\r\n")
    assert until_end(mine).startswith(b"HTTP/1.1 200 ")
    for client in held:
        client.close()


@pytest.mark.requirement("http.connection-limits")
def test_a_connection_whose_request_is_worked_on_never_gives_way(start: Callable[..., Service]) -> None:
    service = start(SERVICE_MAX_CONNECTIONS_PER_ADDRESS="2")
    with service.client() as client:
        agent = a_worker(client)
    body = b'{"max":1,"wait_seconds":30,"lease_seconds":30}'
    head = (
        f"POST /api/v1/agents/{agent}/claims HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {service.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    working = hold(service.address, 2, head.encode() + body)
    for _ in range(2):  # answered after the two have been read
        assert is_alive(service.address, "127.0.0.2")
    until(lambda: refused(service.address))
    for one in working:
        one.setblocking(False)
        with pytest.raises(BlockingIOError):  # it is still open, and has no answer yet
            one.recv(1)
        one.close()


def refused(address: str) -> bool:
    """Whether a new connection is refused."""
    with connected(address) as client:
        return until_end(client).startswith(b"HTTP/1.1 503 ")


@pytest.mark.requirement("http.pipelining-limit")
def test_thousands_of_requests_at_once_take_no_memory(start: Callable[..., Service]) -> None:
    service = start()
    assert is_alive(service.address)
    before = peak_mb(service.process.pid)
    flood = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 10_000
    held = []
    for _ in range(20):
        client = connected(service.address)
        client.setblocking(False)
        client.send(flood)  # what the socket takes, and nobody reads the answers
        held.append(client)
    assert is_alive(service.address)
    assert peak_mb(service.process.pid) - before < 100
    for client in held:
        client.close()


@pytest.mark.requirement("http.pipelining-limit")
def test_a_client_may_have_64_requests_wait_and_is_answered_each(start: Callable[..., Service]) -> None:
    service = start()
    one, last = LIVE + b"\r\n", LIVE + b"Connection: close\r\n\r\n"
    assert talk(connected(service.address), [one * 64 + last]).count(b"HTTP/1.1 200 ") == 65
    # The rest is not taken, and the connection ends after the last answer.
    assert talk(connected(service.address), [one * 5_000]).count(b"HTTP/1.1 200 ") == 65


def test_the_rest_of_a_body_that_never_comes_does_not_hold_up_a_stop(start: Callable[..., Service]) -> None:
    service = start()
    with connected(service.address) as client:
        client.sendall(b"POST /api/v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{")
        assert b" 401 " in client.recv(65_536)
        service.process.terminate()
        _, errors = service.process.communicate()
    assert "timeout graceful shutdown exceeded" not in errors
