"""The note-store server before plugins that are down, wrong, or behind a certificate of their own; and its start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests import forkserver
from tests.requirements import requirement
from tests.stub import Answer, Asked, serving
from tests.surfaces.notestore.headless import KEY, VAULT_KEY, notes_before, program
from tests.surfaces.notestore.test_headless import TOOLS, failed

Behave = Callable[[Asked], tuple[int, bytes]]


def right(request: Asked) -> tuple[int, bytes]:
    """As the plugin at version 5, with one note: a PATCH with target headers wants a version."""
    if (
        request.method == "PATCH"
        and "target-type" in request.headers
        and "markdown-patch-version" not in request.headers
    ):
        return 400, b'{"errorCode": 40084}'
    if request.path.startswith("/search/"):
        return 200, b'[{"filename": "a.md", "score": 1}]'
    if request.path == "/vault/":
        return 200, b'{"files": ["a.md"]}'
    if request.method == "PATCH":
        return 200, b"---\nk: 1\n---\nx"
    return (200, b"x") if request.method == "GET" else (204, b"")


def plugin(
    behave: Behave = right, *, delay: float = 0, context: ssl.SSLContext | None = None
) -> AbstractContextManager[tuple[str, list[Asked]]]:
    def answer(asked: Asked, _: int) -> Answer:
        time.sleep(delay)
        status, content = behave(asked)
        is_note = asked.method == "GET" and asked.path.endswith(".md")
        return Answer(status, content, {"Content-Type": "text/markdown" if is_note else "application/json"})

    return serving(answer, context=context)


@requirement("notestore.plugin-calls", "notestore.plugin-certificate-and-key")
def test_the_plugin_is_called_with_its_own_key_and_in_its_form(tmp_path: Path) -> None:
    with plugin() as (address, asked), notes_before(address, tmp_path) as notes:
        for tool, fields in TOOLS.items():
            assert notes.call(tool, fields).status_code == 200, tool
        notes.data("manageFrontmatter", path="a.md", key="a b", value=5)
        notes.data("manageFrontmatter", path="a.md", key="k", value="")
    for call in asked:
        assert call.headers["authorization"] == f"Bearer {VAULT_KEY}"
        assert KEY not in call.path + str(call.headers) + call.body.decode()
    patch, bare = [call for call in asked if call.method == "PATCH"][-2:]
    assert {
        k: patch.headers[k] for k in ("markdown-patch-version", "operation", "target-type", "target", "content-type")
    } == {
        "markdown-patch-version": "2",
        "operation": "replace",
        "target-type": "frontmatter",
        "target": "a%20b",
        "content-type": "application/json",
    }
    assert "target-delimiter" not in patch.headers
    assert patch.body == b"5"
    assert "target-type" not in bare.headers
    assert json.loads(bare.body)["value"] == ""
    put = next(call for call in asked if call.method == "PUT")
    assert put.headers["content-type"] == "text/markdown"


@requirement("notestore.failure-status")
@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [(401, b"no", 502), (403, b"no", 502), (500, b"secret", 502), (302, b"", 502), (429, b"", 502)],
)
def test_what_the_plugin_refuses_has_its_status(tmp_path: Path, status: int, content: bytes, expected: int) -> None:
    with (
        plugin(lambda _: (status, content)) as (address, _),
        notes_before(address, tmp_path) as notes,
    ):
        for tool, fields in TOOLS.items():
            assert "secret" not in failed(notes.call(tool, fields), expected)


@requirement("notestore.failure-status")
@pytest.mark.parametrize(
    "content", [b"garbage", b"[1]", b"{}", b'{"files": [5]}', b'{"files": ["/"]}', b"\xff\xfe", b"[" * 5000]
)
def test_an_answer_that_nobody_can_use_is_502(tmp_path: Path, content: bytes) -> None:
    with (
        plugin(lambda _: (200, content)) as (address, _),
        notes_before(address, tmp_path) as notes,
    ):
        for tool in ("searchNotes", "listNotes"):
            failed(notes.call(tool, TOOLS[tool]), 502)


@requirement("notestore.failure-status")
@pytest.mark.parametrize("tool", ["appendContext", "updateNote", "searchReplace", "manageTags", "manageFrontmatter"])
def test_a_change_that_is_not_answered_as_the_plugin_does_is_502(tmp_path: Path, tool: str) -> None:
    def behave(request: Asked) -> tuple[int, bytes]:
        return right(request) if request.method == "GET" else (200, b"<html>signed out</html>")

    with plugin(behave) as (address, _), notes_before(address, tmp_path) as notes:
        failed(notes.call(tool, TOOLS[tool]), 502)
        failed(notes.call("deleteNote", TOOLS["deleteNote"]), 502)


@requirement("notestore.failure-status")
def test_a_plugin_that_is_down_is_502_and_works_again_once_it_is_up(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with notes_before(f"http://127.0.0.1:{port}", tmp_path) as notes:
        assert "unreachable" in failed(notes.call("listNotes"), 502)
        assert notes.http.get("/health").status_code == 200
    with plugin() as (address, _), notes_before(address, tmp_path) as notes:
        assert notes.data("listNotes") == {"notes": ["a.md"]}


@requirement("notestore.failure-status")
def test_a_plugin_that_does_not_answer_in_time_is_504(tmp_path: Path) -> None:
    with (
        plugin(delay=1) as (address, _),
        notes_before(address, tmp_path, NOTES_TIMEOUT="0.2") as notes,
    ):
        assert "in time" in failed(notes.call("listNotes"), 504)


@pytest.fixture
def certificate(tmp_path: Path) -> ssl.SSLContext:
    """Self-signed, for a name that is not the address."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, "-days", "2", "-subj", "/CN=Obsidian Local REST API"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@requirement("notestore.plugin-certificate-and-key")
def test_the_plugins_own_certificate_is_accepted(tmp_path: Path, certificate: ssl.SSLContext) -> None:
    with (
        plugin(context=certificate) as (address, _),
        notes_before(address, tmp_path) as notes,
    ):
        assert notes.data("getContext", path="a.md") == {"path": "a.md", "content": "x"}


def started(**environ: str) -> subprocess.CompletedProcess[str]:
    return forkserver.run_text(["notes"], {"PATH": os.environ["PATH"], **environ})


@requirement("notestore.settings")
def test_a_start_names_each_variable_that_is_missing_or_wrong(tmp_path: Path) -> None:
    keys = {"MCP_API_KEY": "a-key", "NOTES_BASE_URL": "http://127.0.0.1:1", "NOTES_API_KEY": "b-key"}
    for missing in (["NOTES_API_KEY"], ["MCP_API_KEY"], ["NOTES_BASE_URL", "MCP_API_KEY"]):
        done = started(**{name: value for name, value in keys.items() if name not in missing})
        assert done.returncode != 0
        assert all((name in done.stderr) == (name in missing) for name in keys)
        assert "Traceback" not in done.stderr
    assert all(name in started().stderr for name in keys)
    for name, value in (
        ("PORT", "x"),
        ("PORT", "70000"),
        ("MCP_LOG_LEVEL", "loud"),
        ("NOTES_BASE_URL", "localhost"),
        ("NOTES_TIMEOUT", "0"),
        ("NOTES_TIMEOUT", "nan"),
    ):
        done = started(**{**keys, name: value})
        assert done.returncode != 0
        assert name in done.stderr


@requirement("notestore.settings")
def test_it_listens_on_localhost_at_its_port(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    keys = {"MCP_API_KEY": KEY, "NOTES_BASE_URL": "http://127.0.0.1:1", "NOTES_API_KEY": VAULT_KEY}
    for level in ("debug", "warn", "error"):
        with program("notes", **keys, PORT=port, MCP_LOG_LEVEL=level) as ready:
            assert ready == {"ready": True, "notes": f"http://127.0.0.1:{port}"}
