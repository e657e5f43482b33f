"""The server: bound first, answering later, and drained at the end."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

import grpc

from stentor.core.errors import StartRefused
from stentor.surfaces.grpc.calls import Running
from stentor.surfaces.grpc.gate import Gate

VERSION: str = grpc.__version__
FAULTY = (1, 84)
"""From this version on a call whose path is no UTF-8 ends an asynchronous server, and needs no key for it. A version
that mends it ends this range; tests/surfaces/grpc/test_raw.py tells.
"""
GRACE_SECONDS = 3
"""As long as requests over HTTP have when the service leaves."""
LAST_SECONDS = 1
"""For sending the last answers."""
ANY = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - how an address for all is shown
_LIMITS = {
    # Two services would share the port and its callers.
    "grpc.so_reuseport": 0,
    "grpc.max_concurrent_streams": 1_000,
    # Beyond the first a call is refused by chance, beyond the second always.
    "grpc.max_metadata_size": 16_384,
    "grpc.absolute_max_metadata_size": 16_384,
    # Finds readers of streams that are gone without a word, as often as event streams do; readers may look as well.
    "grpc.keepalive_time_ms": 15_000,
    "grpc.http2.min_ping_interval_without_data_ms": 5_000,
    # A call that never sends its message looks like one that is worked on, and no other limit ends it. After the first
    # hour clients make a new connection by themselves; streams of the old one have another hour.
    "grpc.max_connection_age_ms": 3_600_000,
    "grpc.max_connection_age_grace_ms": 3_600_000,
}


class Limits(NamedTuple):
    """`message_bytes` is the largest message that is taken. `connections` may be open, and as many calls run at once;
    `greeting_s` is how long a connection may take to begin as HTTP/2 does, `idle_s` how long it may have no call.
    """

    message_bytes: int
    connections: int
    greeting_s: float
    idle_s: float

    @property
    def options(self) -> list[tuple[str, int]]:
        """As grpcio takes them."""
        greeting_ms = int(1000 * self.greeting_s)
        chosen = {
            "grpc.max_receive_message_length": self.message_bytes,
            "grpc.max_send_message_length": -1,
            "grpc.max_allowed_incoming_connections": self.connections,
            "grpc.server_handshake_timeout_ms": greeting_ms,
            "grpc.http2.settings_timeout": greeting_ms,
            "grpc.max_connection_idle_ms": int(1000 * self.idle_s),
        }
        return [*_LIMITS.items(), *chosen.items()]


def is_sound(version: str) -> bool:
    """Whether this version of grpcio survives what anybody can send to it."""
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) < FAULTY


class _Encodings(logging.Filter):
    """Leaves out what a caller sent that is no UTF-8: grpcio logs it as it came, be it somebody's key."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError))


class Server:
    """`address` is what clients connect to: host and port."""

    def __init__(self, server: grpc.aio.Server, address: str) -> None:
        self._server, self.address = server, address
        self._running = Running()
        self._stopping: asyncio.Task[None] | None = None

    @classmethod
    def bind(cls, host: str, port: int, limits: Limits) -> Server:
        """Within the loop that will serve. Raises StartRefused."""
        logging.getLogger("grpc._cython.cygrpc").addFilter(_Encodings())
        server = grpc.aio.server(options=limits.options, maximum_concurrent_rpcs=limits.connections)
        literal = f"[{host}]" if ":" in host else host
        try:
            bound = server.add_insecure_port(f"{literal}:{port}")
        except RuntimeError:
            raise StartRefused(
                f"Port {port} on {host} cannot be used: it is taken, or not yours to use. Choose another with "
                "--grpc-port, 0 takes a free one."
            ) from None
        return cls(server, f"{ANY.get(host, literal)}:{bound}")

    async def start(self, gate: Gate) -> None:
        """Answers nobody when it was told to leave meanwhile."""
        if self._stopping is not None:
            return
        self._running = gate.running
        self._server.add_generic_rpc_handlers((gate,))
        await self._server.start()

    def leave(self) -> None:
        """Let the calls that run end. The gate refuses new ones meanwhile, once it knows that the service leaves."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._drain())

    async def stop(self) -> None:
        """Returns when no call runs any more."""
        self.leave()
        assert self._stopping is not None
        await self._stopping

    async def _drain(self) -> None:
        """Only then the server: what it has not handed on when it is told to stop, it cancels instead of refusing."""
        left = LAST_SECONDS
        try:
            await asyncio.wait_for(self._running.ended(), GRACE_SECONDS)
        except TimeoutError:
            left = 0
        await self._server.stop(left)
