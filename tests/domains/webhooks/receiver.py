"""A webhook receiver whose responses and faults the test chooses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from standardwebhooks import Webhook

from tests.patience import soon

Behavior = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Call:
    """One received delivery."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def payload(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    @property
    def event(self) -> str:
        return str(self.payload["event"])

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verify(self, secret: str) -> dict[str, Any]:
        """Verify the signature with the official library and return the payload. Raises WebhookVerificationError."""
        return dict(Webhook(secret).verify(self.body, self.headers))


@dataclass
class Receiver:
    """Responds with `statuses` in turn, then 200; a `behavior` handles requests instead."""

    port: int = 0
    calls: list[Call] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    behavior: Behavior | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.calls.append(Call(request.path, headers, await request.read()))
        if self.behavior is not None:
            return await self.behavior(request)
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200, text="thanks")

    async def wait_for_calls(self, count: int) -> list[Call]:
        """Wait until `count` deliveries were received; return all of them."""
        await soon(lambda: len(self.calls) >= count)
        return self.calls

    @property
    def events(self) -> list[str]:
        return [call.event for call in self.calls]


@asynccontextmanager
async def receiving(port: int = 0) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application(client_max_size=50_000_000)
    app.router.add_route("*", "/{tail:.*}", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    receiver.port = runner.addresses[0][1]
    yield receiver
    await runner.cleanup()
