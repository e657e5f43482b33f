"""Run `stentor notes` as a process in front of a `stentor vault` process or a stub."""

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

KEY = "agents-key-2b6d"
VAULT_KEY = "plugin-key-9f1c"


@contextmanager
def run_command(*arguments: str, **environ: str) -> Iterator[dict[str, Any]]:
    """Run a `stentor` command until the end of the block; yield its first line of output."""
    base = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    with Process([*arguments, "--json"], {**base, **environ}) as process:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.stderr.read())
        yield json.loads(line)
        process.terminate()
        assert process.wait(200) == 0
        log = process.stderr.read()
        assert "Traceback" not in log
        assert KEY not in log
        assert VAULT_KEY not in log


@dataclass
class HeadlessNoteStore:
    http: httpx.Client
    root: Path

    def call(self, tool: str, body: Any = None, **fields: Any) -> httpx.Response:
        return self.http.post(f"/api/{tool}", json=fields if body is None else body)

    def data(self, tool: str, **fields: Any) -> dict[str, Any]:
        """Return the data of a successful call."""
        response = self.call(tool, fields)
        assert response.status_code == 200, response.text
        assert response.json()["success"] is True
        return dict(response.json()["data"])


@contextmanager
def run_notes_command(plugin_url: str, root: Path, **environ: str) -> Iterator[HeadlessNoteStore]:
    keys = {"MCP_API_KEY": KEY, "NOTES_BASE_URL": plugin_url, "NOTES_API_KEY": VAULT_KEY, "PORT": "0"}
    with (
        run_command("notes", **{**keys, **environ}) as ready,
        httpx.Client(base_url=ready["notes"], headers={"Authorization": f"Bearer {KEY}"}, timeout=200) as http,
    ):
        yield HeadlessNoteStore(http, root)
