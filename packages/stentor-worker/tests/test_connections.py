"""The SDK's HTTP: responses of every form, connections that end, and what a request costs."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from worker_service import TIMEOUT_S, Service, run_service

from stentor_worker import Task, Worker
from stentor_worker.http.client import Client
from stentor_worker.http.connections import ConnectionPool, HttpResponse, MalformedResponse

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """A server that answers each request with the next of some bytes; an empty one closes the connection."""

    def __init__(self, answers: list[bytes]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answers = iter(answers)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/base"
        self.requests: list[bytes] = []
        self.connections = 0
        self.closed = threading.Event()
        """Set when a connection was closed."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, suppress(ConnectionError):
                self._answer(connection)
            self.closed.set()

    def _answer(self, connection: socket.socket) -> None:
        while request := connection.recv(65_536):
            self.requests.append(request)
            answer = next(self._answers)
            connection.sendall(answer.removesuffix(b"[end]"))
            if answer.endswith(b"[end]"):
                return

    def close(self) -> None:
        # Wakes `accept`, which a close by itself does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def peer(*answers: bytes) -> Iterator[tuple[Peer, ConnectionPool]]:
    with closing(Peer(list(answers))) as server:
        connections = ConnectionPool(server.url, {"Authorization": "Bearer key"}, None)
        try:
            yield server, connections
        finally:
            connections.close()


def send(connections: ConnectionPool, body: bytes | None = None) -> HttpResponse:
    return connections.request("GET" if body is None else "POST", "/x?y=1", body, {}, TIMEOUT_S)


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 200\r\ncontent-length:2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK, b"ok"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;a=b\r\nk\r\n0\r\nTrailer: 1\r\n\r\n",
            b"ok",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
def test_a_response_of_any_form_is_read_and_its_connection_stays(answer: bytes, content: bytes) -> None:
    with peer(answer, OK) as (server, connections):
        assert send(connections).content == content
        assert send(connections, b"{}").content == b"ok"
        assert server.connections == 1
        host = server.url.removeprefix("http://").removesuffix("/base").encode()
        head = b"POST /base/x?y=1 HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer key\r\nContent-Length: 2\r\n\r\n{}"
        assert server.requests[1] == head % host, "in one part, which wakes the service once"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok[end]",
        OK + b"[end]",
        OK + OK,
    ],
    ids=["close", "1.0", "no length", "closed while idle", "more than one response"],
)
def test_a_connection_that_ended_is_not_used_again(answer: bytes) -> None:
    with peer(answer, OK) as (server, connections):
        assert send(connections).content == b"ok"
        if answer.endswith(b"[end]"):
            assert server.closed.wait(TIMEOUT_S)
        assert send(connections).content == b"ok"
        assert server.connections == 2


def test_after_a_fork_no_connection_of_the_first_process_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(OK, OK, OK) as (server, connections):
        assert send(connections).content == b"ok"
        number = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: number)
        assert send(connections).content == b"ok"
        assert send(connections).content == b"ok"
        assert server.connections == 2


def test_after_a_fork_no_other_thread_takes_one_while_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(OK) as (_, connections):
        assert send(connections).content == b"ok"
        number = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: number)
        close, taken = connections.close, []

        def take_and_close() -> None:
            monkeypatch.setattr(connections, "close", close)
            taken.append(connections._take())  # as another thread at this moment
            close()

        monkeypatch.setattr(connections, "close", take_and_close)
        assert connections._take() is None
        assert taken == [None]


@pytest.mark.parametrize(
    "answer",
    [
        b"[end]",
        b"HTTP/1.1 200 OK\r\nContent-Le[end]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok[end]",
        b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok[end]",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok[end]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\nok[end]",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\nok[end]",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\nok[end]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n[end]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n\r\nok[end]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\n0123456789abcdef\r\n0\r\n\r\n[end]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n38d7ea4c68000\r\nok[end]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\nok[end]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok[end]",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1_001 + b"\r\n[end]",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n[end]",
        b"SSH-2.0-OpenSSH_9.2p1\r\n[end]",
    ],
)
def test_what_is_no_complete_response_is_an_error_and_ends_its_connection(answer: bytes) -> None:
    with peer(answer, OK) as (server, connections):
        with pytest.raises((MalformedResponse, ConnectionResetError)):
            send(connections)
        assert send(connections).content == b"ok"
        assert server.connections == 2


def test_a_request_that_is_interrupted_leaves_no_response_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(OK, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext") as (server, connections):
        with monkeypatch.context() as patch:
            patch.setattr("stentor_worker.http.connections._Connection.read_response", lambda _: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                send(connections)
        assert server.closed.wait(TIMEOUT_S)
        assert send(connections).content == b"next"


@pytest.mark.parametrize("share", [0, 1])
def test_a_call_is_never_repeated_before_the_time_that_the_service_asked_for(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: low + share * (high - low))
    limited = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 53\r\nContent-Length: 2\r\n\r\n{}"
    with peer(limited, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (server, _):
        client, pauses = Client(server.url, "key", threading.Event()), list[float]()
        client._stopping = SimpleNamespace(is_set=lambda: False, wait=pauses.append)  # type: ignore[assignment]
        client.call("POST", "/tasks", {})
        client.close()
    assert 53 <= pauses[0] <= 64, "later by chance, so that not all workers call at once"


def test_a_step_costs_few_calls_of_functions() -> None:
    """Most of what a step costs the worker's program was the HTTP client: with urllib3 a step took 842 calls."""
    counts: list[int] = []

    def count_calls(task: Task) -> None:
        task.step("first", lambda: 1)
        calls = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(note)
        task.step("second", lambda: 1)
        sys.setprofile(None)
        counts.append(calls)
        worker.stop()

    answer = {"recorded": True, "kind": "step", "epoch": 1, "started_at": "1", "ended_at": "1"}
    with run_service(Service(tasks=1)) as service:
        service.reply = lambda verb: (200, answer)
        worker = Worker(service.url, "key", "agent", concurrency=1)
        worker.handler(count_calls)
        worker.run()
    assert 0 < counts[0] < 300, counts
