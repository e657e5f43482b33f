"""`stentor notes` as a real process before a stub of the vault plugin."""

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
"""Each tool with a body that fits."""


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
        return httpx.Client(base_url=self.address, headers=headers, timeout=60, verify=False, trust_env=False)

    def call(self, tool: str, **body: Any) -> httpx.Response:
        with self.client as client:
            return client.post(f"/api/{tool}", json=body)

    def until_asked(self) -> None:
        """Waits for the one request that the start makes by itself."""
        until(lambda: self.stub.asked)

    def data(self, tool: str, **body: Any) -> Any:
        """What a call that succeeds answers."""
        answer = self.call(tool, **body)
        assert answer.status_code == 200, answer.text
        assert answer.json().keys() == {"success", "data"}
        assert answer.json()["success"] is True
        return answer.json()["data"]

    def write(self, path: str, content: str | bytes) -> None:
        """A note put into the plugin's folder, past every server."""
        file = self.stub.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def text(self, path: str) -> str:
        return (self.stub.root / path).read_bytes().decode()


def environ(address: str, **more: str) -> dict[str, str]:
    needed = {"MCP_API_KEY": KEY, "NOTES_BASE_URL": address, "NOTES_API_KEY": PLUGIN_KEY}
    return {"PATH": os.environ["PATH"], "PORT": "0", **needed, **more}


@contextmanager
def note_store(stub: PluginStub, log: Path, **more: str) -> Iterator[NoteStore]:
    """Started, and ended by SIGTERM unless the test ended it."""
    process = Process(["notes", "--json"], environ(stub.address, **more), log)
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        yield NoteStore(process, json.loads(line)["notes"], log, stub)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
        process.stdout.close()
