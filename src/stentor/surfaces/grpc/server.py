"""The gRPC server: binds its port, starts later, and drains at the end. The calls go through `gate`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

import grpc
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from stentor.core.errors import StartRefused
from stentor.surfaces.grpc.calls import ActiveCalls
from stentor.surfaces.grpc.gate import Gate

if TYPE_CHECKING:
    from stentor.web.server.certificate import LoadedCertificate, ServedCertificate

VERSION: str = grpc.__version__
FIRST_VULNERABLE_VERSION = (1, 84)
"""Since this version of grpcio, a call whose path is not UTF-8 ends an asyncio server, even without a key.

When a version fixes it, limit the range: tests/surfaces/grpc/test_raw.py shows whether one does.
"""
GRACE_SECONDS = 3
"""How long active calls may continue when the service stops; the same as for HTTP requests."""
FLUSH_SECONDS = 1
"""How long the server may take to send its last responses."""
LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - the address that clients connect to
_LIMITS = {
    # Otherwise two services could share the port and split its callers.
    "grpc.so_reuseport": 0,
    "grpc.max_concurrent_streams": 1_000,
    # Between the two limits grpcio rejects calls at random; equal limits make it deterministic.
    "grpc.max_metadata_size": 16_384,
    "grpc.absolute_max_metadata_size": 16_384,
    # Detects readers of streams that disappeared, as often as event streams do; clients may ping as well.
    "grpc.keepalive_time_ms": 15_000,
    "grpc.http2.min_ping_interval_without_data_ms": 5_000,
    # A call that never sends its request looks like an active one, and no other limit ends it. After the first hour
    # clients reconnect by themselves; streams of the old connection have another hour.
    "grpc.max_connection_age_ms": 3_600_000,
    "grpc.max_connection_age_grace_ms": 3_600_000,
}


class ServerLimits(NamedTuple):
    """Limits of a server. `connections` limits open connections and also concurrent calls.

    `handshake_timeout_s`: until a connection speaks HTTP/2. `idle_timeout_s`: how long it may have no call.
    """

    max_message_bytes: int
    connections: int
    handshake_timeout_s: float
    idle_timeout_s: float

    @property
    def options(self) -> list[tuple[str, int]]:
        """The channel options of grpcio."""
        handshake_ms = int(1000 * self.handshake_timeout_s)
        configured = {
            "grpc.max_receive_message_length": self.max_message_bytes,
            "grpc.max_send_message_length": -1,
            "grpc.max_allowed_incoming_connections": self.connections,
            "grpc.server_handshake_timeout_ms": handshake_ms,
            "grpc.http2.settings_timeout": handshake_ms,
            "grpc.max_connection_idle_ms": int(1000 * self.idle_timeout_s),
        }
        return [*_LIMITS.items(), *configured.items()]


def is_version_safe(version: str) -> bool:
    """Return whether this version of grpcio is free of the vulnerability above."""
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) < FIRST_VULNERABLE_VERSION


def can_serve(loaded: LoadedCertificate) -> bool:
    """Return whether grpcio, whose TLS is BoringSSL, serves certificates with this kind of key."""
    key = loaded.certificate.public_key()
    return isinstance(key, rsa.RSAPublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
    )


class _DecodeErrorFilter(logging.Filter):
    """Drops log records about input that is not UTF-8: grpcio logs the input verbatim, and it may be a key."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError))


def _server_credentials(tls: ServedCertificate) -> grpc.ServerCredentials:
    """Return credentials that follow the certificate: grpcio asks at each handshake whether there is a new one."""

    def configuration(loaded: LoadedCertificate) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.chain)])

    served = tls.loaded

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        if tls.loaded is served:
            return None
        served = tls.loaded
        return configuration(served)

    # None, which the stubs do not know, means no change.
    return grpc.dynamic_ssl_server_credentials(configuration(served), fetch)  # pyrefly: ignore[bad-argument-type] - see above


class Server:
    """A gRPC server on one port. `address` is what clients connect to: host and port."""

    def __init__(self, server: grpc.aio.Server, address: str) -> None:
        self._server, self.address = server, address
        self._active = ActiveCalls()
        self._stopping: asyncio.Task[None] | None = None

    @classmethod
    def bind(cls, host: str, port: int, limits: ServerLimits, tls: ServedCertificate | None) -> Server:
        """Bind the port, inside the event loop that will serve. Raises StartRefused."""
        logging.getLogger("grpc._cython.cygrpc").addFilter(_DecodeErrorFilter())
        # Bound long before it serves, so that a port in use stops the start of the service.
        server = grpc.aio.server(options=limits.options, maximum_concurrent_rpcs=limits.connections)
        url_host = f"[{host}]" if ":" in host else host
        address = f"{url_host}:{port}"
        try:
            if tls is None:
                bound_port = server.add_insecure_port(address)
            else:
                bound_port = server.add_secure_port(address, _server_credentials(tls))
        except RuntimeError:
            raise StartRefused(
                f"Port {port} on {host} cannot be used: another program uses it, or this user may not bind it. Choose "
                "another with --grpc-port (SERVICE_GRPC_PORT); 0 chooses a free one."
            ) from None
        return cls(server, f"{LOOPBACK_OF_WILDCARD.get(host, url_host)}:{bound_port}")

    async def start(self, gate: Gate) -> None:
        """Serve the calls that the gate admits. Has no effect if the server is already stopping."""
        if self._stopping is not None:
            return
        self._active = gate.active
        self._server.add_generic_rpc_handlers((gate,))
        await self._server.start()

    def leave(self) -> None:
        """Begin to stop: let active calls end. The gate rejects new ones as soon as the service is closing."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._drain())

    async def stop(self) -> None:
        """Stop, and return when no call is active any more."""
        self.leave()
        assert self._stopping is not None
        await self._stopping

    async def _drain(self) -> None:
        # The calls must end first: stopping cancels calls that no handler has yet, instead of rejecting them.
        flush_seconds = FLUSH_SECONDS
        try:
            await asyncio.wait_for(self._active.wait_idle(), GRACE_SECONDS)
        except TimeoutError:
            flush_seconds = 0
        await self._server.stop(flush_seconds)
