"""A `stentor notes` in a process of its own, in front of a `stentor vault` in another, or of a stub."""

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
def program(*words: str, **environ: str) -> Iterator[dict[str, Any]]:
    """A command of ours until the end of the block; what it said when it was ready."""
    base = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    with Process([*words, "--json"], {**base, **environ}) as process:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.stderr.read())
        yield json.loads(line)
        process.terminate()
        assert process.wait(60) == 0
        said = process.stderr.read()
        assert "Traceback" not in said
        assert KEY not in said
        assert VAULT_KEY not in said


@dataclass
class Notes:
    http: httpx.Client
    root: Path

    def call(self, tool: str, body: Any = None, **fields: Any) -> httpx.Response:
        return self.http.post(f"/api/{tool}", json=fields if body is None else body)

    def data(self, tool: str, **fields: Any) -> dict[str, Any]:
        """The data of a success."""
        answer = self.call(tool, fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["success"] is True
        return dict(answer.json()["data"])


@contextmanager
def notes_before(plugin: str, root: Path, **environ: str) -> Iterator[Notes]:
    keys = {"MCP_API_KEY": KEY, "NOTES_BASE_URL": plugin, "NOTES_API_KEY": VAULT_KEY, "PORT": "0"}
    with (
        program("notes", **{**keys, **environ}) as ready,
        httpx.Client(base_url=ready["notes"], headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as http,
    ):
        yield Notes(http, root)
