"""A small HTTP/1.1 client for frequent calls, such as those to LLM providers: keep-alive, no pipelining, no redirects.

A general client costs more per call than the rest of the gateway's work; for everything else there is aiohttp, see
`session`. The guard of `outbound` resolves the host, and the connection goes to a checked address. `connection` has one
connection and its response. Source: docs/decisions, 0014.
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
"""Seconds after which an idle connection is closed."""
MAX_CONNECTIONS = 512
"""Maximum number of open connections; one tenant can have half of them."""


class ConnectError(Exception):
    """No connection could be opened, so nothing was sent and a retry is safe."""


class ClientRequest(NamedTuple):
    """A request; Host and Content-Length are added to `headers`.

    A connection is reused only for the same `tenant` and `credential`, so that a response that arrives out of order
    cannot reach another tenant. Neither of the two is sent. `on_sent` is called as soon as there is a connection.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    tenant: str = ""
    credential: str = ""
    on_sent: Callable[[], None] | None = None


ResolveHost = Callable[[str, int], Awaitable[list[str]]]


class HttpClient:
    """A client with a connection pool, for one event loop.

    `resolve` returns the addresses of a host to which a connection is allowed, or raises.
    """

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
        """Send a request and return the response as soon as its head has arrived.

        `connect_timeout` limits opening a connection, `total_timeout` everything until the end of the body (seconds).
        Raises ConnectError, RemoteProtocolError, TimeoutError, ValueError for an invalid request, and the errors of
        `resolve`.
        """
        key, data = _encode_request(request)
        deadlines = self._deadlines = self._deadlines or coarse_timers(asyncio.get_running_loop())
        started_at = deadlines.loop.time()
        connection = self._take_idle(key, started_at)
        if connection is None:
            async with asyncio.timeout(total_timeout):
                connection = await self._open_connection(key, connect_timeout)
        response = connection.send(data, deadlines)
        if request.on_sent is not None:
            request.on_sent()
        if total_timeout is not None:
            response.set_timeout(started_at + total_timeout - deadlines.loop.time())
        try:
            await response.read_head()
        except BaseException:
            # After a cancellation too: the rest of this response would be read as the next one's.
            response.close()
            raise
        return response

    async def close(self) -> None:
        """Abort all connections."""
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # `connection_lost` is called in the loop's next round

    def _take_idle(self, key: ConnectionKey, now: float) -> ClientConnection | None:
        idle = self._idle.get(key)
        while idle:
            # The most recently used one, which the server is least likely to have closed.
            connection = idle.pop()
            if connection.idle_since > now - IDLE_SECONDS and connection.is_reusable():
                return connection
            connection.abort()
        return None

    async def _open_connection(self, key: ConnectionKey, timeout_s: float) -> ClientConnection:
        if self._slots.would_wait(key.tenant):
            self._close_idle(key.tenant)
        await self._slots.acquire(key.tenant)
        try:
            connection = await self._connect(key, timeout_s)
        except BaseException:
            self._slots.release(key.tenant)
            raise
        self._open.add(connection)
        return connection

    async def _connect(self, key: ConnectionKey, timeout_s: float) -> ClientConnection:
        """Connect to the first address that accepts; each address gets an equal share of the time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                addresses = await self._resolve(key.host, key.port)
        except TimeoutError:
            raise ConnectError("in time") from None
        tls, server_name = (self._tls(), key.host) if key.tls else (None, None)
        problem = ""
        # A host with several addresses may have one that does not respond, such as IPv6 without a route.
        for address in addresses:
            try:
                async with asyncio.timeout(timeout_s / len(addresses)):
                    _, connection = await loop.create_connection(
                        partial(ClientConnection, key, self._on_free, self._on_lost),
                        address,
                        key.port,
                        ssl=tls,
                        server_hostname=server_name,
                    )
                return connection
            except TimeoutError:
                problem = "in time"
            except OSError:
                problem = ""
        raise ConnectError(problem)

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
            # Not HTTP/2, which this client does not speak.
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context

    def _on_free(self, connection: ClientConnection) -> None:
        if self._slots.has_waiting:
            connection.abort()  # a waiting request needs the slot, possibly for another host
            return
        assert self._deadlines is not None
        connection.idle_since = self._deadlines.loop.time()
        self._idle.setdefault(connection.key, []).append(connection)

    def _on_lost(self, connection: ClientConnection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._slots.release(connection.key.tenant)
        idle = self._idle.get(connection.key)
        if idle is not None:
            if connection in idle:
                idle.remove(connection)
            if not idle:  # otherwise the dictionary grows with every credential that was ever used
                del self._idle[connection.key]

    def _close_idle(self, tenant: str) -> None:
        """Close as many idle connections as the tenant needs for one more slot, its own first."""
        connections = [connection for idle in self._idle.values() for connection in idle]
        # First those that were closed just now: their slots become free in the loop's next round.
        connections.sort(key=lambda connection: (connection.is_open, connection.key.tenant != tenant))
        shortfall = self._slots.shortfall(tenant)
        for connection in connections:
            if shortfall <= 0:
                return
            if connection.is_open:
                connection.abort()
            shortfall -= 2 if connection.key.tenant == tenant else 1


def _encode_request(request: ClientRequest) -> tuple[ConnectionKey, bytes]:
    """Return the connection key and the bytes of a request. Raises ValueError for an invalid URL or header."""
    host, port, tls, authority, target = _parse_url(request.url)
    lines = [f"{request.method} {target} HTTP/1.1", f"Host: {authority}"]
    for name, value in request.headers.items():
        # A line break in a value would add headers, or a second request.
        if not value.isprintable():
            raise ValueError("A header has a character that cannot be sent.")
        lines.append(f"{name}: {value}")
    lines.append(f"Content-Length: {len(request.body)}\r\n\r\n" if request.body else "\r\n")
    key = ConnectionKey(host, port, tls, request.tenant, request.credential)
    return key, "\r\n".join(lines).encode() + request.body


@lru_cache(1024)
def _parse_url(url: str) -> tuple[str, int, bool, str, str]:
    """Return host, port, whether it is https, the value of Host, and the percent-encoded request target."""
    parsed = URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.raw_host or not parsed.port:
        raise ValueError("The address is not an http or https URL.")
    return parsed.raw_host, parsed.port, parsed.scheme == "https", _authority(parsed), parsed.raw_path_qs


def _authority(parsed: URL) -> str:
    host = f"[{parsed.raw_host}]" if ":" in str(parsed.raw_host) else str(parsed.raw_host)
    return host if parsed.is_default_port() else f"{host}:{parsed.port}"


class ConnectionSlots:
    """A limit on connections that no single tenant can use up. For one event loop.

    A tenant may take a slot while it holds fewer slots than are free. So one tenant gets half of all slots, two get a
    third each, and a tenant without any always gets one.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._used: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def would_wait(self, tenant: str) -> bool:
        """Return whether `acquire` would have to wait; behind other requests of the tenant it always does."""
        return self._used[tenant] >= self._free or any(tenant == other for other, _ in self._waiting)

    def shortfall(self, tenant: str) -> int:
        """Return how many slots must become free before the tenant may take one more than it waits for.

        One of the tenant's own counts as two: it is one more that is free, and one fewer that the tenant holds.
        """
        waiting = sum(tenant == other for other, _ in self._waiting)
        return max(0, self._used[tenant] - self._free + 2 * waiting + 1)

    async def acquire(self, tenant: str) -> None:
        """Take a slot; waits for one, first come first served within a tenant."""
        if not self.would_wait(tenant):
            self._take(tenant)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((tenant, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release(tenant)  # the slot was granted just before the cancellation
            elif (tenant, turn) in self._waiting:  # not if a slot became free just after it
                self._waiting.remove((tenant, turn))
            raise

    def release(self, tenant: str) -> None:
        """Return a slot and grant free slots to waiting requests."""
        self._free += 1
        self._used[tenant] -= 1
        if not self._used[tenant]:
            del self._used[tenant]
        for entry in list(self._waiting):
            waiting_tenant, turn = entry
            if self._used[waiting_tenant] < self._free:
                self._waiting.remove(entry)
                if not turn.done():
                    self._take(waiting_tenant)
                    turn.set_result(None)

    def _take(self, tenant: str) -> None:
        self._free -= 1
        self._used[tenant] += 1
