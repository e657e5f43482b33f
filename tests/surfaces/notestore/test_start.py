"""The start and the end of `stentor notes`."""

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

from stentor.surfaces.notestore import settings
from tests import forkserver
from tests.cli.program import COMMAND
from tests.patience import until
from tests.requirements import requirement
from tests.surfaces.notestore.running import KEY, environ, note_store
from tests.vaultplugin.certificate import self_signed
from tests.vaultplugin.server import KEY as PLUGIN_KEY
from tests.vaultplugin.server import plugin

NEEDED = ("MCP_API_KEY", "NOTES_BASE_URL", "NOTES_API_KEY")
REFUSED = 3


def start(**variables: str) -> subprocess.CompletedProcess[str]:
    """A start that is refused."""
    return forkserver.run_text(["notes"], {"PATH": os.environ["PATH"], **variables})


@requirement("notestore.settings")
@pytest.mark.parametrize("missing", [*[(name,) for name in NEEDED], NEEDED])
@pytest.mark.parametrize("blank", [False, True])
def test_a_start_names_each_variable_that_is_missing(missing: tuple[str, ...], blank: bool) -> None:
    variables = environ("http://127.0.0.1:1")
    for name in missing:
        del variables[name]
        if blank:
            variables[name] = " "
    done = start(**variables)
    assert done.returncode == REFUSED
    assert done.stdout == ""
    for name in NEEDED:
        assert (name in done.stderr) == (name in missing)
    assert "Traceback" not in done.stderr


@requirement("notestore.tls")
def test_it_answers_on_https_alone_with_a_certificate(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    variables = {"NOTES_TLS_CERT": str(certificate), "NOTES_TLS_KEY": str(key)}
    with plugin(tmp_path / "vault") as stub, note_store(stub, tmp_path / "log", **variables) as store:
        assert store.address.startswith("https://")
        assert store.data("appendContext", path="a.md", content="x") == {"path": "a.md"}
        trusting = ssl.create_default_context(cafile=str(certificate))
        trusting.check_hostname = False  # the certificate names no address
        assert httpx.get(f"{store.address}/health", verify=trusting).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http{store.address.removeprefix('https')}/health")


@requirement("notestore.tls")
def test_a_certificate_that_does_not_fit_refuses_the_start(tmp_path: Path) -> None:
    certificate, key = map(str, self_signed(tmp_path))
    (tmp_path / "other").mkdir()
    other = str(self_signed(tmp_path / "other")[1])
    for names in (
        {"CERT": certificate},
        {"KEY": key},
        {"CERT": certificate, "KEY": other},
        {"CERT": "none", "KEY": key},
    ):
        done = start(**environ("http://127.0.0.1:1"), **{f"NOTES_TLS_{name}": value for name, value in names.items()})
        assert (done.returncode, done.stdout) == (REFUSED, "")
        assert "HTTPS" in done.stderr
        assert "Traceback" not in done.stderr


WRONG = [
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


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_that_cannot_be_stops_the_start(name: str, value: str) -> None:
    done = start(**environ("http://127.0.0.1:1", **{name: value}))
    assert done.returncode == REFUSED
    assert name in done.stderr
    for secret in ("hunter2", KEY, PLUGIN_KEY, "two words"):
        assert secret not in done.stderr


def test_a_port_that_is_taken_stops_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = start(**environ("http://127.0.0.1:1", PORT=str(port)))
    assert done.returncode == REFUSED
    assert str(port) in done.stderr


@requirement("notestore.settings")
def test_it_listens_on_localhost_at_the_port_of_the_environment(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with plugin(tmp_path / "vault") as stub, note_store(stub, tmp_path / "log", PORT=str(port)) as store:
        assert store.address == f"http://127.0.0.1:{port}"
        assert httpx.get(f"{store.address}/health").json() == {"status": "ok"}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=60)


@requirement("notestore.settings")
def test_port_and_level_have_the_contracts_defaults() -> None:
    variables = environ("https://127.0.0.1:27124/")
    del variables["PORT"]
    loaded = settings.load_settings(variables)
    assert (loaded.port, loaded.log_level, loaded.timeout) == (3000, "info", 30)
    assert loaded.address == "https://127.0.0.1:27124"
    levels = {
        name: settings.load_settings({**variables, "MCP_LOG_LEVEL": name}).log_level for name in settings.LOG_LEVELS
    }
    assert levels == {name: "warning" if name == "warn" else name for name in settings.LOG_LEVELS}


@pytest.mark.parametrize(("level", "said"), [("debug", True), ("warn", True), ("error", False)])
def test_the_level_says_what_is_logged(tmp_path: Path, level: str, said: bool) -> None:
    with plugin(tmp_path / "vault") as stub:
        stub.mood = "500"
        with note_store(stub, tmp_path / "log", MCP_LOG_LEVEL=level) as store:
            store.call("listNotes")
            log = store.log.read_text()
    assert ("WARNING" in log) == said
    assert ("DEBUG" in log) == (level == "debug")


@pytest.mark.parametrize(("level", "said"), [("debug", True), ("info", True), ("warn", False)])
def test_at_info_each_call_is_logged(tmp_path: Path, level: str, said: bool) -> None:
    with plugin(tmp_path / "vault") as stub, note_store(stub, tmp_path / "log", MCP_LOG_LEVEL=level) as store:
        store.call("listNotes")
        store.call("getContext", path="none.md")
        log = store.log.read_text()
    assert ("tool finished tool=listNotes" in log) == said
    assert ("rejected status=404" in log) == said


def test_a_wrong_address_stands_in_the_log_at_once(tmp_path: Path) -> None:
    with plugin(tmp_path / "vault") as stub:
        pass
    with note_store(stub, tmp_path / "log") as store:
        until(lambda: "unreachable" in store.log.read_text(), "nothing in the log")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with plugin(tmp_path / "vault") as stub, note_store(stub, tmp_path / "log", MCP_LOG_LEVEL="warn") as store:
        assert store.data("listNotes") == {"notes": []}
        store.process.send_signal(number)
        assert store.process.wait(60) == 0
        assert store.log.read_text() == ""


def test_a_call_under_way_ends_with_its_answer(tmp_path: Path) -> None:
    """A signal that comes while the plugin is slow does not cut the caller off."""
    with plugin(tmp_path / "vault") as stub, note_store(stub, tmp_path / "log") as store:
        store.write("a.md", "x")
        store.call("listNotes")
        stub.mood = "slow"
        answers: list[httpx.Response] = []
        caller = threading.Thread(target=lambda: answers.append(store.call("getContext", path="a.md")))
        caller.start()
        until(lambda: stub.waiting)
        store.process.send_signal(signal.SIGTERM)
        stub.mood = "ok"
        stub.released.set()
        caller.join(60)
        assert [answer.status_code for answer in answers] == [200]
        assert store.process.wait(60) == 0


def test_help_names_it() -> None:
    done = subprocess.run([*COMMAND, "notes", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "MCP_API_KEY" in done.stdout
