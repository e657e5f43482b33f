"""The ports of a service."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from stentor.cli.service.runner import _bind_surface, run_service
from stentor.core import settings
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.web.server.http_server import bind, handle_stop_signals
from tests.requirements import requirement


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


def test_a_default_port_that_is_taken_is_named_as_in_the_list_of_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    with bind("127.0.0.1", 0, "x") as taken:
        port = taken.socket.getsockname()[1]
        monkeypatch.setattr(Settings, "get", lambda *_: port)
        with _bind_surface(settings.load({}, {"SERVICE_DATA_DIR": tmp_path}), "mcp", warnings, None):
            assert warnings[0].startswith(f"The default port of the governed memory (MCP), {port}, is in use; ")


@requirement("scale.ports-named-together")
def test_all_ports_that_are_taken_are_named_with_their_settings_in_one_message(tmp_path: Path) -> None:
    with ExitStack() as stack:
        taken = [stack.enter_context(bind("127.0.0.1", 0, "x")).socket.getsockname()[1] for _ in range(3)]
        names = ("SERVICE_GATEWAY_PORT", "SERVICE_DASHBOARD_PORT", "SERVICE_VAULT_TLS_PORT")
        environ = {"SERVICE_DATA_DIR": str(tmp_path / "data"), **dict(zip(names, map(str, taken), strict=True))}
        with pytest.raises(StartRefused) as refused:
            run_service(settings.load(environ), environ, Redactor(), lambda report: None)
    lines = refused.value.message.splitlines()
    assert len(lines) == 3
    for line, name, port in zip(lines, names, taken, strict=True):
        assert f"Port {port} on 127.0.0.1 cannot be used" in line
        assert name in line
    assert not (tmp_path / "data").exists(), "the data folder was left alone"


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_closes_stops_the_service_unless_nohup_ignores_it(ignored: bool) -> None:
    async def receive() -> list[str]:
        received, stopped = list[str](), asyncio.Event()

        def stop() -> None:
            received.append("stop")
            stopped.set()

        handle_stop_signals(stop)
        os.kill(os.getpid(), signal.SIGHUP)
        if ignored:
            os.kill(os.getpid(), signal.SIGTERM)
        await stopped.wait()
        return received

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        assert asyncio.run(receive()) == ["stop"]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_closes_counts_as_one_signal() -> None:
    """A program that started the service may pass it on; a further signal would end running work at once."""

    async def count() -> int:
        received, signalled = 0, asyncio.Event()

        def stop() -> None:
            nonlocal received
            received += 1
            signalled.set()

        handle_stop_signals(stop)
        os.kill(os.getpid(), signal.SIGHUP)
        await signalled.wait()
        signalled.clear()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await signalled.wait()
        return received

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert asyncio.run(count()) == 2
    finally:
        signal.signal(signal.SIGHUP, before)
