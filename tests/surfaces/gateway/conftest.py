"""The gateway with everything that it can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeWorld, World


@pytest.fixture
async def world(make_world: MakeWorld, tmp_path: Path, model_cache: Path) -> World:
    (tmp_path / "index").mkdir(mode=0o700)
    (tmp_path / "index" / "models").symlink_to(model_cache)
    made: World = await make_world(SERVICE_MEMORY="1", SERVICE_EMBEDDING_MODEL="")
    return made
