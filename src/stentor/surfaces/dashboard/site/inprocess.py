"""Calls within the gateway's process: past the network and the rate limit, but not past the permissions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.surfaces.dashboard.site.calls import Refused, Reply, decoded
from stentor.web.middleware import PRINCIPAL_SCOPE_KEY

log = logging.getLogger(__name__)
UNKNOWN = {"success": False, "error": "Invalid API key", "message": "The key is not one that this service knows."}


class InProcess:
    """`find` answers who holds a key, None when it is not known or not any more."""

    def __init__(self, app: ASGIApp, find: Callable[[str], Principal | None]) -> None:
        self._app = app
        self._find = find

    async def call(self, key: str, method: str, target: str, body: Any = None) -> Reply:
        principal = self._find(key)
        if principal is None:
            return Reply(401, UNKNOWN)
        exchange = _Exchange(_scope(principal, method, target), body)
        await self._app(exchange.scope, exchange.receive, exchange.collect)
        return Reply(exchange.status, decoded(bytes(exchange.content)), exchange.headers)

    async def stream(self, key: str, target: str, after: str | None = None) -> AsyncIterator[bytes]:
        principal = self._find(key)
        if principal is None:
            raise Refused(Reply(401, UNKNOWN))
        scope = _scope(principal, "GET", target)
        if after:
            scope["headers"].append((b"last-event-id", after.encode("latin-1", "replace")))
        exchange = _Exchange(scope, None)
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue(64)
        running = asyncio.create_task(self._run(exchange, chunks))
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            if exchange.status != 200:
                raise Refused(Reply(exchange.status, decoded(bytes(exchange.content))))
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def known(self, key: str, tenant: str) -> bool:
        principal = self._find(key)
        return principal is not None and principal.tenant == tenant

    async def close(self) -> None:
        """The gateway is another's to stop."""

    async def _run(self, exchange: _Exchange, chunks: asyncio.Queue[bytes | None]) -> None:
        async def send(message: Message) -> None:
            await exchange.collect(message)
            if exchange.status == 200 and (chunk := bytes(exchange.content)):
                exchange.content.clear()
                await chunks.put(chunk)

        try:
            await self._app(exchange.scope, exchange.receive_forever, send)
        except Exception:
            log.exception("a stream of the gateway failed")
        await chunks.put(None)


class _Exchange:
    """One request and what is answered to it."""

    def __init__(self, scope: dict[str, Any], body: Any) -> None:
        self.scope = scope
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content = bytearray()
        self._body = b"" if body is None else jsontext.encode(body)
        if body is not None:
            scope["headers"] += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self._body))]

    async def receive(self) -> Message:
        body, self._body = self._body, b""
        return {"type": "http.request", "body": body, "more_body": False}

    async def receive_forever(self) -> Message:
        """A reader that stays until it is cancelled."""
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def collect(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in message["headers"]}
        else:
            self.content += message.get("body", b"")


def _scope(principal: Principal, method: str, target: str) -> dict[str, Any]:
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": [(b"host", b"stentor"), (b"accept", b"application/json")],
        "server": ("stentor", 80),
        "client": ("127.0.0.1", 0),
        "state": {},
        PRINCIPAL_SCOPE_KEY: principal,
    }
