"""The text index of the vault server: searches wait for its load, and reads that overlap keep the newest content."""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import pytest

from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import MAX_NOTE_BYTES, Note
from stentor_vault.server.app import VaultServer
from stentor_vault.server.read_handlers import JSON_LOGIC, NOTE_JSON
from stentor_vault.server.search import jsonlogic, text_index
from stentor_vault.server.search.text_index import VaultTextIndex
from tests.patience import soon
from tests.requirements import requirement
from tests.unreadable import make_unreadable


class SlowVault(FolderVault):
    """A vault that holds its next read until `release` is set, if `hold_next` is true."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.hold_next = False
        self.holding = threading.Event()
        self.release = threading.Event()

    def read_sync(self, path: str) -> Note:
        held, self.hold_next = self.hold_next, False
        note = super().read_sync(path)
        if held:
            self.holding.set()
            assert self.release.wait(200)
        return note


@pytest.fixture
def vault(tmp_path: Path) -> SlowVault:
    (tmp_path / "a.md").write_text("alpha")
    return SlowVault(tmp_path)


async def test_rule_time_limit_excludes_the_index_load(vault: SlowVault, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(jsonlogic, "time", SimpleNamespace(monotonic=lambda: now))

    class SlowIndex(VaultTextIndex):
        async def wait_until_loaded(self) -> None:
            nonlocal now
            await self.load()
            now += jsonlogic.MAX_SECONDS + 1

    # More steps than the rule runs between two checks of the clock.
    rule = {"some": [[*range(5000)], {"==": [{"var": ""}, 4999]}]}
    transport = httpx.ASGITransport(VaultServer(vault, SlowIndex(vault), "key"))
    headers = {"Authorization": "Bearer key", "Content-Type": JSON_LOGIC}
    async with httpx.AsyncClient(transport=transport, base_url="http://vault", headers=headers) as http:
        response = await http.post("/search", json=rule)
    assert (response.status_code, response.json()) == (200, [{"filename": "a.md", "result": True}])


async def test_read_that_ends_after_a_delete_does_not_restore_the_note(vault: SlowVault) -> None:
    index = VaultTextIndex(vault)
    index.request_load()
    vault.hold_next = True
    stale = asyncio.create_task(index.refresh("a.md"))
    assert await asyncio.to_thread(vault.holding.wait, 60)
    (vault.root / "a.md").unlink()
    await index.refresh("a.md")
    vault.release.set()
    await stale
    assert index.search("alpha", 10) == []


async def test_a_note_is_indexed_once_however_its_name_is_composed(vault: SlowVault) -> None:
    composed = "Caf\u00e9.md"
    decomposed = unicodedata.normalize("NFD", composed)
    index = VaultTextIndex(vault)
    await index.load()
    index.request_load()
    transport = httpx.ASGITransport(VaultServer(vault, index, "key"))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://vault/vault/", headers={"Authorization": "Bearer key"}
    ) as http:
        assert (await http.put(quote(decomposed), content="espresso #coffee")).status_code == 204
        (vault.root / "a.md").write_text(f"[[{composed[:-3]}]]")
        # The events of the two files, as a system sends them that keeps the one decomposed.
        for path in ("a.md", composed, decomposed):
            await index.refresh(path)
        assert [hit.filename for hit in index.search("espresso", 10)] == [composed]
        assert index.count_tags() == [{"name": "coffee", "count": 1}]
        note = (await http.get(quote(decomposed), headers={"Accept": NOTE_JSON})).json()
        assert (note["path"], note["backlinks"]) == (composed, ["a.md"])
        moved = await http.request(
            "MOVE", "a.md", headers={"Destination": quote(decomposed), "Allow-Overwrite": "true"}
        )
        assert (moved.status_code, moved.headers["Content-Location"]) == (204, quote(composed))
    (vault.root / composed).unlink()
    await index.refresh(decomposed)
    assert index.list_rule_data() == []
    assert index.links.find_backlinks(composed) == []


@requirement("memory.unreadable-left-out")
async def test_a_note_that_may_not_be_read_is_left_out_of_the_index(
    vault: SlowVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    (vault.root / "private.md").write_text("alpha")
    make_unreadable(monkeypatch, "private.md")
    index = VaultTextIndex(vault)
    await index.load()
    index.request_load()
    await index.refresh("private.md")
    assert [hit.filename for hit in index.search("alpha", 10)] == ["a.md"]


async def test_read_numbers_are_dropped_when_a_read_ends(vault: SlowVault) -> None:
    index = VaultTextIndex(vault)
    index.request_load()
    sizes = []
    for n in range(3):
        file = vault.root / f"note-{n}.md"
        file.write_text("text")
        await index.refresh(file.name)
        file.unlink()
        await index.refresh(file.name)
        sizes.append(sum(len(value) for value in vars(index).values() if isinstance(value, dict)))
    assert sizes == [0, 0, 0]


async def test_what_changed_while_a_watch_had_failed_is_found(
    vault: SlowVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches = count(1)

    async def watch_changes(root: Path) -> AsyncIterator[set[str]]:
        if next(watches) == 1:
            await index.wait_until_loaded()
            (root / "a.md").write_text("beta")
            raise OSError("the folder is not mounted")
        await asyncio.Event().wait()
        yield set()

    monkeypatch.setattr(text_index, "watch_changes", watch_changes)
    monkeypatch.setattr(text_index, "RETRY_SECONDS", 0)
    index = VaultTextIndex(vault)
    follow = asyncio.create_task(index.run())
    index.request_load()
    await soon(lambda: index.search("beta", 10))
    follow.cancel()


async def test_many_new_folders_are_one_reload(vault: SlowVault, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, loads = asyncio.Queue[set[str]](), 0

    class CountingIndex(VaultTextIndex):
        async def load(self) -> None:
            nonlocal loads
            loads += 1
            await super().load()

    async def watch_changes(root: Path) -> AsyncIterator[set[str]]:
        while True:
            yield await batches.get()

    monkeypatch.setattr(text_index, "watch_changes", watch_changes)
    index = CountingIndex(vault)
    follow = asyncio.create_task(index.run())
    await index.wait_until_loaded()
    for n in range(20):
        (vault.root / f"folder-{n}").mkdir()
        (vault.root / f"folder-{n}/n.md").write_text("beta")
    batches.put_nowait({str(path) for path in vault.root.rglob("*")})
    await soon(lambda: len(index.search("beta", 10)) == 20)
    follow.cancel()
    assert loads == 2


async def test_the_notes_of_a_folder_that_was_moved_away_are_not_found(vault: SlowVault) -> None:
    folder = vault.root / "v1.2 of 2026"
    (folder / "more").mkdir(parents=True)
    (folder / "more" / "n.md").write_text("beta")
    index = VaultTextIndex(vault)
    follow = asyncio.create_task(index.run())
    await index.wait_until_loaded()
    assert index.search("beta", 10)
    (vault.root / ".trash").mkdir()
    folder.rename(vault.root / ".trash" / folder.name)
    await soon(lambda: not index.search("beta", 10))
    follow.cancel()


async def test_only_notes_of_a_readable_size_are_read(vault: SlowVault) -> None:
    for name in ("video.mp4", "long.md"):
        with (vault.root / name).open("wb") as file:
            file.truncate(MAX_NOTE_BYTES + 1)
    read: list[str] = []

    class RecordingVault(FolderVault):
        def read_sync(self, path: str) -> Note:
            read.append(path)
            return super().read_sync(path)

    index = VaultTextIndex(RecordingVault(vault.root))
    await index.load()
    index.request_load()
    for name in ("video.mp4", "long.md", "deleted.png"):
        await index.refresh(name)
    assert read == ["a.md"]
    (vault.root / "a.md").write_text("[[video.mp4]] [[deleted.png]]")
    await index.refresh("a.md")
    assert index.links.get_links("a.md").links == ["video.mp4"]
