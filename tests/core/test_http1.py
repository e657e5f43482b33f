"""The client for calls to providers, against scripted servers on real sockets."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from stentor.core.http_client.client import (
    ClientRequest,
    ConnectError,
    ConnectionSlots,
    HttpClient,
    RemoteProtocolError,
    ResponseTooLarge,
)
from stentor.core.http_client.connection import HIGH_WATER_BYTES
from tests.patience import soon

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """`heads` holds the requests that came, `connections` how many connections they came on."""

    port: int = 0
    connections: int = 0
    heads: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/v1"


@asynccontextmanager
async def scripted(
    *answers: bytes, play: Play | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Answers each request with the next of `answers`; after the last it hangs up. `play` may go on from there."""
    made, waiting = Server(), list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.connections += 1
        try:
            while waiting:
                made.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(waiting.pop(0))
                await writer.drain()
            if play is not None:
                await play(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            made.left.set()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


@asynccontextmanager
async def client(most: int = 256) -> AsyncIterator[HttpClient]:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    made = HttpClient(resolve, most)
    try:
        yield made
    finally:
        await made.close()


async def until_left(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Waits for the other side's end."""
    while await reader.read(1_000):
        pass
    raise ConnectionError


async def body(answers: HttpClient, server: Server, most: int = 1_000_000) -> bytes:
    async with await answers.send(ClientRequest("GET", server.url, {}), 60) as answer:
        return await answer.read_body(most)


async def test_the_next_request_goes_on_the_same_connection() -> None:
    async with scripted(HELLO, HELLO) as server, client() as calls:
        assert [await body(calls, server) for _ in range(2)] == [b"hello", b"hello"]
        assert server.connections == 1
        assert server.heads[0].startswith(b"GET /v1 HTTP/1.1\r\nHost: localhost:")


async def test_a_connection_that_the_server_is_to_close_is_not_used_again() -> None:
    closing = HELLO.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with scripted(closing, HELLO) as server, client() as calls:
        assert [await body(calls, server) for _ in range(2)] == [b"hello", b"hello"]
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HELLO,
    ],
    ids=["chunked", "until the end of the connection", "after interim answers"],
)
async def test_a_body_is_read_however_it_is_framed(answer: bytes) -> None:
    async with scripted(answer) as server, client() as calls:
        assert await body(calls, server) == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        HELLO[:-2],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"220 mail.example.com ESMTP\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "half a body", "half a chunk", "another protocol", "two lengths", "an endless head"],
)
async def test_what_is_not_a_whole_answer_is_a_connection_that_broke_off(answer: bytes) -> None:
    async with scripted(answer) as server, client() as calls:
        with pytest.raises(RemoteProtocolError):
            await body(calls, server)


async def test_a_connection_that_brought_more_than_was_asked_for_is_not_used_again() -> None:
    async with scripted(HELLO + HELLO, HELLO) as server, client() as answers:
        assert await body(answers, server) == b"hello"
        assert await body(answers, server) == b"hello"
    assert server.connections == 2


async def test_a_server_that_wants_another_protocol_broke_off() -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
    async with scripted(switching) as server, client() as answers:
        with pytest.raises(RemoteProtocolError):
            await body(answers, server)
    assert not reported


async def test_an_answer_above_the_limit_is_refused_and_its_connection_closed() -> None:
    async with scripted(HELLO[:-5] + b"hell", play=until_left) as server, client() as calls:
        with pytest.raises(ResponseTooLarge):
            await body(calls, server, most=3)
        await asyncio.wait_for(server.left.wait(), 60)


async def test_an_answer_that_is_given_up_ends_the_servers_work() -> None:
    async with scripted(HELLO[:-2], play=until_left) as server, client() as calls:
        async with await calls.send(ClientRequest("GET", server.url, {}), 60) as answer:
            assert answer.status == 200
        await asyncio.wait_for(server.left.wait(), 60)


async def test_a_caller_that_is_cancelled_while_it_waits_ends_the_servers_work() -> None:
    async with scripted(b"HTTP/1.1 200", play=until_left) as server, client() as calls:
        task = asyncio.create_task(calls.send(ClientRequest("POST", server.url, {}, b"{}"), 60))
        await soon(lambda: server.heads)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.left.wait(), 60)


async def test_a_stream_comes_in_whole_lines_and_its_silence_is_bounded() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with scripted(head + b"9\r\none\ntwo\nt\r\n", play=until_left) as server, client() as calls:
        answer = await calls.send(ClientRequest("GET", server.url, {}), 60)
        assert await answer.read_lines(1_000, 60) == b"one\ntwo\n"
        with pytest.raises(TimeoutError):
            await answer.read_lines(1_000, 0.05)


async def test_a_slow_reader_stops_the_server_instead_of_filling_the_memory() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for _ in range(1_000):
            writer.write(b"x" * 65_535 + b"\n")
            sent += 65_536
            await writer.drain()

    async with scripted(b"HTTP/1.1 200 OK\r\n\r\n", play=flood) as server, client() as calls:
        answer = await calls.send(ClientRequest("GET", server.url, {}), 60)
        before = -1
        while sent != before:  # until the server gets no more away
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 65_536_000
        assert answer.buffered_bytes < 2 * HIGH_WATER_BYTES + 262_144
        read = 0
        while block := await answer.read_lines(10_000_000, 60):
            read += len(block)
        assert read == 65_536_000


async def test_a_header_cannot_bring_a_second_request_along() -> None:
    async with scripted(HELLO) as server, client() as calls:
        with pytest.raises(ValueError, match="header"):
            await calls.send(ClientRequest("GET", server.url, {"Authorization": "a\r\nX: b"}), 60)
        assert server.connections == 0
        async with await calls.send(ClientRequest("GET", f"{server.url}/a b\r\nX: y", {}), 60) as answer:
            assert await answer.read_body(10) == b"hello"
        assert server.heads[0].split(b"\r\n")[0].startswith(b"GET /v1/a%20b")
        assert b"\r\nX: y" not in server.heads[0]


async def test_where_nobody_listens_nothing_is_sent() -> None:
    async with scripted(HELLO) as server:
        port = server.port
    async with client() as calls:
        with pytest.raises(ConnectError):
            await calls.send(ClientRequest("GET", f"http://localhost:{port}/", {}), 60)


async def test_a_kept_connection_makes_room_for_another_address() -> None:
    async with scripted(HELLO, HELLO) as one, scripted(HELLO) as other, client(most=1) as calls:
        assert await body(calls, one) == b"hello"
        assert await body(calls, other) == b"hello"
        assert await body(calls, one) == b"hello"
        assert (one.connections, other.connections) == (2, 1)


async def test_requests_beyond_the_limit_wait_for_their_turn() -> None:
    async with scripted(*[HELLO] * 6) as server, client(most=2) as calls:
        assert await asyncio.gather(*(body(calls, server) for _ in range(6))) == [b"hello"] * 6


async def test_a_certificate_has_to_be_one_that_the_system_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_side = _certified(tmp_path)
    async with scripted(HELLO, tls=server_side) as server:
        secure = ClientRequest("GET", server.url.replace("http:", "https:"), {})
        async with client() as calls:
            with pytest.raises(ConnectError):
                await calls.send(secure, 60)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        async with client() as calls, await calls.send(secure, 60) as answer:
            assert await answer.read_body(10) == b"hello"


def _certified(folder: Path) -> ssl.SSLContext:
    """A server's side with a certificate of its own for localhost; the certificate is `cert.pem` in the folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@pytest.mark.requirement("llm.connections-apart")
async def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    peers: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://localhost:{listening.getsockname()[1]}/v1"

        async def exchange(calls: HttpClient) -> bytes:
            asking = asyncio.ensure_future(calls.send(ClientRequest("GET", url, {}), 30))
            peer, _ = await asyncio.to_thread(listening.accept)
            peers.append(peer)
            await asyncio.to_thread(peer.recv, 4096)
            await asyncio.to_thread(peer.sendall, HELLO)
            return await (await asking).read_body(100)

        async with client() as calls:
            listening.settimeout(60)
            assert await exchange(calls) == b"hello"
            # It arrives before the event loop looks, so that the next request would be sent before it is read.
            peers[0].sendall(HELLO.replace(b"hello", b"wrong"))
            assert await exchange(calls) == b"hello"
        for peer in peers:
            peer.close()


@pytest.mark.requirement("llm.connections-apart")
async def test_another_tenant_and_another_credential_have_connections_of_their_own() -> None:
    async with scripted(*[HELLO] * 9) as server, client() as calls:
        for tenant, credential in (("a", "1"), ("b", "1"), ("a", "2"), ("a", "1"), ("b", "1")):
            async with await calls.send(ClientRequest("GET", server.url, {}, b"", tenant, credential), 30) as answer:
                assert await answer.read_body(100) == b"hello"
        assert server.connections == 3


@pytest.mark.requirement("llm.connections-apart")
async def test_a_tenant_that_takes_all_it_can_leaves_places_for_another() -> None:
    slots = ConnectionSlots(8)
    waiting = [asyncio.ensure_future(slots.acquire("greedy")) for _ in range(20)]
    await asyncio.sleep(0)
    assert sum(turn.done() for turn in waiting) == 4
    for _ in range(2):
        await asyncio.wait_for(slots.acquire("modest"), 60)
    slots.release("greedy")
    await asyncio.sleep(0)
    assert sum(turn.done() for turn in waiting) == 4  # the modest one's places count
    for turn in waiting[4:]:
        turn.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for _ in range(3):
        slots.release("greedy")
    for _ in range(2):
        slots.release("modest")
    assert not slots.has_waiting
    assert not slots.would_wait("greedy")


@pytest.mark.requirement("llm.connections-apart")
@pytest.mark.parametrize(("keepers", "most"), [(["a"] * 8, 16), ([f"b{number}" for number in range(24)], 32)])
async def test_requests_that_come_at_once_get_the_places_of_kept_connections(keepers: list[str], most: int) -> None:
    async with (
        scripted(*[HELLO] * (len(keepers) + 1)) as server,
        scripted(play=until_left) as busy,
        client(most) as calls,
        asyncio.TaskGroup() as group,
    ):
        for number, keeper in enumerate(keepers):
            request = ClientRequest("GET", server.url, {}, b"", keeper, str(number))
            async with await calls.send(request, 60) as answer:
                assert await answer.read_body(10) == b"hello"
        requests = [ClientRequest("GET", busy.url, {}, b"", "a", f"new {number}") for number in range(8)]
        asking = [group.create_task(calls.send(request, 60)) for request in requests]
        await soon(lambda: busy.connections == 8, lambda: busy.connections)
        for request in asking:
            request.cancel()


@pytest.mark.requirement("llm.connections-apart")
async def test_a_request_that_is_cancelled_as_a_place_becomes_free_ends_as_cancelled() -> None:
    slots = ConnectionSlots(2)
    await slots.acquire("a")
    waiting = asyncio.ensure_future(slots.acquire("a"))
    await asyncio.sleep(0)
    waiting.cancel()
    slots.release("a")
    assert not slots.would_wait("a")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not slots.has_waiting
    await slots.acquire("a")
