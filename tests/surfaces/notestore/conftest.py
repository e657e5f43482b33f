"""`stentor notes` before a stub of the plugin, and before `stentor vault`; the vault is empty for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.surfaces.notestore.headless import VAULT_KEY, Notes, notes_before, program
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


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notes]:
    folder = tmp_path_factory.mktemp("notes")
    root = folder / "vault"
    words = ("vault", str(root), "--data-dir", str(folder / "data"), "--port", "0", "--no-tls")
    with ExitStack() as stack:
        ready = stack.enter_context(program(*words, SERVICE_VAULT_KEY=VAULT_KEY))
        yield stack.enter_context(notes_before(ready["vault"], root))


@pytest.fixture
def notes(both: Notes) -> Notes:
    """Empty at the begin of each test."""
    for path in sorted(both.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return both
