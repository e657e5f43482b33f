"""HTTP/1.1 for calls that are made all the time: kept connections, one request at a time on each, no redirects.

A general client costs more per call than all the rest of a gateway; this one does what a call to a provider needs.
Names are resolved by the guard, and the connection goes to a checked address. Source: docs/decisions, 0014.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from yarl import URL

from stentor.core.deadlines import Deadlines, of
from stentor.core.http1.connection import Answer, BrokenOff, Connection, Place, TooLarge
from stentor.core.http1.slots import Slots

__all__ = ["Answer", "BrokenOff", "Client", "NotConnected", "Request", "TooLarge"]
KEPT = 15.0
"""Seconds that a connection is kept without a request."""
MOST = 512
"""Connections at a time; a tenant alone may have half of them."""


class NotConnected(Exception):
    """No connection could be made, so nothing was sent."""


class Request(NamedTuple):
    """`headers` without Host and Content-Length, which are added.

    A connection is used again only for the same `tenant` and `credential`, so that what a server answers out of turn
    reaches nobody else. Neither is sent.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    tenant: str = ""
    credential: str = ""


Resolve = Callable[[str, int], Awaitable[list[str]]]


class Client:
    """`resolve` answers the addresses that a host may be reached at, or raises. Used on one event loop."""

    def __init__(self, resolve: Resolve, most: int = MOST) -> None:
        self._resolve = resolve
        self._idle: dict[Place, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._slots = Slots(most)
        self._context: ssl.SSLContext | None = None
        self._deadlines: Deadlines | None = None

    async def send(self, request: Request, connect: float, total: float | None = None) -> Answer:
        """The answer as soon as its head is there. In seconds, `connect` is for a connection, `total` for all of it.

        Raises NotConnected, BrokenOff, TimeoutError, ValueError for what cannot be sent, and what `resolve` raises.
        """
        place, data = _written(request)
        place = place._replace(tenant=request.tenant, credential=request.credential)
        deadlines = self._deadlines = self._deadlines or of(asyncio.get_running_loop())
        began = deadlines.loop.time()
        connection = self._kept(place, began)
        if connection is None:
            async with asyncio.timeout(total):
                connection = await self._connected(place, connect)
        answer = connection.send(data, deadlines)
        if total is not None:
            answer.limit(began + total - deadlines.loop.time())
        try:
            await answer.head()
        except BaseException:
            answer.close()
            raise
        return answer

    async def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # connections learn of their end in the loop's next round

    def _kept(self, place: Place, now: float) -> Connection | None:
        idle = self._idle.get(place)
        while idle:
            connection = idle.pop()
            if connection.since > now - KEPT and connection.is_quiet():
                return connection
            connection.abort()
        return None

    async def _connected(self, place: Place, seconds: float) -> Connection:
        if self._slots.would_wait(place.tenant):
            self._make_room(place.tenant)
        await self._slots.acquire(place.tenant)
        try:
            made = await self._dialled(place, seconds)
        except BaseException:
            self._slots.release(place.tenant)
            raise
        self._open.add(made)
        return made

    async def _dialled(self, place: Place, seconds: float) -> Connection:
        """Through the first of the addresses that takes the connection; each has its share of the time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._resolve(place.host, place.port)
        except TimeoutError:
            raise NotConnected("in time") from None
        tls, name = (self._tls(), place.host) if place.tls else (None, None)
        problem = ""
        for address in addresses:
            try:
                async with asyncio.timeout(seconds / len(addresses)):
                    _, made = await loop.create_connection(
                        partial(Connection, place, self._free, self._gone),
                        address,
                        place.port,
                        ssl=tls,
                        server_hostname=name,
                    )
                return made
            except TimeoutError:
                problem = "in time"
            except OSError:
                problem = ""
        raise NotConnected(problem)

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context

    def _free(self, connection: Connection) -> None:
        if self._slots.has_waiting:
            connection.abort()  # somebody waits for a place, perhaps to go elsewhere
            return
        assert self._deadlines is not None
        connection.since = self._deadlines.loop.time()
        self._idle.setdefault(connection.place, []).append(connection)

    def _gone(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._slots.release(connection.place.tenant)
        idle = self._idle.get(connection.place)
        if idle is not None:
            if connection in idle:
                idle.remove(connection)
            if not idle:  # places are as many as tenants and credentials, which come and go
                del self._idle[connection.place]

    def _make_room(self, tenant: str) -> None:
        """Close connections that nobody uses, first the tenant's own."""
        unused = [connection for idle in self._idle.values() for connection in idle]
        unused.sort(key=lambda connection: connection.place.tenant != tenant)
        for connection in unused[: self._slots.missing(tenant)]:
            connection.abort()


def _written(request: Request) -> tuple[Place, bytes]:
    """Raises ValueError for an address or a header that cannot be sent."""
    place, authority, target = _of_url(request.url)
    lines = [f"{request.method} {target} HTTP/1.1", f"Host: {authority}"]
    for name, value in request.headers.items():
        if not value.isprintable():
            raise ValueError("A header has a character that cannot be sent.")
        lines.append(f"{name}: {value}")
    lines.append(f"Content-Length: {len(request.body)}\r\n\r\n" if request.body else "\r\n")
    return place, "\r\n".join(lines).encode() + request.body


@lru_cache(1024)
def _of_url(url: str) -> tuple[Place, str, str]:
    """The place, the value of Host, and the target with what is not allowed in it encoded."""
    parsed = URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.raw_host or not parsed.port:
        raise ValueError("The address is not an http or https URL.")
    return Place(parsed.raw_host, parsed.port, parsed.scheme == "https"), _authority(parsed), parsed.raw_path_qs


def _authority(parsed: URL) -> str:
    host = f"[{parsed.raw_host}]" if ":" in str(parsed.raw_host) else str(parsed.raw_host)
    return host if parsed.is_default_port() else f"{host}:{parsed.port}"
