"""One process for most tests, over a vault that is empty for each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.surfaces.notestore.running import NoteStore, note_store
from tests.vaultplugin.server import plugin


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoteStore]:
    folder: Path = tmp_path_factory.mktemp("notestore")
    with plugin(folder / "vault") as stub, note_store(stub, folder / "log", MCP_LOG_LEVEL="debug") as store:
        store.until_asked()
        yield store


@pytest.fixture
def store(running: NoteStore) -> Iterator[NoteStore]:
    stub = running.stub
    shutil.rmtree(stub.root)
    stub.root.mkdir()
    stub.version, stub.mood = 5, "ok"
    stub.asked.clear()
    yield running
    stub.mood = "ok"
