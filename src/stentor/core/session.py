"""aiohttp's session with the guard as its resolver."""

from __future__ import annotations

import socket

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from stentor.core.outbound import Guard


class GuardedResolver(AbstractResolver):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        self._guard.judge(host, port, [item["host"] for item in found])
        return found

    async def close(self) -> None:
        await self._inner.close()


def guarded_session(guard: Guard) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(resolver=GuardedResolver(guard), limit=256, ttl_dns_cache=0, use_dns_cache=False)
    return aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
