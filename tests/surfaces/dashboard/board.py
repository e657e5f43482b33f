"""The dashboard service over a world, as its callers have it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import World

KEY = "dashboard-key-7c1e"
LOCAL = "http://127.0.0.1:8081"


@dataclass
class Board:
    """A world, and a client of the dashboard over it; `vault` is the folder of its notes."""

    world: World
    http: httpx.AsyncClient
    vault: Path

    async def get(self, path: str, status: int = 200, **params: Any) -> Any:
        answer = await self.http.get(path, params=params)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def execute(self, **body: Any) -> list[tuple[str, dict[str, Any]]]:
        """The frames of a stream."""
        answer = await self.http.post("/api/cli/execute/stream", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return frames(answer.text)


def frames(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Kind and data of every event; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            assert set(fields) == {"event", "data"}
            found.append((fields["event"], json.loads(fields["data"])))
    return found
