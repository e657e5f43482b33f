"""Counts the connections of all HTTP servers of a process, and decides which one gives way when there are too many."""

from __future__ import annotations

import ipaddress
import logging
import resource
from dataclasses import dataclass
from typing import Protocol

from stentor.core.settings.listeners import ConnectionSettings

RESERVED_FILE_DESCRIPTORS = 512
"""File descriptors kept back for the database, notes and calls to others; of a low limit the half."""
log = logging.getLogger(__name__)


class TrackedConnection(Protocol):
    """A connection, as this module sees it."""

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is being worked on there, so that closing it loses no work."""

    @property
    def has_served(self) -> bool:
        """Whether a request of it was answered before."""

    def drop(self) -> None:
        """Close it at once."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Of connections, all together and for each client address; times in seconds."""

    head_s: float = 10.0
    body_s: float = 30.0
    keep_alive_s: float = 60.0
    connections: int = 2_000
    per_address: int = 1_000


def compute_limits(settings: ConnectionSettings) -> ConnectionLimits:
    """The settings, with as many connections as the system's limit of open files permits."""
    most = min(settings.max_connections, _connections_for(_raised_limit()))
    if most < settings.max_connections:
        log.warning("edge: connections limited by open files connections=%d", most)
    per_address = min(settings.max_connections_per_address, most)
    return ConnectionLimits(settings.head_timeout, settings.body_timeout, settings.keep_alive, most, per_address)


def _connections_for(files: int) -> int:
    return files - min(RESERVED_FILE_DESCRIPTORS, files // 2)


def _raised_limit() -> int:
    """The limit of open files, raised as far as it may be: many systems start programs with 1,024 of more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return _finite(soft)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # some systems allow less than they say
        return _finite(soft)
    return _finite(hard)


def _finite(limit: int) -> int:
    return 1_000_000 if limit == resource.RLIM_INFINITY else limit


class ConnectionRegistry:
    """The open connections by client address, in the order in which they came."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._count = 0
        self._by_address: dict[str, dict[TrackedConnection, None]] = {}

    def admit(self, client: TrackedConnection, address: str) -> bool:
        """Take a connection in, in place of one that waits where there are too many. False when all others work."""
        own = self._by_address.setdefault(address, {})
        room = True
        if len(own) >= self.limits.per_address:
            room = self._make_room(address)
        elif self._count >= self.limits.connections:
            # The address with the most connections gives way, so that one client cannot lock out the others.
            room = self._make_room(max(self._by_address, key=lambda known: len(self._by_address[known])))
        if room:
            self._by_address.setdefault(address, {})[client] = None
            self._count += 1
        elif not own:
            del self._by_address[address]
        return room

    def release(self, client: TrackedConnection, address: str) -> None:
        """Does nothing for one that is not counted any more."""
        own = self._by_address.get(address, {})
        if client in own:
            del own[client]
            self._count -= 1
            if not own:
                del self._by_address[address]

    def _make_room(self, address: str) -> bool:
        """Drop the oldest connection that waits, first of those that never sent a whole request."""
        waiting = [client for client in self._by_address[address] if client.is_waiting]
        if not waiting:
            return False
        oldest = next((client for client in waiting if not client.has_served), waiting[0])
        self.release(oldest, address)
        oldest.drop()
        return True


def client_network(address: str) -> str:
    """What counts as one client: an IPv4 address, or a /64 network of IPv6, of which a client has all addresses."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    return str(ip.ipv4_mapped) if ip.ipv4_mapped else ip.exploded[:19]
