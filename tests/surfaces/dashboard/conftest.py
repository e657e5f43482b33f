"""The dashboard service in process, over the database of a world; its gateway is the world's kernel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.bootstrap.surfaces import dashboard as wiring
from stentor.core import settings
from tests.conftest import MakeWorld, World
from tests.surfaces.dashboard.board import KEY, LOCAL, Board
from tests.surfaces.dashboard.signed_in import Site


@pytest.fixture
async def make_board(make_world: MakeWorld, tmp_path: Path) -> AsyncIterator[Any]:
    """Builds a Board; keyword arguments are settings of the dashboard alone."""
    opened: list[tuple[Any, httpx.AsyncClient]] = []

    async def make(world: World | None = None, **environ: str) -> Board:
        world = world or await make_world(SERVICE_TASK_SEARCH="1")
        vault = tmp_path / "vault"
        vault.mkdir(exist_ok=True)
        base = {"SERVICE_DATA_DIR": str(tmp_path), "SERVICE_TASK_NOTES": "0", "DASHBOARD_API_KEY": KEY}
        made = wiring.open_beside(world.kernel, settings.load({**base, **environ}), world.context)
        http = httpx.AsyncClient(
            transport=httpx.ASGITransport(made.app), base_url=LOCAL, headers={"X-API-Key": KEY}, timeout=200
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


@pytest.fixture
async def site(make_board: Any) -> AsyncIterator[Site]:
    """The pages, with browsers that sign in as they are asked for."""
    made = Site(await make_board())
    yield made
    for browser in made.browsers.values():
        await browser.aclose()
