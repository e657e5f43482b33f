"""The size of a request's head is bounded, on every surface that speaks HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.databases import thorough
from tests.patience import until
from tests.service import Service, serving
from tests.surfaces.edge.sockets import LIVE, connected, is_alive, peak_mb, talk

SURFACES = ("gateway", "dashboard", "vault", "vault_tls", "notes", "mcp")
GROWTH_MB = 16
"""Below the 30 MB that a client sends, and above what a process grows by now and then."""


def lines(count: int) -> Iterator[bytes]:
    for first in range(0, count, 1000):
        yield b"".join(b"x%d: 1\r\n" % n for n in range(first, first + 1000))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("heads")) as start:
        yield start()


@pytest.mark.requirement("http.head-limit-431")
def test_30_mb_of_header_lines_are_refused_and_take_no_memory(service: Service) -> None:
    assert is_alive(service.address)
    before = peak_mb(service.process.pid)
    for _ in range(3 if thorough() else 1):
        # Once more if this process had no turn for so long that the connection was closed as idle.
        answer = until(lambda: talk(connected(service.address), [LIVE, *lines(3_000_000)]))
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"REQUEST_HEAD_TOO_LARGE" in answer
    assert peak_mb(service.process.pid) - before < GROWTH_MB
    assert is_alive(service.address)


@pytest.mark.requirement("http.head-limit-431")
def test_a_header_of_60_mb_is_refused_and_takes_no_memory(service: Service) -> None:
    assert is_alive(service.address)
    before = peak_mb(service.process.pid)
    answer = until(lambda: talk(connected(service.address), [LIVE, b"X-Long: ", *[b"a" * 1_000_000] * 60, b"\r\n\r\n"]))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert peak_mb(service.process.pid) - before < GROWTH_MB


@pytest.mark.requirement("http.head-limit-431")
def test_every_surface_refuses_a_head_of_more_than_64_kb(service: Service) -> None:
    for name in SURFACES:
        address = service.ready[name]
        assert talk(connected(address), [LIVE, b"X: ", b"a" * 70_000, b"\r\n\r\n"])[:12] == b"HTTP/1.1 431", name


@pytest.mark.requirement("http.head-limit-431")
def test_a_target_of_more_than_64_kb_is_refused(service: Service) -> None:
    assert talk(connected(service.address), [b"GET /", b"a" * 70_000, b" HTTP/1.1\r\n\r\n"])[:12] == b"HTTP/1.1 431"


@pytest.mark.requirement("http.head-limit-431")
def test_a_head_may_have_100_fields_and_not_101(service: Service) -> None:
    some = b"".join(b"X%d: 1\r\n" % n for n in range(98))
    closing = b"Connection: close\r\n"
    assert talk(connected(service.address), [LIVE, some, closing, b"\r\n"])[:12] == b"HTTP/1.1 200"
    assert talk(connected(service.address), [LIVE, some, closing, b"One-more: 1\r\n\r\n"])[:12] == b"HTTP/1.1 431"


@pytest.mark.requirement("http.head-limit-431")
def test_a_head_of_60_kb_is_taken(service: Service) -> None:
    head = LIVE + b"Connection: close\r\nX-Long: " + b"a" * 60_000 + b"\r\n\r\n"
    assert talk(connected(service.address), [head])[:12] == b"HTTP/1.1 200"


@pytest.mark.requirement("http.head-limit-431")
def test_the_trailers_of_a_body_are_bounded_too(service: Service) -> None:
    head = b"POST /api/v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    before = peak_mb(service.process.pid)
    answer = talk(connected(service.address), [head, b"2\r\n{}\r\n0\r\n", *lines(3_000_000)])
    assert answer[:10] in (b"HTTP/1.1 4", b"")
    assert peak_mb(service.process.pid) - before < GROWTH_MB
    assert is_alive(service.address)


def test_what_is_not_http_is_answered_with_the_error_envelope(service: Service) -> None:
    answer = talk(connected(service.address), [b"HELLO\r\n\r\n"])
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"INVALID_REQUEST"' in answer
    assert b"Connection: close" in answer


def test_a_request_before_one_that_is_too_large_is_answered(service: Service) -> None:
    answer = talk(connected(service.address), [LIVE + b"\r\n" + LIVE, b"X: " + b"a" * 140_000])
    assert answer.count(b"HTTP/1.1 200") == 1
    assert answer.count(b"HTTP/1.1 431") <= 1


def test_an_upgrade_header_is_ignored_and_fills_no_log(start: Callable[..., Service]) -> None:
    service = start()
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with connected(service.address) as client:
        client.sendall(LIVE + upgrade)
        assert client.recv(12) == b"HTTP/1.1 200"
    service.process.terminate()
    assert service.process.stderr is not None
    assert "pgrade" not in service.process.stderr.read()


@pytest.mark.requirement("http.one-host")
def test_a_request_has_one_host(service: Service) -> None:
    named = b"Host: 127.0.0.1\r\n"
    for name in SURFACES:
        for version, hosts, status in (
            (b"1.1", b"", b"400"),
            (b"1.1", named * 2, b"400"),
            (b"1.0", named * 2, b"400"),
            (b"1.1", named + b"hOST: example.com\r\n", b"400"),
        ):
            head = b"GET / HTTP/" + version + b"\r\nConnection: close\r\n" + hosts + b"\r\n"
            assert talk(connected(service.ready[name]), [head])[:12] == b"HTTP/1.1 " + status, (name, version, hosts)
    old = b"GET /health HTTP/1.0\r\n\r\n"
    assert talk(connected(service.address), [old])[:12] == b"HTTP/1.1 200"
