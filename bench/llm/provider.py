"""A provider of language models that takes no time, a process of its own: `python -m bench.llm.provider`.

Speaks OpenAI's chat completions over raw sockets on uvloop. A stream sends its first token at once and then one
per interval; the request says how many (`max_tokens`) and how long to wait between two (`user`: milliseconds).
Prints one line of JSON when it listens: `port`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httptools
import uvloop

WORD = "sea"
ANSWER = "The sea is salty because rivers carry salts of the rocks into it, and the water leaves without them."
HEAD = {"id": "chatcmpl-bench", "created": 1, "model": "bench"}
COUNT = {"prompt_tokens": 31, "completion_tokens": 22, "total_tokens": 53}


def plain(status: str, value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def whole() -> bytes:
    message = {"role": "assistant", "content": ANSWER, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return plain("200 OK", {**HEAD, "object": "chat.completion", "choices": [choice], "usage": COUNT})


def event(value: dict[str, Any]) -> bytes:
    return chunked(b"data: " + json.dumps(value).encode() + b"\n\n")


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def piece(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return event({**HEAD, "object": "chat.completion.chunk", "choices": [choice]})


WHOLE = whole()
BEGIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + piece(
    {"role": "assistant", "content": ""}
)
COUNTED = event({**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": COUNT})
END = COUNTED + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
MODELS = plain("200 OK", {"object": "list", "data": [{"id": "bench", "object": "model", "owned_by": "bench"}]})


class Upstream(asyncio.Protocol):
    """One connection of a caller."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._body:
            self._transport.write(MODELS)
            return
        asked = json.loads(self._body)
        if not asked.get("stream"):
            self._transport.write(WHOLE)
            return
        self._transport.write(BEGIN)
        self._token(0, asked["max_tokens"], float(asked.get("user") or 0) / 1000)

    def _token(self, n: int, of: int, interval: float) -> None:
        """The next token; each timer starts at the last one, as a model's do."""
        if self._transport.is_closing():
            return
        self._transport.write(piece({"content": f"{WORD}{n} "}))
        if n + 1 < of:
            asyncio.get_running_loop().call_later(interval, self._token, n + 1, of, interval)
        else:
            self._transport.write(piece({}, "stop") + END)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0, backlog=1024)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
