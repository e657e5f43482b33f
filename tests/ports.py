"""Ports for services that a test starts again under the same address."""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a free port below those that the system gives to whoever asks for any.

    So while a service is down between two starts, no other test of the machine gets its port.
    """
    end = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    for port in random.sample(range(FIRST, end), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
