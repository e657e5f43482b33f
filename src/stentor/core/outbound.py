"""HTTP to the outside: one pooled session whose resolver is the guard against SSRF.

A target that came through the API may only be a global address. The name is resolved once, every
address is checked, and the connection goes to a checked address. No redirects, no proxy variables.
Fails closed: what cannot be judged is refused. Source: docs/security.md.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from stentor.core.errors import InvalidRequest

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""All that IANA has given out of IPv6; NAT64, IPv4-compatible and local ranges lie outside."""


class TargetRefused(OSError):
    """The address is not one that the service may call."""


def is_global(address: str) -> bool:
    """Whether an address is on the public internet, seen through IPv4-mapped and tunnelled forms."""
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_global(str(ip.ipv4_mapped))
        if ip not in _GLOBAL_UNICAST or ip.sixtofour is not None or ip.teredo is not None:
            return False
    return ip.is_global and not ip.is_multicast


def _number_like(host: str) -> bool:
    """Whether the system may read a name as an IPv4 address: `2130706433`, `127.1`, `0x7f.1`."""
    last = host.lower().rstrip(".").rpartition(".")[2]
    return last.isdigit() or last.startswith("0x")


class OwnThreads(AbstractResolver):
    """Asks the system in threads of its own: a name that hangs holds up nobody who uses the common ones."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="stentor-names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        def ask() -> list[Any]:
            return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)

        found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        return [
            ResolveResult(
                hostname=host, host=address[0], port=address[1], family=kind, proto=proto, flags=socket.AI_NUMERICHOST
            )
            for kind, _, proto, _, address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class GuardedResolver(AbstractResolver):
    """Resolves names and literal addresses alike; refuses all that the operator has not allowed."""

    def __init__(self, allow: tuple[str, ...], threads: int = 0) -> None:
        self._allow = set(allow)
        self._inner: AbstractResolver = OwnThreads(threads) if threads else ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if not self.allowed(host, port):
            for item in found:
                if not is_global(item["host"]):
                    raise TargetRefused(f"{host} is not a public address")
        return found

    def allowed(self, host: str, port: int) -> bool:
        return host.lower() in self._allow or f"{host.lower()}:{port}" in self._allow

    async def close(self) -> None:
        await self._inner.close()


class Outbound:
    """Owns the session, which is opened at its first use. `connections` at a time, 0 for any number; names
    are asked for in the common threads, or in `threads` of its own; with `raw` a compressed answer is left as it is,
    so that a small one cannot become a large one."""

    def __init__(self, allow: tuple[str, ...], *, connections: int = 256, threads: int = 0, raw: bool = False) -> None:
        self._resolver_allow = allow
        self._connections = connections
        self._threads = threads
        self._raw = raw
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=GuardedResolver(self._resolver_allow, self._threads),
                limit=self._connections,
                ttl_dns_cache=0,
                use_dns_cache=False,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=not self._raw,
            )
        return self._session

    def check(self, url: str) -> None:
        """Refuse at once what can be judged without resolving. Raises InvalidRequest."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise InvalidRequest("The endpoint is not a valid URL.") from None
        if parts.scheme not in {"http", "https"} or not host:
            raise InvalidRequest("The endpoint must be an http or https URL.")
        if parts.username or parts.password:
            raise InvalidRequest("The endpoint must not carry credentials.")
        if not self._literal_ok(host, port):
            raise InvalidRequest(
                f"The endpoint's address {host} is not public. The operator can allow it with SERVICE_OUTBOUND_ALLOW."
            )

    def _literal_ok(self, host: str, port: int) -> bool:
        if host.lower() in self._resolver_allow or f"{host.lower()}:{port}" in self._resolver_allow:
            return True
        try:
            return is_global(host)
        except ValueError:
            return host.lower().rstrip(".") != "localhost" and not _number_like(host)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
