"""Limits on the number of connections, over all HTTP servers of a process and per client address.

When a limit is reached, an idle connection is evicted. The limits of a single connection are in `protocol`.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
from dataclasses import dataclass
from typing import Protocol

from stentor.core.settings.listeners import ConnectionSettings

RESERVED_FILE_DESCRIPTORS = 512
"""File descriptors reserved for the database, notes and outgoing calls; half of them if the limit is low."""
log = logging.getLogger(__name__)


class TrackedConnection(Protocol):
    """A connection that can be counted and evicted."""

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being processed, so that closing the connection loses no work."""

    @property
    def has_served(self) -> bool:
        """Whether it has completed a request before."""

    def drop(self) -> None:
        """Close it immediately."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Maximum connections in total and per client address, and timeouts in seconds."""

    head_s: float = 10.0
    body_s: float = 30.0
    keep_alive_s: float = 60.0
    connections: int = 2_000
    per_address: int = 1_000


def compute_limits(settings: ConnectionSettings) -> ConnectionLimits:
    """Return the configured limits, lowered to what the limit of open files allows."""
    files = _raise_file_limit()
    connections = min(settings.max_connections, files - min(RESERVED_FILE_DESCRIPTORS, files // 2))
    if connections < settings.max_connections:
        log.warning("http: connections limited by open files connections=%d", connections)
    per_address = min(settings.max_connections_per_address, connections)
    return ConnectionLimits(settings.head_timeout, settings.body_timeout, settings.keep_alive, connections, per_address)


def _raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit and return it; the default is often only 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return _finite(soft)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # some systems report a hard limit that they do not allow
        return _finite(soft)
    return _finite(hard)


def _finite(limit: int) -> int:
    return 1_000_000 if limit == resource.RLIM_INFINITY else limit


class ConnectionRegistry:
    """The open connections by client address, oldest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._count = 0
        self._by_address: dict[str, dict[TrackedConnection, None]] = {}

    def admit(self, client: TrackedConnection, address: str) -> bool:
        """Count a new connection, evicting an idle one if a limit is reached; False if none is idle."""
        connections = self._by_address.setdefault(address, {})
        has_room = True
        if len(connections) >= self.limits.per_address:
            has_room = self._evict_idle(address)
        elif self._count >= self.limits.connections:
            # Evict from the address with the most connections, so that one client cannot lock out the others.
            has_room = self._evict_idle(max(self._by_address, key=lambda known: len(self._by_address[known])))
        if has_room:
            # Again with setdefault: the eviction may have removed the entry of this address.
            self._by_address.setdefault(address, {})[client] = None
            self._count += 1
        elif not connections:
            del self._by_address[address]
        return has_room

    def release(self, client: TrackedConnection, address: str) -> None:
        """Remove a connection; does nothing if it is no longer counted."""
        connections = self._by_address.get(address, {})
        if client in connections:
            del connections[client]
            self._count -= 1
            if not connections:
                del self._by_address[address]

    def _evict_idle(self, address: str) -> bool:
        """Drop the oldest idle connection, preferably one that never completed a request."""
        idle = [client for client in self._by_address[address] if client.is_waiting]
        if not idle:
            return False
        oldest = next((client for client in idle if not client.has_served), idle[0])
        self.release(oldest, address)
        oldest.drop()
        return True


def client_network(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or an IPv6 /64, which usually belongs to a single host."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    # The first four groups of four digits, with their colons: 64 bits.
    return str(ip.ipv4_mapped) if ip.ipv4_mapped else ip.exploded[:19]
