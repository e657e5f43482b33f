"""A small real HTTP agent on loopback, for the tests of the http runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Endpoint:
    """Answers with its handler; `calls` holds what came: path, headers, body."""

    handler: Handler
    port: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    broken_off: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/do"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.calls.append({"path": request.path, "headers": dict(request.headers), "body": body})
        self.arrived.set()
        try:
            return await self.handler(request)
        except asyncio.CancelledError:
            self.broken_off.set()
            raise


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Endpoint]:
    """The endpoint on a free port; a handler is cancelled when its caller leaves."""
    endpoint = Endpoint(handler)
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", endpoint.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.port = runner.addresses[0][1]
    try:
        yield endpoint
    finally:
        await runner.cleanup()


def answering(body: Any, status: int = 200, **headers: str) -> Handler:
    """A handler that answers this JSON."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return handle


def streaming(*parts: bytes, kind: str = "text/event-stream", after: asyncio.Event | None = None) -> Handler:
    """A handler that answers part by part, an event stream unless told otherwise, once `after` is set."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": kind})
        await answer.prepare(request)
        if after is not None:
            await after.wait()
        for part in parts:
            await answer.write(part)
            await asyncio.sleep(0)
        return answer

    return handle


async def hanging(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(600)
    return web.json_response({"result": "too late"})
