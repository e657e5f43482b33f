"""Run `stentor notes` as a process in front of a stub of the vault plugin."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.forkserver import Process
from tests.patience import until
from tests.vaultplugin.server import KEY as PLUGIN_KEY
from tests.vaultplugin.server import PluginStub

KEY = "agents-key-7a11"
TOOLS: dict[str, dict[str, Any]] = {
    "getContext": {"path": "a.md"},
    "appendContext": {"path": "a.md", "content": "x"},
    "updateNote": {"path": "a.md", "content": "x"},
    "searchNotes": {"query": "x"},
    "listNotes": {},
    "deleteNote": {"path": "a.md"},
    "manageFrontmatter": {"path": "a.md", "key": "k", "value": 1},
    "manageTags": {"path": "a.md", "tags": ["t"], "action": "add"},
    "searchReplace": {"path": "a.md", "search": "x", "replace": "y"},
}
"""Each tool with a valid body."""


@dataclass
class NoteStore:
    """A running `stentor notes`; `log` is its standard error."""

    process: Process
    address: str
    log: Path
    stub: PluginStub

    @property
    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=200, verify=False, trust_env=False)

    def call(self, tool: str, **body: Any) -> httpx.Response:
        with self.client as client:
            return client.post(f"/api/{tool}", json=body)

    def wait_for_first_request(self) -> None:
        """Wait for the request that the server sends when it starts."""
        until(lambda: self.stub.requests)

    def data(self, tool: str, **body: Any) -> Any:
        """Return the data of a successful call."""
        response = self.call(tool, **body)
        assert response.status_code == 200, response.text
        assert response.json().keys() == {"success", "data"}
        assert response.json()["success"] is True
        return response.json()["data"]

    def write(self, path: str, content: str | bytes) -> None:
        """Write a note into the plugin's folder, without a server."""
        file = self.stub.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def text(self, path: str) -> str:
        return (self.stub.root / path).read_bytes().decode()


def environ(address: str, **variables: str) -> dict[str, str]:
    required = {"MCP_API_KEY": KEY, "NOTES_BASE_URL": address, "NOTES_API_KEY": PLUGIN_KEY}
    return {"PATH": os.environ["PATH"], "PORT": "0", **required, **variables}


@contextmanager
def run_note_store(stub: PluginStub, log: Path, **variables: str) -> Iterator[NoteStore]:
    """Run the server until the end of the block; a test may stop it earlier."""
    process = Process(["notes", "--json"], environ(stub.address, **variables), log)
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        yield NoteStore(process, json.loads(line)["notes"], log, stub)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
        process.stdout.close()
