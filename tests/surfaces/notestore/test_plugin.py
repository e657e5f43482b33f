"""The note-store server before plugins that are down, wrong, or behind a certificate of their own; and its start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.requirements import requirement
from tests.surfaces.notestore.headless import KEY, VAULT_KEY, notes_before, program
from tests.surfaces.notestore.test_headless import TOOLS, failed


class Plugin(BaseHTTPRequestHandler):
    """One note, and whatever behaviour the test wants."""

    server: Any

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.server.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        time.sleep(self.server.delay)
        status, content = self.server.behave(self)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - http.server's names

    def log_message(self, *_: Any) -> None:
        pass


def right(request: Plugin) -> tuple[int, bytes]:
    """As the plugin at version 5: a PATCH with target headers wants a version."""
    if (
        request.command == "PATCH"
        and "target-type" in request.headers
        and "markdown-patch-version" not in request.headers
    ):
        return 400, b'{"errorCode": 40084}'
    if request.path.startswith("/search/"):
        return 200, b'[{"filename": "a.md", "score": 1}]'
    if request.path == "/vault/":
        return 200, b'{"files": ["a.md"]}'
    if "note+json" in request.headers.get("Accept", ""):
        return 200, b'{"frontmatter": {}}'
    return 200, b"x"


@contextmanager
def plugin(behave: Any = right, *, delay: float = 0, context: ssl.SSLContext | None = None) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Plugin)
    server.seen, server.delay, server.behave = [], delay, behave
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@requirement("notestore.plugin-calls", "notestore.plugin-certificate-and-key")
def test_the_plugin_is_called_with_its_own_key_and_in_its_form(tmp_path: Path) -> None:
    with plugin() as stub, notes_before(f"http://127.0.0.1:{stub.server_port}", tmp_path) as notes:
        for tool, fields in TOOLS.items():
            assert notes.call(tool, fields).status_code == 200, tool
        notes.data("manageFrontmatter", path="a.md", key="a b", value=5)
        notes.data("manageFrontmatter", path="a.md", key="k", value="")
    for _, path, headers, body in stub.seen:
        assert headers["authorization"] == f"Bearer {VAULT_KEY}"
        assert KEY not in path + str(headers) + body.decode()
    (_, _, headers, body), (_, _, bare, instruction) = [call for call in stub.seen if call[0] == "PATCH"][-2:]
    assert {
        k: headers[k] for k in ("markdown-patch-version", "operation", "target-type", "target", "content-type")
    } == {
        "markdown-patch-version": "2",
        "operation": "replace",
        "target-type": "frontmatter",
        "target": "a%20b",
        "content-type": "application/json",
    }
    assert "target-delimiter" not in headers
    assert body == b"5"
    assert "target-type" not in bare
    assert json.loads(instruction)["value"] == ""
    put = next(call for call in stub.seen if call[0] == "PUT")
    assert put[2]["content-type"] == "text/markdown"


@requirement("notestore.failure-status")
@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [(401, b"no", 502), (403, b"no", 502), (500, b"secret", 502), (302, b"", 502), (429, b"", 502)],
)
def test_what_the_plugin_refuses_has_its_status(tmp_path: Path, status: int, content: bytes, expected: int) -> None:
    with (
        plugin(lambda _: (status, content)) as stub,
        notes_before(f"http://127.0.0.1:{stub.server_port}", tmp_path) as notes,
    ):
        for tool, fields in TOOLS.items():
            assert "secret" not in failed(notes.call(tool, fields), expected)


@requirement("notestore.failure-status")
@pytest.mark.parametrize(
    "content", [b"garbage", b"[1]", b"{}", b'{"files": [5]}', b'{"files": ["/"]}', b"\xff\xfe", b"[" * 5000]
)
def test_an_answer_that_nobody_can_use_is_502(tmp_path: Path, content: bytes) -> None:
    with (
        plugin(lambda _: (200, content)) as stub,
        notes_before(f"http://127.0.0.1:{stub.server_port}", tmp_path) as notes,
    ):
        for tool in ("searchNotes", "listNotes"):
            failed(notes.call(tool, TOOLS[tool]), 502)


@requirement("notestore.failure-status")
def test_a_plugin_that_is_down_is_502_and_works_again_once_it_is_up(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with notes_before(f"http://127.0.0.1:{port}", tmp_path) as notes:
        assert "cannot be reached" in failed(notes.call("listNotes"), 502)
        assert notes.http.get("/health").status_code == 200
    with plugin() as stub, notes_before(f"http://127.0.0.1:{stub.server_port}", tmp_path) as notes:
        assert notes.data("listNotes") == {"notes": ["a.md"]}


@requirement("notestore.failure-status")
def test_a_plugin_that_does_not_answer_in_time_is_504(tmp_path: Path) -> None:
    address = "http://127.0.0.1:{}"
    with (
        plugin(delay=1) as stub,
        notes_before(address.format(stub.server_port), tmp_path, NOTES_TIMEOUT="0.2") as notes,
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
        plugin(context=certificate) as stub,
        notes_before(f"https://127.0.0.1:{stub.server_port}", tmp_path) as notes,
    ):
        assert notes.data("getContext", path="a.md") == {"path": "a.md", "content": "x"}


def started(**environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stentor", "notes"]
    base = {"PATH": os.environ["PATH"]}
    return subprocess.run(command, env={**base, **environ}, capture_output=True, text=True, timeout=30)


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
