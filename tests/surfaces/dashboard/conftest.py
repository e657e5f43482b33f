"""The dashboard service in process, over the database of a world; its gateway is the world's kernel."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.bootstrap import dashboard as wiring
from stentor.core import settings
from tests.conftest import MakeWorld, World

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


@pytest.fixture
async def make_board(make_world: MakeWorld, tmp_path: Path) -> AsyncIterator[Any]:
    """Builds a Board; keyword arguments are settings of the dashboard alone."""
    opened: list[tuple[Any, httpx.AsyncClient]] = []

    async def make(world: World | None = None, **environ: str) -> Board:
        world = world or await make_world()
        vault = tmp_path / "vault"
        vault.mkdir(exist_ok=True)
        base = {"SERVICE_DATA_DIR": str(tmp_path), "SERVICE_TASK_NOTES": "0", "DASHBOARD_API_KEY": KEY}
        made = wiring.beside(world.kernel, settings.load({**base, **environ}), world.app, world.ring)
        http = httpx.AsyncClient(
            transport=httpx.ASGITransport(made.app), base_url=LOCAL, headers={"X-API-Key": KEY}, timeout=30
        )
        opened.append((made, http))
        return Board(world, http, vault)

    yield make
    for made, http in opened:
        await http.aclose()
        await made.close()


@pytest.fixture
async def board(make_board: Any) -> Board:
    made: Board = await make_board()
    return made
