"""A scripted server that speaks the three formats, with moods: what it says and how badly it behaves is the test's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Mood = Callable[[web.Request], Awaitable[web.StreamResponse]]
WORDS = ["The sea ", "is salty."]
ANSWER = "".join(WORDS)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
VECTOR = [0.5, -0.25, 0.125]


@dataclass
class Upstream:
    """`calls` holds what came. `mood`, when set, answers instead of the format; `say` changes what it says."""

    port: int = 0
    mood: Mood | None = None
    """Of all but the lists of models, for which a service asks when it will."""
    list_mood: Mood | None = None
    words: list[str] = field(default_factory=lambda: list(WORDS))
    reasoning: str = ""
    finish: str = "stop"
    refuses: bool = False
    """Whether it says its words as a refusal, in OpenAI's format."""
    usage: bool = True
    tool: dict[str, Any] | None = None
    more_tools: list[dict[str, Any]] = field(default_factory=list)
    """Called in the same turn as `tool`."""
    talking: bool = False
    """Whether it says its words before it calls."""
    models: list[str] = field(default_factory=lambda: ["sea-large", "sea-small"])
    calls: list[dict[str, Any]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first call that is more than a question for the list of models."""
    broken_off: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """A stream waits for it after its first word, when `halting`."""
    halting: bool = False

    def __post_init__(self) -> None:
        self.go.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    @property
    def called(self) -> list[dict[str, Any]]:
        """The tools that it calls in one turn."""
        return [self.tool, *self.more_tools] if self.tool else []

    @property
    def said(self) -> list[str]:
        return [] if self.tool and not self.talking else self.words

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What came but for lists of models."""
        return [call for call in self.calls if call["method"] == "POST"]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read()) if request.can_read_body else None
        self.calls.append(
            {
                "method": request.method,
                "path": request.path,
                "query": dict(request.query),
                "headers": {name.lower(): value for name, value in request.headers.items()},
                "body": body,
            }
        )
        if request.method == "POST":  # lists of models are asked for at any time
            self.arrived.set()
        try:
            if mood := self.mood if request.method == "POST" else self.list_mood:
                return await mood(request)
            return await self.answer(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.broken_off.set()
            raise

    async def answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        path = request.path
        if path == "/v1/models" and "anthropic-version" in request.headers:
            found = [
                {"type": "model", "id": m, "display_name": m, "created_at": "2026-01-01T00:00:00Z"} for m in self.models
            ]
            return web.json_response({"data": found, "has_more": False, "first_id": None, "last_id": None})
        if path.endswith("/v1/models"):
            rows = [{"id": m, "object": "model", "created": 1, "owned_by": "sea"} for m in self.models]
            return web.json_response({"object": "list", "data": rows})
        if path == "/v1beta/models":
            return web.json_response({"models": [{"name": f"models/{m}"} for m in self.models]})
        if path.endswith("/chat/completions"):
            return await self.openai(request, body)
        if path.endswith("/embeddings"):
            return self.openai_embeddings(body)
        if path.endswith("/v1/messages"):
            return await self.anthropic(request, body)
        if ":" in path and path.startswith("/v1beta/models/"):
            return await self.gemini(request, body, path.rpartition(":")[2])
        return web.json_response({"error": {"message": "no such path"}}, status=404)

    # OpenAI

    async def openai(self, request: web.Request, body: Any) -> web.StreamResponse:
        head = {"id": "chatcmpl-up-1", "created": 1, "model": body["model"]}
        calls: list[dict[str, Any]] = [
            {"id": f"call_{at}", "type": "function", "function": self._function(tool)}
            for at, tool in enumerate(self.called, 1)
        ]
        finish = "tool_calls" if self.tool else self.finish
        count = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        if not body.get("stream"):
            said = "".join(self.said) or None
            message = {"role": "assistant", "content": said, "refusal": None}
            if self.refuses:
                message |= {"content": None, "refusal": said}
            message |= ({"tool_calls": calls} if calls else {}) | self._thinking("reasoning_content")
            choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
            answer = {**head, "object": "chat.completion", "choices": [choice]} | (
                {"usage": count} if self.usage else {}
            )
            return web.json_response(answer)

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return sse({**head, "object": "chat.completion.chunk", "choices": [choice]})

        parts = [chunk({"role": "assistant", "content": ""})]
        parts += [chunk(self._thinking("reasoning_content"))] if self.reasoning else []
        parts += [chunk({"refusal" if self.refuses else "content": word}) for word in self.said]
        for at, call in enumerate(calls):
            function = call["function"]
            begun = {**function, "arguments": function["arguments"][:5]}
            parts.append(chunk({"tool_calls": [{**call, "index": at, "function": begun}]}))
            parts.append(chunk({"tool_calls": [{"index": at, "function": {"arguments": function["arguments"][5:]}}]}))
        parts.append(chunk({}, finish))
        if self.usage and (body.get("stream_options") or {}).get("include_usage"):
            parts.append(sse({**head, "object": "chat.completion.chunk", "choices": [], "usage": count}))
        return await self.stream(request, [*parts, b"data: [DONE]\n\n"])

    def openai_embeddings(self, body: Any) -> web.StreamResponse:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        rows = [{"object": "embedding", "index": at, "embedding": [v + at for v in VECTOR]} for at in range(len(texts))]
        count = {"usage": {"prompt_tokens": 5, "total_tokens": 5}} if self.usage else {}
        return web.json_response({"object": "list", "data": rows[::-1], "model": body["model"], **count})

    # Anthropic

    async def anthropic(self, request: web.Request, body: Any) -> web.StreamResponse:
        count = {"input_tokens": 11, "output_tokens": 7}
        stop = "tool_use" if self.tool else {"stop": "end_turn", "length": "max_tokens"}[self.finish]
        head: dict[str, Any] = {"id": "msg_up_1", "type": "message", "role": "assistant", "model": body["model"]}
        blocks: list[dict[str, Any]] = []
        if self.reasoning:
            blocks.append({"type": "thinking", "thinking": self.reasoning, "signature": "sig"})
        if self.said:
            blocks.append({"type": "text", "text": "".join(self.said)})
        for at, tool in enumerate(self.called, 1):
            blocks.append({"type": "tool_use", "id": f"toolu_{at}", "name": tool["name"], "input": tool["args"]})
        if not body.get("stream"):
            return web.json_response(
                {**head, "content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": count}
            )
        start = {
            **head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**count, "output_tokens": 1},
        }
        parts = [named({"type": "message_start", "message": start}), named({"type": "ping"})]
        for at, block in enumerate(blocks):
            parts += self._anthropic_block(at, block)
        delta = {"stop_reason": stop, "stop_sequence": None}
        parts += [named({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}})]
        return await self.stream(request, [*parts, named({"type": "message_stop"})])

    def _anthropic_block(self, at: int, block: dict[str, Any]) -> list[bytes]:
        if block["type"] == "tool_use":
            empty, text = {**block, "input": {}}, json.dumps(block["input"]) if block["input"] else ""
            pieces = [{"type": "input_json_delta", "partial_json": part} for part in ("", text[:4], text[4:])]
        elif block["type"] == "thinking":
            empty, pieces = {**block, "thinking": ""}, [{"type": "thinking_delta", "thinking": block["thinking"]}]
        else:
            empty, pieces = {**block, "text": ""}, [{"type": "text_delta", "text": word} for word in self.words]
        return [
            named({"type": "content_block_start", "index": at, "content_block": empty}),
            *(named({"type": "content_block_delta", "index": at, "delta": piece}) for piece in pieces),
            named({"type": "content_block_stop", "index": at}),
        ]

    # Gemini

    async def gemini(self, request: web.Request, body: Any, verb: str) -> web.StreamResponse:
        if verb == "batchEmbedContents":
            rows = [{"values": [v + at for v in VECTOR]} for at in range(len(body["requests"]))]
            return web.json_response({"embeddings": rows})
        count = {"promptTokenCount": 11, "candidatesTokenCount": 5, "thoughtsTokenCount": 2, "totalTokenCount": 18}
        thoughts: list[dict[str, Any]] = [{"text": self.reasoning, "thought": True}] if self.reasoning else []
        said: list[dict[str, Any]] = [{"text": word} for word in self.said]
        calls = [{"functionCall": {"name": tool["name"], "args": tool["args"]}} for tool in self.called]
        said += [{**call, "thoughtSignature": "c2lnbmVk"} for call in calls[:1]] + calls[1:]
        stop = {"stop": "STOP", "length": "MAX_TOKENS"}[self.finish]

        def part(parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
            content = {"role": "model", "parts": parts} if parts else {"role": "model"}
            candidate = {"content": content, "index": 0} | ({"finishReason": finish} if finish else {})
            answer = {"candidates": [candidate], "modelVersion": "sea", "responseId": "gem-up-1"}
            return answer | ({"usageMetadata": count} if self.usage else {})

        if verb == "generateContent":
            return web.json_response(part(thoughts + said, stop))
        parts = [sse(part([one])) for one in thoughts + said]
        return await self.stream(request, [*parts, sse(part([], stop))])

    def _function(self, tool: dict[str, Any]) -> dict[str, str]:
        return {"name": tool["name"], "arguments": json.dumps(tool["args"], ensure_ascii=False)}

    def _thinking(self, name: str) -> dict[str, Any]:
        return {name: self.reasoning} if self.reasoning else {}

    async def stream(self, request: web.Request, parts: list[bytes]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for at, part in enumerate(parts):
            if self.halting and at == 2:
                await self.go.wait()
            await answer.write(part)
            await asyncio.sleep(0)
        return answer


def sse(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def named(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\n".encode() + sse(data)


@asynccontextmanager
async def serving(**fields: Any) -> AsyncIterator[Upstream]:
    """The server on a free port; a handler is cancelled when its caller leaves."""
    upstream = Upstream(**fields)
    app = web.Application(client_max_size=50_000_000)
    app.router.add_route("*", "/{rest:.*}", upstream.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    upstream.port = runner.addresses[0][1]
    try:
        yield upstream
    finally:
        await runner.cleanup()


# Moods


def status(code: int, body: Any = None, **headers: str) -> Mood:
    """Answers with this status and an error in OpenAI's form."""

    async def answer(request: web.Request) -> web.StreamResponse:
        told = {"error": {"message": "as scripted", "type": "scripted"}} if body is None else body
        return web.json_response(told, status=code, headers=headers)

    return answer


def raw(content: bytes, kind: str = "application/json", code: int = 200) -> Mood:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=content, status=code, headers={"Content-Type": kind})

    return answer


def first(mood: Mood, then: Mood | None, upstream: Upstream) -> Mood:
    """This mood for one call, then another."""

    async def answer(request: web.Request) -> web.StreamResponse:
        upstream.mood = then
        return await mood(request)

    return answer


def held(upstream: Upstream) -> Mood:
    """The answer of the format, once the test lets it go."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await upstream.go.wait()
        return await upstream.answer(request, json.loads(await request.read()))

    return answer


def redirecting(to: str) -> Mood:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": to})

    return answer


async def silent(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(600)
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    """100 MB of JSON text."""
    answer = web.StreamResponse(headers={"Content-Type": "application/json"})
    await answer.prepare(request)
    await answer.write(b'{"choices": "')
    for _ in range(100):
        await answer.write(b"x" * 1_000_000)
    await answer.write(b'"}')
    return answer


async def stopping(request: web.Request) -> web.StreamResponse:
    """A stream that ends in the middle, as if all were well."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(sse({"id": "x", "choices": [{"index": 0, "delta": {"content": "The sea "}}]}))
    return answer


async def hanging_up(request: web.Request) -> web.StreamResponse:
    """A stream whose connection is cut in the middle."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(sse({"id": "x", "choices": [{"index": 0, "delta": {"content": "The sea "}}]}))
    assert request.transport is not None
    request.transport.abort()
    return answer


async def dead(request: web.Request) -> web.StreamResponse:
    """Hangs up without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
