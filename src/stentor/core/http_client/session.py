"""An aiohttp session that resolves hosts through the SSRF guard.

Apart from `outbound`, so that a process imports aiohttp only when it needs a session.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from stentor.core.http_client.ssrf_guard import SsrfGuard


class ThreadPoolResolver(AbstractResolver):
    """Resolves names in threads of its own, so that a slow name server does not block the shared thread pool."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="stentor-names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        def getaddrinfo() -> list[Any]:
            return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)

        results = await asyncio.get_running_loop().run_in_executor(self._threads, getaddrinfo)
        return [
            ResolveResult(
                hostname=host, host=address[0], port=address[1], family=kind, proto=proto, flags=socket.AI_NUMERICHOST
            )
            for kind, _, proto, _, address in results
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class GuardedResolver(AbstractResolver):
    """Resolves names and rejects addresses that the guard does not allow."""

    def __init__(self, guard: SsrfGuard, threads: int = 0) -> None:
        self._guard = guard
        self._inner: AbstractResolver = ThreadPoolResolver(threads) if threads else ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._inner.resolve(host, port, family)
        self._guard.check_addresses(host, port, [item["host"] for item in results])
        return results

    async def close(self) -> None:
        await self._inner.close()


def _literal_address_check(guard: SsrfGuard) -> aiohttp.TraceConfig:
    """Return a trace hook that checks literal addresses, for which aiohttp calls no resolver."""

    async def check(session: object, context: object, params: aiohttp.TraceRequestStartParams) -> None:
        host, port = params.url.raw_host or "", params.url.port or 0
        with suppress(ValueError):
            ipaddress.ip_address(host.split("%", 1)[0])
            guard.check_addresses(host, port, [host])

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(check)
    return trace


def create_guarded_session(
    guard: SsrfGuard, connections: int, threads: int, *, keep_compressed: bool
) -> aiohttp.ClientSession:
    """Create the session; see `OutboundHttp` for the parameters."""
    resolver = GuardedResolver(guard, threads)
    connector = aiohttp.TCPConnector(resolver=resolver, limit=connections, ttl_dns_cache=0, use_dns_cache=False)
    cookies = aiohttp.DummyCookieJar()
    return aiohttp.ClientSession(
        connector=connector,
        trust_env=False,
        cookie_jar=cookies,
        auto_decompress=not keep_compressed,
        trace_configs=[_literal_address_check(guard)],
    )
