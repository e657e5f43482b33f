"""HTTP to the outside: pooled connections whose resolver is the guard against SSRF.

A target that came through the API may only be a public address (`addresses.py`). The name is resolved once, every
address is checked, and the connection goes to a checked address. No redirects, no proxy variables.
Fails closed: what cannot be judged is refused. Source: docs/security.md.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from yarl import URL

from stentor.core import http1
from stentor.core.addresses import is_public
from stentor.core.errors import InvalidRequest

if TYPE_CHECKING:
    import aiohttp

MOST_JUDGED = 1024
"""Addresses that are remembered as ones that may be called."""


class TargetRefused(OSError):
    """The address is not one that the service may call."""


def _number_like(host: str) -> bool:
    """Whether the system may read a name as an IPv4 address: `2130706433`, `127.1`, `0x7f.1`."""
    last = host.lower().rstrip(".").rpartition(".")[2]
    return last.isdigit() or last.startswith("0x")


class Guard:
    """Resolves names and literal addresses alike; refuses all that the operator has not allowed."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self._allow = {name.lower() for name in allow}

    def allowed(self, host: str, port: int) -> bool:
        return host.lower() in self._allow or f"{host.lower()}:{port}" in self._allow

    async def addresses(self, host: str, port: int) -> list[str]:
        """Where the host may be reached, each address checked. Raises TargetRefused, OSError when there is none."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
        self.judge(host, port, addresses)
        return addresses

    def judge(self, host: str, port: int, addresses: list[str]) -> None:
        """Raises TargetRefused."""
        if not self.allowed(host, port) and not all(map(is_public, addresses)):
            raise TargetRefused(f"{host} is not a public address")


class Outbound:
    """Owns the connections: `session` for all that aiohttp can do, `client` for calls that are made all the time.

    Of the session: `connections` at a time, 0 for any number; names are asked for in the common threads, or in
    `threads` of its own; with `raw` a compressed answer stays as it is, so that a small one cannot become a large one.
    """

    def __init__(self, allow: tuple[str, ...], *, connections: int = 256, threads: int = 0, raw: bool = False) -> None:
        self._guard = Guard(allow)
        self._connections, self._threads, self._raw = connections, threads, raw
        self._session: aiohttp.ClientSession | None = None
        self._client: http1.Client | None = None
        self._judged: set[str] = set()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Not before it is needed: aiohttp takes a fifth of the time of all imports.
            from stentor.core.session import guarded_session

            self._session = guarded_session(self._guard, self._connections, self._threads, raw=self._raw)
        return self._session

    @property
    def client(self) -> http1.Client:
        if self._client is None:
            self._client = http1.Client(self._guard.addresses)
        return self._client

    def check(self, url: str) -> None:
        """Refuse at once what can be judged without resolving. Raises InvalidRequest."""
        if url in self._judged:
            return
        self._check(url)
        if len(self._judged) < MOST_JUDGED:
            self._judged.add(url)

    def _check(self, url: str) -> None:
        try:
            # As the clients read it: to them 127。0。0。1 is a literal address, which is never resolved.
            parts, read = urlsplit(url), URL(url)
            host, port = read.raw_host, read.port
        except ValueError:
            raise InvalidRequest("The endpoint is not a valid URL.") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or not host or not port:
            raise InvalidRequest("The endpoint must be an http or https URL.")
        if parts.username or parts.password or read.user or read.password:
            raise InvalidRequest("The endpoint must not carry credentials.")
        if not self._literal_ok(host, port):
            raise InvalidRequest(
                f"The endpoint's address {host} is not public. The operator can allow it with SERVICE_OUTBOUND_ALLOW."
            )

    def _literal_ok(self, host: str, port: int) -> bool:
        if self._guard.allowed(host, port):
            return True
        try:
            return is_public(host)
        except ValueError:
            return host.lower().rstrip(".") != "localhost" and not _number_like(host)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._client is not None:
            await self._client.close()
