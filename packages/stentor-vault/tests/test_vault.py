"""The command `stentor-vault` as a process, and its library without a server."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stentor_vault.errors import InvalidRequest, StentorError
from stentor_vault.jsontext import MAX_CONTAINERS, MAX_DEPTH, decode
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import NoteChanged

COMMAND = [sys.executable, "-m", "stentor_vault"]
Start = Callable[..., "Vault"]


class Vault:
    """A running `stentor-vault` process; `ready` is its first line of output."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.state = folder / "notes", folder / "state"
        arguments = [str(self.folder), "--state", str(self.state), "--port", "0", "--no-tls", "--json"]
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline())

    def request(self, method: str, path: str, body: bytes | None = None, key: str | None = None) -> tuple[int, bytes]:
        key = key or Path(self.ready["key_file"]).read_text().strip()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "text/markdown"}
        request = urllib.request.Request(self.ready["addresses"][0] + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Vault] = []

    def start_vault(**environment: str) -> Vault:
        running.append(Vault(tmp_path, **environment))
        return running[-1]

    yield start_vault
    for vault in running:
        if vault.process.poll() is None:
            vault.stop()


def test_note_is_written_and_read_with_the_generated_key(start: Start) -> None:
    vault = start()
    assert vault.request("PUT", "/vault/Ideas/first.md", b"# First\n")[0] == 204
    assert vault.request("GET", "/vault/Ideas/first.md") == (200, b"# First\n")
    assert (vault.folder / "Ideas" / "first.md").read_bytes() == b"# First\n"
    assert vault.request("GET", "/vault/Ideas/first.md", key="another")[0] == 401
    assert stat.S_IMODE((vault.state / "vault.key").stat().st_mode) == 0o600


def test_restart_keeps_the_key_and_the_notes(start: Start) -> None:
    first = start()
    key = (first.state / "vault.key").read_text()
    first.request("PUT", "/vault/a.md", b"a")
    assert first.stop(signal.SIGINT) == 0
    second = start()
    assert (second.state / "vault.key").read_text() == key
    assert second.request("GET", "/vault/a.md") == (200, b"a")
    assert second.stop() == 0


def test_key_from_the_environment_creates_no_key_file(start: Start) -> None:
    vault = start(STENTOR_VAULT_KEY="of-the-environment")
    assert vault.ready["key_file"] is None
    assert vault.request("GET", "/vault/", key="of-the-environment")[0] == 200
    assert not (vault.state / "vault.key").exists()


def test_port_in_use_prints_one_error_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        process = subprocess.run(
            [*COMMAND, str(tmp_path), "--state", str(tmp_path / "state"), "--port", port, "--no-tls"],
            capture_output=True,
            text=True,
        )
    assert process.returncode == 1
    assert process.stderr == (
        f"stentor-vault: port {port} of 127.0.0.1 cannot be used: Address already in use. Choose another one.\n"
    )


async def test_write_with_an_outdated_hash_changes_nothing(tmp_path: Path) -> None:
    vault = FolderVault(tmp_path)
    await vault.write("a.md", b"one")
    read = await vault.read("a.md")
    await vault.write("a.md", b"two", expected=read.hash)
    with pytest.raises(NoteChanged):
        await vault.write("a.md", b"three", expected=read.hash)
    assert (tmp_path / "a.md").read_bytes() == b"two"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * (MAX_DEPTH + 1), "nested deeper"),
        (b"[" + b"[]," * MAX_CONTAINERS + b"1]", "arrays and objects"),
        (b"]" * (MAX_CONTAINERS + 200) + b"[" * 200, "arrays and objects"),
        (b'["' + b"[" * 500 + b'", ' + b"[" * MAX_DEPTH, "nested deeper"),
        (b"[1e999]", "out of range"),
        (b"{", "not valid JSON"),
        (b'"\xff"', "UTF-8"),
    ],
)
def test_invalid_or_oversized_json_is_rejected(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode(body)


@pytest.mark.parametrize("body", [b'"' + b"[" * 500 + b'"', b'["' + rb"\"" + b"[" * 300 + b'"]', b"[" * 99 + b"]" * 99])
def test_brackets_inside_strings_do_not_count_toward_the_limits(body: bytes) -> None:
    value: Any = decode(body)
    assert value is not None


def test_invalid_request_error_has_a_code_and_a_status() -> None:
    assert (InvalidRequest("x").code, InvalidRequest("x").status) == ("INVALID_REQUEST", 400)
    assert issubclass(InvalidRequest, StentorError)
