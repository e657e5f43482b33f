"""`stentor notes` in front of a plugin stub or a `stentor vault`; the vault is empty for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.surfaces.notestore.headless import VAULT_KEY, HeadlessNoteStore, run_command, run_notes_command
from tests.surfaces.notestore.note_store import NoteStore, run_note_store
from tests.vaultplugin.server import plugin


@pytest.fixture(scope="package")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoteStore]:
    folder: Path = tmp_path_factory.mktemp("notestore")
    with plugin(folder / "vault") as stub, run_note_store(stub, folder / "log", MCP_LOG_LEVEL="debug") as store:
        store.wait_for_first_request()
        yield store


@pytest.fixture
def store(shared_store: NoteStore) -> Iterator[NoteStore]:
    stub = shared_store.stub
    shutil.rmtree(stub.root)
    stub.root.mkdir()
    stub.version, stub.behaviour = 5, "ok"
    stub.requests.clear()
    yield shared_store
    stub.behaviour = "ok"


@pytest.fixture(scope="module")
def headless_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadlessNoteStore]:
    folder = tmp_path_factory.mktemp("notes")
    root = folder / "vault"
    arguments = ("vault", str(root), "--data-dir", str(folder / "data"), "--port", "0", "--no-tls")
    with ExitStack() as stack:
        ready = stack.enter_context(run_command(*arguments, SERVICE_VAULT_KEY=VAULT_KEY))
        yield stack.enter_context(run_notes_command(ready["vault"], root))


@pytest.fixture
def notes(headless_store: HeadlessNoteStore) -> HeadlessNoteStore:
    """The note store with an empty vault."""
    for path in sorted(headless_store.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return headless_store
