"""Start, log and shutdown of `stentor notes`."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from stentor.bootstrap.surfaces import notes
from tests import forkserver
from tests.cli.program import COMMAND
from tests.patience import until
from tests.ports import free_port
from tests.requirements import requirement
from tests.surfaces.notestore.note_store import KEY, environ, run_note_store
from tests.vaultplugin.certificate import self_signed
from tests.vaultplugin.server import KEY as PLUGIN_KEY
from tests.vaultplugin.server import plugin

REQUIRED = ("MCP_API_KEY", "NOTES_BASE_URL", "NOTES_API_KEY")
EXIT_START_FAILED = 3


def start(**variables: str) -> subprocess.CompletedProcess[str]:
    """Run `stentor notes` with settings that stop its start."""
    return forkserver.run_text(["notes"], {"PATH": os.environ["PATH"], **variables})


@requirement("notestore.settings")
@pytest.mark.parametrize("missing", [*[(name,) for name in REQUIRED], REQUIRED])
@pytest.mark.parametrize("blank", [False, True])
def test_start_error_names_each_missing_or_blank_variable(missing: tuple[str, ...], blank: bool) -> None:
    variables = environ("http://127.0.0.1:1")
    for name in missing:
        del variables[name]
        if blank:
            variables[name] = " "
    process = start(**variables)
    assert process.returncode == EXIT_START_FAILED
    assert process.stdout == ""
    for name in REQUIRED:
        assert (name in process.stderr) == (name in missing)
    assert "Traceback" not in process.stderr


@requirement("notestore.tls")
def test_server_with_a_certificate_serves_https_only(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    variables = {"NOTES_TLS_CERT": str(certificate), "NOTES_TLS_KEY": str(key)}
    with plugin(tmp_path / "vault") as stub, run_note_store(stub, tmp_path / "log", **variables) as store:
        assert store.address.startswith("https://")
        assert store.data("appendContext", path="a.md", content="x") == {"path": "a.md"}
        ssl_context = ssl.create_default_context(cafile=str(certificate))
        ssl_context.check_hostname = False  # the certificate names no address
        assert httpx.get(f"{store.address}/health", verify=ssl_context).status_code == 200
        plain = httpx.get(f"http{store.address.removeprefix('https')}/health")
        assert (plain.status_code, "use https://" in plain.text) == (400, True)


@requirement("notestore.tls")
def test_invalid_certificate_settings_stop_the_start(tmp_path: Path) -> None:
    certificate, key = map(str, self_signed(tmp_path))
    (tmp_path / "other").mkdir()
    other = str(self_signed(tmp_path / "other")[1])
    for names in (
        {"CERT": certificate},
        {"KEY": key},
        {"CERT": certificate, "KEY": other},
        {"CERT": "none", "KEY": key},
    ):
        process = start(
            **environ("http://127.0.0.1:1"), **{f"NOTES_TLS_{name}": value for name, value in names.items()}
        )
        assert (process.returncode, process.stdout) == (EXIT_START_FAILED, "")
        assert "HTTPS" in process.stderr
        assert "Traceback" not in process.stderr


INVALID_SETTINGS = [
    ("PORT", "x"),
    ("PORT", "-1"),
    ("PORT", "65536"),
    ("MCP_LOG_LEVEL", "loud"),
    ("NOTES_TIMEOUT", "0"),
    ("NOTES_TIMEOUT", "nan"),
    ("NOTES_BASE_URL", "nonsense"),
    ("NOTES_BASE_URL", "ftp://127.0.0.1:1"),
    ("NOTES_BASE_URL", "http://user:hunter2@127.0.0.1:1"),
    ("NOTES_BASE_URL", "http://127.0.0.1:1/?a=b"),
    ("NOTES_BASE_URL", "http://127.0.0.1:99999"),
    ("MCP_API_KEY", "changeme"),
    ("NOTES_API_KEY", "two words"),
]


@pytest.mark.parametrize(("name", "value"), INVALID_SETTINGS)
def test_invalid_setting_stops_the_start_without_leaking_secrets(name: str, value: str) -> None:
    process = start(**environ("http://127.0.0.1:1", **{name: value}))
    assert process.returncode == EXIT_START_FAILED
    assert name in process.stderr
    for secret in ("hunter2", KEY, PLUGIN_KEY, "two words"):
        assert secret not in process.stderr


def test_port_in_use_stops_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start(**environ("http://127.0.0.1:1", PORT=str(port)))
    assert process.returncode == EXIT_START_FAILED
    assert str(port) in process.stderr


@requirement("notestore.settings")
def test_server_listens_only_on_localhost_at_the_configured_port(tmp_path: Path) -> None:
    port = free_port()
    with plugin(tmp_path / "vault") as stub, run_note_store(stub, tmp_path / "log", PORT=str(port)) as store:
        assert store.address == f"http://127.0.0.1:{port}"
        assert httpx.get(f"{store.address}/health").json() == {"status": "ok"}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=200)


@requirement("notestore.settings")
def test_port_log_level_and_timeout_have_the_documented_defaults() -> None:
    variables = environ("https://127.0.0.1:27124/")
    del variables["PORT"]
    loaded = notes.load_settings(variables)
    assert (loaded.port, loaded.log_level, loaded.timeout) == (3000, "info", 30)
    assert loaded.address == "https://127.0.0.1:27124"
    levels = {name: notes.load_settings({**variables, "MCP_LOG_LEVEL": name}).log_level for name in notes.LOG_LEVELS}
    assert levels == {name: "warning" if name == "warn" else name for name in notes.LOG_LEVELS}


@pytest.mark.parametrize(("level", "is_logged"), [("debug", True), ("warn", True), ("error", False)])
def test_log_level_filters_debug_lines_and_warnings(tmp_path: Path, level: str, is_logged: bool) -> None:
    with plugin(tmp_path / "vault") as stub:
        stub.behaviour = "500"
        with run_note_store(stub, tmp_path / "log", MCP_LOG_LEVEL=level) as store:
            store.call("listNotes")
            log = store.log.read_text()
    assert ("WARNING" in log) == is_logged
    assert ("DEBUG" in log) == (level == "debug")


@pytest.mark.parametrize(("level", "is_logged"), [("debug", True), ("info", True), ("warn", False)])
def test_tool_calls_are_logged_at_level_info(tmp_path: Path, level: str, is_logged: bool) -> None:
    with plugin(tmp_path / "vault") as stub, run_note_store(stub, tmp_path / "log", MCP_LOG_LEVEL=level) as store:
        store.call("listNotes")
        store.call("getContext", path="none.md")
        log = store.log.read_text()
    assert ("tool finished tool=listNotes" in log) == is_logged
    assert ("rejected status=404" in log) == is_logged
    assert "none.md" not in log


def test_unreachable_plugin_is_logged_at_start(tmp_path: Path) -> None:
    with plugin(tmp_path / "vault") as stub:
        pass
    with run_note_store(stub, tmp_path / "log") as store:
        until(lambda: "unreachable" in store.log.read_text(), "nothing in the log")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_server_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with plugin(tmp_path / "vault") as stub, run_note_store(stub, tmp_path / "log", MCP_LOG_LEVEL="warn") as store:
        assert store.data("listNotes") == {"notes": []}
        store.process.send_signal(number)
        assert store.process.wait(200) == 0
        assert store.log.read_text() == ""


def test_running_call_completes_after_sigterm(tmp_path: Path) -> None:
    """The signal arrives while the plugin is slow."""
    with plugin(tmp_path / "vault") as stub, run_note_store(stub, tmp_path / "log") as store:
        store.write("a.md", "x")
        store.call("listNotes")
        stub.behaviour = "slow"
        responses: list[httpx.Response] = []
        caller = threading.Thread(target=lambda: responses.append(store.call("getContext", path="a.md")))
        caller.start()
        until(lambda: stub.waiting_requests)
        store.process.send_signal(signal.SIGTERM)
        stub.behaviour = "ok"
        stub.release.set()
        caller.join(200)
        assert [response.status_code for response in responses] == [200]
        assert store.process.wait(200) == 0


def test_help_text_lists_the_required_variables() -> None:
    process = subprocess.run([*COMMAND, "notes", "--help"], capture_output=True, text=True, timeout=200)
    assert process.returncode == 0
    assert "MCP_API_KEY" in process.stdout
