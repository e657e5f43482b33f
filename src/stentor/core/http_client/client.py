"""HTTP/1.1 for calls that are made all the time: kept connections, one request at a time on each, no redirects.

A general client costs more per call than all the rest of a gateway; this one does what a call to a provider needs.
Names are resolved by the guard, and the connection goes to a checked address. Source: docs/decisions, 0014.

Places for connections, shared so that no tenant can take them all.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from yarl import URL

from stentor.core.http_client.connection import (
    ClientConnection,
    ClientResponse,
    ConnectionKey,
    RemoteProtocolError,
    ResponseTooLarge,
)
from stentor.core.timers import CoarseTimers, coarse_timers

__all__ = ["ClientRequest", "ClientResponse", "ConnectError", "HttpClient", "RemoteProtocolError", "ResponseTooLarge"]


IDLE_SECONDS = 15.0
"""Seconds that a connection is kept without a request."""
MAX_CONNECTIONS = 512
"""Connections at a time; a tenant alone may have half of them."""


class ConnectError(Exception):
    """No connection could be made, so nothing was sent."""


class ClientRequest(NamedTuple):
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


ResolveHost = Callable[[str, int], Awaitable[list[str]]]


class HttpClient:
    """`resolve` answers the addresses that a host may be reached at, or raises. Used on one event loop."""

    def __init__(self, resolve: ResolveHost, max_connections: int = MAX_CONNECTIONS) -> None:
        self._resolve = resolve
        self._idle: dict[ConnectionKey, list[ClientConnection]] = {}
        self._open: set[ClientConnection] = set()
        self._slots = ConnectionSlots(max_connections)
        self._context: ssl.SSLContext | None = None
        self._deadlines: CoarseTimers | None = None

    async def send(
        self, request: ClientRequest, connect_timeout: float, total_timeout: float | None = None
    ) -> ClientResponse:
        """The answer as soon as its head is there. In seconds, `connect` is for a connection, `total` for all of it.

        Raises NotConnected, BrokenOff, TimeoutError, ValueError for what cannot be sent, and what `resolve` raises.
        """
        place, data = _written(request)
        place = place._replace(tenant=request.tenant, credential=request.credential)
        deadlines = self._deadlines = self._deadlines or coarse_timers(asyncio.get_running_loop())
        began = deadlines.loop.time()
        connection = self._kept(place, began)
        if connection is None:
            async with asyncio.timeout(total_timeout):
                connection = await self._connected(place, connect_timeout)
        answer = connection.send(data, deadlines)
        if total_timeout is not None:
            answer.set_timeout(began + total_timeout - deadlines.loop.time())
        try:
            await answer.read_head()
        except BaseException:
            answer.close()
            raise
        return answer

    async def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # connections learn of their end in the loop's next round

    def _kept(self, place: ConnectionKey, now: float) -> ClientConnection | None:
        idle = self._idle.get(place)
        while idle:
            connection = idle.pop()
            if connection.idle_since > now - IDLE_SECONDS and connection.is_reusable():
                return connection
            connection.abort()
        return None

    async def _connected(self, place: ConnectionKey, seconds: float) -> ClientConnection:
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

    async def _dialled(self, place: ConnectionKey, seconds: float) -> ClientConnection:
        """Through the first of the addresses that takes the connection; each has its share of the time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._resolve(place.host, place.port)
        except TimeoutError:
            raise ConnectError("in time") from None
        tls, name = (self._tls(), place.host) if place.tls else (None, None)
        problem = ""
        for address in addresses:
            try:
                async with asyncio.timeout(seconds / len(addresses)):
                    _, made = await loop.create_connection(
                        partial(ClientConnection, place, self._free, self._gone),
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
        raise ConnectError(problem)

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context

    def _free(self, connection: ClientConnection) -> None:
        if self._slots.has_waiting:
            connection.abort()  # somebody waits for a place, perhaps to go elsewhere
            return
        assert self._deadlines is not None
        connection.idle_since = self._deadlines.loop.time()
        self._idle.setdefault(connection.key, []).append(connection)

    def _gone(self, connection: ClientConnection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._slots.release(connection.key.tenant)
        idle = self._idle.get(connection.key)
        if idle is not None:
            if connection in idle:
                idle.remove(connection)
            if not idle:  # places are as many as tenants and credentials, which come and go
                del self._idle[connection.key]

    def _make_room(self, tenant: str) -> None:
        """Close connections that nobody uses, first the tenant's own."""
        unused = [connection for idle in self._idle.values() for connection in idle]
        unused.sort(key=lambda connection: connection.key.tenant != tenant)
        for connection in unused[: self._slots.shortfall(tenant)]:
            connection.abort()


def _written(request: ClientRequest) -> tuple[ConnectionKey, bytes]:
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
def _of_url(url: str) -> tuple[ConnectionKey, str, str]:
    """The place, the value of Host, and the target with what is not allowed in it encoded."""
    parsed = URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.raw_host or not parsed.port:
        raise ValueError("The address is not an http or https URL.")
    return ConnectionKey(parsed.raw_host, parsed.port, parsed.scheme == "https"), _authority(parsed), parsed.raw_path_qs


def _authority(parsed: URL) -> str:
    host = f"[{parsed.raw_host}]" if ":" in str(parsed.raw_host) else str(parsed.raw_host)
    return host if parsed.is_default_port() else f"{host}:{parsed.port}"


class ConnectionSlots:
    """`most` places. A tenant may take one while it has fewer than are free: alone it gets half of all, two get a
    third each, and there is always a place left for one who has none. Used on one event loop.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._used: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def would_wait(self, tenant: str) -> bool:
        return self._used[tenant] >= self._free or any(tenant == other for other, _ in self._waiting)

    def shortfall(self, tenant: str) -> int:
        """How many places of others would have to become free for one of this tenant."""
        return max(0, self._used[tenant] - self._free + 1)

    async def acquire(self, tenant: str) -> None:
        """In the order in which the callers of a tenant came."""
        if not self.would_wait(tenant):
            self._take(tenant)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((tenant, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(tenant)
            else:
                self._waiting.remove((tenant, turn))
            raise

    def release(self, tenant: str) -> None:
        self._free += 1
        self._used[tenant] -= 1
        if not self._used[tenant]:
            del self._used[tenant]
        for waiting in list(self._waiting):
            if self._used[waiting[0]] < self._free:
                self._waiting.remove(waiting)
                if not waiting[1].done():
                    self._take(waiting[0])
                    waiting[1].set_result(None)

    def _take(self, tenant: str) -> None:
        self._free -= 1
        self._used[tenant] += 1
