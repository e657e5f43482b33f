"""The load generator, a process of its own.

`python -m bench.load closed|submit|paced|notes HOST PORT[,PORT] COUNT CONNECTIONS|RATE [CAPABILITY]`

Raw sockets on uvloop with prebuilt requests, so that what is measured is the service and not the
client, which shares the machine. `closed` keeps every connection busy; `paced` is an open loop: requests
are due at fixed moments, whatever the answers do, and a latency counts from the moment it was due. Both submit tasks;
`submit` does not wait until they are done;
`notes` is closed, and writes a new note of 60 words with each request.
Prints one line of JSON: `seconds` from the first submit to the last completed task, `submit_seconds`, `latencies_ms`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import uvloop

from bench.service import KEY, Client

CONNECTIONS = 32
POLL_SECONDS = 0.02
TASK = {"type": "summarize", "input": "Hello world is here.", "required_capabilities": ["summarize"]}


def post(path: str, value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def note(number: int) -> bytes:
    dice = random.Random(number)
    words = " ".join(f"{dice.choice('bdfgklmnprst')}{dice.choice('aeiou')}{dice.randrange(100)}" for _ in range(60))
    document = {"path": f"crowd/{number % 32}-{number}.md", "content": words}
    return post("/api/v1/memory/write", {"operation": "write", "document": document})


class Connection(asyncio.Protocol):
    """One request at a time; tells the pool when its answer is complete."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._received = b""
        self.due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.WriteTransport, transport).write

    def send(self, due: float) -> None:
        self.due = due
        self._write(self._pool.requests.popleft())

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, gap, body = self._received.partition(b"\r\n\r\n")
        if not gap or len(body) < _length(head):
            return
        self._received = b""
        self._pool.answered(self, head)

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.lost(error)


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0])


class Pool:
    """Connections, and the moments at which requests are due that none was free for."""

    def __init__(self, requests: Sequence[bytes]) -> None:
        self.requests = deque(requests)
        self.count = len(requests)
        self.latencies: list[float] = []
        self.free: deque[Connection] = deque()
        self.due: deque[float] = deque()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, host: str, ports: Sequence[int], connections: int) -> None:
        """To each port in turn."""
        loop = asyncio.get_running_loop()
        for n in range(connections):
            _, made = await loop.create_connection(lambda: Connection(self), host, ports[n % len(ports)])
            self.free.append(made)

    def submit(self, due: float) -> None:
        if self.free:
            self.free.popleft().send(due)  # in turn, because the service closes connections that idle
        else:
            self.due.append(due)

    def answered(self, connection: Connection, head: bytes) -> None:
        if not head.startswith(b"HTTP/1.1 20"):
            self._fail(RuntimeError(head.decode(errors="replace")))
            return
        now = time.monotonic()
        self.latencies.append(now - connection.due)
        if self.due:
            # A moment already past stays the start of the latency; `closed` marks "at once" with 0.
            connection.send(self.due.popleft() or now)
        else:
            self.free.append(connection)
        if len(self.latencies) == self.count and not self.done.done():
            self.done.set_result(None)

    def lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionError("the service closed a connection"))

    def _fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def closed(pool: Pool) -> None:
    """Every connection sends its next request as soon as it has its answer."""
    pool.due.extend([0.0] * (pool.count - len(pool.free)))
    for _ in range(len(pool.free)):
        pool.submit(time.monotonic())
    await pool.done


async def paced(pool: Pool, rate: float) -> None:
    """`rate` requests per second, evenly."""
    start = time.monotonic()
    for i in range(pool.count):
        due = start + i / rate
        if (early := due - time.monotonic()) > 0:
            await asyncio.sleep(early)
        pool.submit(due)
    await pool.done


async def run(
    kind: str, host: str, ports: Sequence[int], count: int, number: int, capability: str = "summarize"
) -> dict[str, object]:
    waits = kind in ("closed", "paced")
    before = _completed(host, ports[0]) if waits else 0
    task = post("/api/v1/tasks", {**TASK, "required_capabilities": [capability]})
    pool = Pool([note(i) for i in range(count)] if kind == "notes" else [task] * count)
    await pool.open(host, ports, CONNECTIONS if kind == "paced" else min(count, number))
    started = time.monotonic()
    await (paced(pool, number) if kind == "paced" else closed(pool))
    submitted = time.monotonic()
    while waits and _completed(host, ports[0]) < before + count:
        await asyncio.sleep(POLL_SECONDS)
    ended = time.monotonic()
    latencies = [1000 * seconds for seconds in pool.latencies]
    return {"seconds": ended - started, "submit_seconds": submitted - started, "latencies_ms": latencies}


def _completed(host: str, port: int) -> int:
    """By the service's own count, on a connection of its own: the service closes one that was idle for seconds."""
    with Client(host, port) as client:
        return int(client.get("/api/v1/tasks?status=completed&limit=1")["total"])


def main() -> None:
    kind, host, ports, count, number, *capability = sys.argv[1:]
    wanted = [int(port) for port in ports.split(",")]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(run(kind, host, wanted, int(count), int(number), *capability))))


if __name__ == "__main__":
    main()
