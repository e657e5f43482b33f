"""The menu offers what a key can open, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stentor.surfaces.dashboard.site.layout import MENU
from tests.conftest import MakeWorld
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

ENTRY = re.compile(r'<li><a href="([^"]+)"[^>]* data-key=')


@requirement("dashboard.menu")
@pytest.mark.parametrize("role", ["viewer", "operator", "approver", "admin"])
async def test_the_menu_has_the_pages_that_the_key_can_open(make_world: MakeWorld, make_board: Any, role: str) -> None:
    site = Site(await make_board(await make_world(SERVICE_MEMORY="1")))
    made = await site.world.admin.post("/api/v1/keys", json={"name": "dana", "role": role})
    browser = await site.browser_of(made.json()["key"])
    offered = ENTRY.findall((await browser.get("/tasks")).text)
    statuses = {path: (await browser.get(path)).status_code for path, *_ in MENU}
    opens = [path for path, status in statuses.items() if status != 403]
    # The console opens for everyone who may read, to follow tasks; only who may write can use it.
    assert offered == [path for path in opens if path != "/console" or role in ("operator", "admin")]
    await browser.aclose()
