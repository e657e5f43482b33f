"""The gateway with everything that it can have."""

from __future__ import annotations

import pytest

from tests.conftest import MakeWorld, World


@pytest.fixture
async def world(make_world: MakeWorld) -> World:
    made: World = await make_world(SERVICE_MEMORY="1")
    return made
