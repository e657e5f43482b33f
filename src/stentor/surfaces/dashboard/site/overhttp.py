"""Calls to a gateway in another process: over HTTP, and counted by its rate limit like any other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from stentor.core import jsontext
from stentor.core.errors import ServiceUnavailable
from stentor.core.http_client.outbound import OutboundHttp
from stentor.surfaces.dashboard.site.calls import Refused, Reply, decoded
from stentor.surfaces.dashboard.site.calls import target as target_of

NO_GATEWAY = "No gateway runs on this data folder. Start `stentor serve`, or set SERVICE_URL."
SILENT = "The gateway cannot be reached. Nothing is known of work that it may have taken."
CONNECT_SECONDS, ANSWER_SECONDS, SILENCE_SECONDS = 5, 30, 45
FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


class OverHttp:
    """`find` answers the gateway's address now, None without one: it may come and go."""

    def __init__(self, find: Callable[[], str | None]) -> None:
        self._find = find
        self._clients: dict[str, OutboundHttp] = {}

    async def call(self, key: str, method: str, target: str, body: Any = None) -> Reply:
        timeout = aiohttp.ClientTimeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        content = None if body is None else jsontext.encode(body)
        headers = {"X-API-Key": key} | ({"Content-Type": "application/json"} if content else {})
        url, session = self._at(target)
        try:
            async with session.request(
                method, url, data=content, headers=headers, allow_redirects=False, timeout=timeout
            ) as answer:
                read = await answer.read()
                kept = {name.lower(): value for name, value in answer.headers.items()}
                return Reply(answer.status, decoded(read), kept)
        except FAILURES as error:
            raise ServiceUnavailable(SILENT) from error

    async def stream(self, key: str, target: str, after: str | None = None) -> AsyncIterator[bytes]:
        timeout = aiohttp.ClientTimeout(None, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        headers = {"X-API-Key": key} | ({"Last-Event-ID": after} if after else {})
        url, session = self._at(target)
        try:
            async with session.get(url, headers=headers, allow_redirects=False, timeout=timeout) as answer:
                if answer.status != 200:
                    raise Refused(Reply(answer.status, decoded(await answer.read())))
                async for chunk in answer.content.iter_any():
                    yield chunk
        except FAILURES as error:
            raise ServiceUnavailable(SILENT) from error

    async def known(self, key: str, tenant: str) -> bool:
        try:
            reply = await self.call(key, "GET", target_of("/whoami"))
        except ServiceUnavailable:
            return True
        if reply.status == 200 and isinstance(reply.data, dict):
            return bool(reply.data.get("tenant") == tenant)
        return reply.status != 401

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _at(self, target: str) -> tuple[URL, aiohttp.ClientSession]:
        """Encoded already, so that an encoded slash of an id stays one; the operator's address may be private."""
        address = self._find()
        if address is None:
            raise ServiceUnavailable(NO_GATEWAY)
        host = urlsplit(address).hostname or ""
        client = self._clients.setdefault(host, OutboundHttp((host,)))
        return URL(address.rstrip("/") + target, encoded=True), client.session
