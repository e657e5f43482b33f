"""Chats through a gateway, from a process of its own: `python -m bench.llm.load SPEC`, with SPEC as JSON.

`host`, `port`, `path`, `headers` and `body` are of each request; `count` of them go out on `connections` keep-alive
connections, each of which sends its next request when its answer is complete. Every answer is checked: the whole
text, or all tokens of the stream. Prints one line of JSON: `seconds`, `latencies_ms` and, for streams,
`first_ms`, from the request to the first token.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from typing import Any, cast

import httptools
import uvloop

from bench.llm.provider import ANSWER, WORD

FIRST = f"{WORD}0 ".encode()


class Connection(asyncio.Protocol):
    def __init__(self, run: Run) -> None:
        self._run = run

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.WriteTransport, transport).write

    def send(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._first = bytearray(), 0.0
        self._sent = time.perf_counter()
        self._write(self._run.request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body
        if not self._first and FIRST in self._body:
            self._first = time.perf_counter()

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        if self._parser.get_status_code() != 200 or not self._run.complete(self._body):
            self._run.fail(RuntimeError(f"{self._parser.get_status_code()} {self._body[:500]!r}"))
            return
        self._run.latencies.append(1000 * (now - self._sent))
        if self._first:
            self._run.first.append(1000 * (self._first - self._sent))
        self._run.next(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._run.fail(error or ConnectionError("the gateway closed a connection"))


class Run:
    def __init__(self, spec: dict[str, Any]) -> None:
        body = json.dumps(spec["body"]).encode()
        head = {"Host": f"{spec['host']}:{spec['port']}", "Content-Type": "application/json", **spec["headers"]}
        lines = [f"POST {spec['path']} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        self.request = "\r\n".join([*lines, f"Content-Length: {len(body)}\r\n\r\n"]).encode() + body
        self._stream = spec["body"].get("stream", False)
        self._tokens = [f"{WORD}{n} ".encode() for n in range(spec["body"]["max_tokens"])]
        self._left, self._open = spec["count"], 0
        self.latencies: list[float] = []
        self.first: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def complete(self, body: bytearray) -> bool:
        if self._stream:
            return body.count(b"data: [DONE]") == 1 and all(body.count(token) == 1 for token in self._tokens)
        return ANSWER.encode() in body

    def next(self, connection: Connection) -> None:
        if self._left:
            self._left -= 1
            self._open += 1
            connection.send()
        elif len(self.latencies) == self._open and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def run(spec: dict[str, Any]) -> dict[str, Any]:
    """All connections stand before the clock starts."""
    load, loop = Run(spec), asyncio.get_running_loop()
    open_: deque[Connection] = deque()
    for _ in range(min(spec["count"], spec["connections"])):
        _, made = await loop.create_connection(lambda: Connection(load), spec["host"], spec["port"])
        open_.append(made)
    started = time.perf_counter()
    for connection in open_:
        load.next(connection)
    await load.done
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "latencies_ms": load.latencies, "first_ms": load.first}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(run(json.loads(sys.argv[1])))))
