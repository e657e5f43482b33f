"""The note store with plugins that are down, fail, or use a self-signed certificate; and its start."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests import forkserver
from tests.ports import free_port
from tests.requirements import requirement
from tests.stub import Answer, Asked, serving
from tests.surfaces.notestore.headless import KEY, VAULT_KEY, run_command, run_notes_command
from tests.surfaces.notestore.test_headless import TOOLS, expect_failure

RespondFunction = Callable[[Asked], tuple[int, bytes]]


def respond_like_version_5(request: Asked) -> tuple[int, bytes]:
    """Respond like the plugin at version 5 with one note: a PATCH with target headers needs a version header."""
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


def run_plugin(
    respond: RespondFunction = respond_like_version_5, *, delay: float = 0, context: ssl.SSLContext | None = None
) -> AbstractContextManager[tuple[str, list[Asked]]]:
    def create_answer(request: Asked, _: int) -> Answer:
        time.sleep(delay)
        status, content = respond(request)
        is_note = request.method == "GET" and request.path.endswith(".md")
        return Answer(status, content, {"Content-Type": "text/markdown" if is_note else "application/json"})

    return serving(create_answer, context=context)


@requirement("notestore.plugin-calls", "notestore.plugin-certificate-and-key")
def test_plugin_requests_use_its_own_key_and_patch_format(tmp_path: Path) -> None:
    with run_plugin() as (address, requests), run_notes_command(address, tmp_path) as notes:
        for tool, fields in TOOLS.items():
            assert notes.call(tool, fields).status_code == 200, tool
        notes.data("manageFrontmatter", path="a.md", key="a b", value=5)
        notes.data("manageFrontmatter", path="a.md", key="k", value="")
    for request in requests:
        assert request.headers["authorization"] == f"Bearer {VAULT_KEY}"
        assert KEY not in request.path + str(request.headers) + request.body.decode()
    patch, patch_with_body = [request for request in requests if request.method == "PATCH"][-2:]
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
    assert "target-type" not in patch_with_body.headers
    assert json.loads(patch_with_body.body)["value"] == ""
    put = next(request for request in requests if request.method == "PUT")
    assert put.headers["content-type"] == "text/markdown"


@requirement("notestore.failure-status")
@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [(401, b"no", 502), (403, b"no", 502), (500, b"secret", 502), (302, b"", 502), (429, b"", 502)],
)
def test_plugin_error_status_returns_502_without_details(
    tmp_path: Path, status: int, content: bytes, expected: int
) -> None:
    with (
        run_plugin(lambda _: (status, content)) as (address, _),
        run_notes_command(address, tmp_path) as notes,
    ):
        for tool, fields in TOOLS.items():
            assert "secret" not in expect_failure(notes.call(tool, fields), expected)


@requirement("notestore.failure-status")
@pytest.mark.parametrize(
    "content", [b"garbage", b"[1]", b"{}", b'{"files": [5]}', b'{"files": ["/"]}', b"\xff\xfe", b"[" * 5000]
)
def test_invalid_plugin_response_returns_502(tmp_path: Path, content: bytes) -> None:
    with (
        run_plugin(lambda _: (200, content)) as (address, _),
        run_notes_command(address, tmp_path) as notes,
    ):
        for tool in ("searchNotes", "listNotes"):
            expect_failure(notes.call(tool, TOOLS[tool]), 502)


@requirement("notestore.failure-status")
@pytest.mark.parametrize("tool", ["appendContext", "updateNote", "searchReplace", "manageTags", "manageFrontmatter"])
def test_unexpected_response_to_a_change_returns_502(tmp_path: Path, tool: str) -> None:
    def respond(request: Asked) -> tuple[int, bytes]:
        return respond_like_version_5(request) if request.method == "GET" else (200, b"<html>signed out</html>")

    with run_plugin(respond) as (address, _), run_notes_command(address, tmp_path) as notes:
        expect_failure(notes.call(tool, TOOLS[tool]), 502)
        expect_failure(notes.call("deleteNote", TOOLS["deleteNote"]), 502)


@requirement("notestore.failure-status")
def test_unreachable_plugin_returns_502_while_health_stays_ok(tmp_path: Path) -> None:
    with run_notes_command("http://127.0.0.1:1", tmp_path) as notes:
        assert "unreachable" in expect_failure(notes.call("listNotes"), 502)
        assert notes.http.get("/health").status_code == 200
    with run_plugin() as (address, _), run_notes_command(address, tmp_path) as notes:
        assert notes.data("listNotes") == {"notes": ["a.md"]}


@requirement("notestore.failure-status")
def test_plugin_timeout_returns_504(tmp_path: Path) -> None:
    with (
        run_plugin(delay=1) as (address, _),
        run_notes_command(address, tmp_path, NOTES_TIMEOUT="0.2") as notes,
    ):
        assert "in time" in expect_failure(notes.call("listNotes"), 504)


@pytest.fixture
def certificate(tmp_path: Path) -> ssl.SSLContext:
    """A self-signed certificate for a name that is not the address."""
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
def test_self_signed_certificate_of_the_plugin_is_accepted(tmp_path: Path, certificate: ssl.SSLContext) -> None:
    with (
        run_plugin(context=certificate) as (address, _),
        run_notes_command(address, tmp_path) as notes,
    ):
        assert notes.data("getContext", path="a.md") == {"path": "a.md", "content": "x"}


def run_notes(**environ: str) -> subprocess.CompletedProcess[str]:
    return forkserver.run_text(["notes"], {"PATH": os.environ["PATH"], **environ})


@requirement("notestore.settings")
def test_start_error_names_each_missing_or_invalid_variable(tmp_path: Path) -> None:
    keys = {"MCP_API_KEY": "a-key", "NOTES_BASE_URL": "http://127.0.0.1:1", "NOTES_API_KEY": "b-key"}
    for missing in (["NOTES_API_KEY"], ["MCP_API_KEY"], ["NOTES_BASE_URL", "MCP_API_KEY"]):
        process = run_notes(**{name: value for name, value in keys.items() if name not in missing})
        assert process.returncode != 0
        assert all((name in process.stderr) == (name in missing) for name in keys)
        assert "Traceback" not in process.stderr
    assert all(name in run_notes().stderr for name in keys)
    for name, value in (
        ("PORT", "x"),
        ("PORT", "70000"),
        ("MCP_LOG_LEVEL", "loud"),
        ("NOTES_BASE_URL", "localhost"),
        ("NOTES_TIMEOUT", "0"),
        ("NOTES_TIMEOUT", "nan"),
    ):
        process = run_notes(**{**keys, name: value})
        assert process.returncode != 0
        assert name in process.stderr


@requirement("notestore.settings")
def test_server_listens_on_localhost_at_the_configured_port(tmp_path: Path) -> None:
    port = str(free_port())
    keys = {"MCP_API_KEY": KEY, "NOTES_BASE_URL": "http://127.0.0.1:1", "NOTES_API_KEY": VAULT_KEY}
    for level in ("debug", "warn", "error"):
        with run_command("notes", **keys, PORT=port, MCP_LOG_LEVEL=level) as ready:
            assert ready == {"ready": True, "notes": f"http://127.0.0.1:{port}"}
