"""The ports of a service."""

from __future__ import annotations

import socket

import pytest

from stentor.core.errors import StartRefused
from stentor.web.server.http_server import bind


def test_a_free_port_is_nobody_elses_before_anybody_listens() -> None:
    with bind("127.0.0.1", 0, "--gateway-port") as taken, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(taken.socket.getsockname())


def test_a_chosen_port_is_refused_while_another_service_only_starts() -> None:
    with bind("127.0.0.1", 0, "--gateway-port") as free:
        port = free.socket.getsockname()[1]
    with (
        bind("127.0.0.1", port, "--gateway-port"),
        pytest.raises(StartRefused, match=f"Port {port} .* Choose another with --gateway-port"),
    ):
        bind("127.0.0.1", port, "--gateway-port")
