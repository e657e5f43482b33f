"""Updates of one index that overlap, and files of a vault that have no entry in it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stentor.domains.memory.index import indexer, watcher
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.indexer import Indexer
from stentor.domains.memory.index.lag import SyncLag
from stentor.domains.memory.index.model import IndexEntry
from stentor.domains.memory.index.protocols import IndexDifference
from stentor.domains.memory.index.sqlite.sqlite import open_index
from stentor.testing import FixedClock
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import MAX_NOTE_BYTES, Note, Stat
from tests.caseless import ignore_case
from tests.patience import soon
from tests.requirements import requirement
from tests.unreadable import make_unreadable

Update = Callable[[Indexer], Awaitable[Any]]


class Gate:
    """Stops the first call that passes it, after its work, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def passing(self) -> None:
        self.reached.set()
        await self.open.wait()


class GatedVault(FolderVault):
    """Stops the caller that read a file or listed the files, until the gate is opened."""

    gates: dict[str, Gate]

    async def read(self, path: str) -> Note:
        try:
            return await super().read(path)
        finally:
            await self._pass("read")

    async def walk(self, folder: str = "") -> list[Stat]:
        found = await super().walk(folder)
        await self._pass("walk")
        return found

    async def _pass(self, method: str) -> None:
        if gate := self.gates.pop(method, None):
            await gate.passing()


class Vault:
    """A vault, its index and its indexer, with nothing that watches."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "notes"
        self.root.mkdir()
        self.index: SearchIndex = open_index(folder / "notes-index")
        self._vault = GatedVault(self.root, max_read_bytes=MAX_NOTE_BYTES)
        self._vault.gates = {}
        self.indexer = Indexer(self._vault, self.index, FixedClock())

    def stop_after(self, method: str) -> Gate:
        gate = self._vault.gates[method] = Gate()
        return gate

    async def write(self, text: str) -> None:
        """As the service writes: first the file, then the index."""
        change = await self._vault.write("a.md", text.encode())
        assert change.stat is not None
        await self.indexer.index_notes([Note(change.stat, text.encode())])

    async def delete(self) -> None:
        await self._vault.delete("a.md")
        await self.indexer.remove(["a.md"])

    async def texts(self) -> dict[str, str]:
        return await self.index.read_bodies(["a.md"])


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    made = Vault(tmp_path)
    yield made
    made.index.close()


async def check(indexer: Indexer) -> None:
    await indexer.check_files(["a.md"])


async def reindex(indexer: Indexer) -> None:
    await indexer.reindex("", 10)


@pytest.mark.parametrize("update", [check, Indexer.reconcile, reindex])
async def test_a_check_that_read_an_old_file_does_not_replace_the_entry_of_a_write(
    vault: Vault, update: Update
) -> None:
    (vault.root / "a.md").write_text("first")
    gate = vault.stop_after("read")
    late = asyncio.ensure_future(update(vault.indexer))
    await gate.reached.wait()
    await vault.write("second")
    gate.open.set()
    await late
    assert await vault.texts() == {"a.md": "second"}


@pytest.mark.parametrize("update", [check, Indexer.reconcile, reindex])
async def test_a_check_that_read_an_old_file_does_not_bring_back_what_was_deleted(vault: Vault, update: Update) -> None:
    (vault.root / "a.md").write_text("first")
    gate = vault.stop_after("read")
    late = asyncio.ensure_future(update(vault.indexer))
    await gate.reached.wait()
    await vault.delete()
    gate.open.set()
    await late
    assert await vault.texts() == {}


@pytest.mark.parametrize(
    ("update", "method"), [(check, "read"), (Indexer.reconcile, "read"), (Indexer.reconcile, "walk"), (reindex, "walk")]
)
async def test_a_check_that_found_no_file_does_not_remove_the_entry_of_a_write(
    vault: Vault, update: Update, method: str
) -> None:
    await vault.write("first")
    (vault.root / "a.md").unlink()
    gate = vault.stop_after(method)
    late = asyncio.ensure_future(update(vault.indexer))
    await gate.reached.wait()
    await vault.write("second")
    gate.open.set()
    await late
    assert await vault.texts() == {"a.md": "second"}


@pytest.mark.parametrize("text", ["third", None])
async def test_a_write_that_is_indexed_late_does_not_replace_what_was_edited_meanwhile(
    vault: Vault, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert, gate = vault.index.upsert, Gate()

    async def slow(*args: Any, **options: Any) -> dict[str, int]:
        monkeypatch.setattr(vault.index, "upsert", upsert)
        await gate.passing()
        return await upsert(*args, **options)

    monkeypatch.setattr(vault.index, "upsert", slow)
    late = asyncio.ensure_future(vault.write("second"))
    await gate.reached.wait()
    (vault.root / "a.md").unlink()
    if text is not None:
        (vault.root / "a.md").write_text(text)
    await check(vault.indexer)
    gate.open.set()
    await late
    assert await vault.texts() == ({} if text is None else {"a.md": text})


async def test_a_file_whose_path_is_too_long_is_left_out_and_changes_nothing(vault: Vault) -> None:
    folder = vault.root.joinpath(*(["d" * 200] * 6))
    folder.mkdir(parents=True)
    (folder / "deep.md").write_text("deep")
    (vault.root / "e.md").write_text("flat")
    assert await vault.indexer.reconcile() == 1
    assert await vault.indexer.reconcile() == 0
    step = await vault.indexer.reindex("", 10)
    assert (step.done, step.next) == (1, None)
    assert [one.problem for one in (await vault.indexer.verify("", 10)).differences] == ["invalid_name"]


@requirement("memory.left-out-named")
async def test_a_note_that_the_index_cannot_have_is_named_by_verify_and_once_in_the_log(
    vault: Vault, caplog: pytest.LogCaptureFixture
) -> None:
    (vault.root / "Q\\ folder").mkdir()
    contents = {
        "What is\\DNS.md": b"a", "Q\\ folder/in.md": b"a", "latin.md": b"\xe9", "utf16.md": "a".encode("utf-16"),
        "good.md": b"a", "why\\.png": b"\x89PNG", "binary.png": b"\x89PNG\xff",
    }  # fmt: skip
    for name, content in contents.items():
        (vault.root / name).write_bytes(content)
    for name in ("large.md", "film.mp4"):
        with (vault.root / name).open("wb") as file:
            file.truncate(MAX_NOTE_BYTES + 1)
    for _ in range(2):
        await vault.indexer.reconcile()
    found = {one.path: one.problem for one in (await vault.indexer.verify("", 20)).differences}
    assert found == {
        "What is\\DNS.md": "invalid_name", "Q\\ folder/in.md": "invalid_name",
        "latin.md": "not_utf8", "utf16.md": "not_utf8", "large.md": "too_large",
    }  # fmt: skip
    lines = [record.message for record in caplog.records if "left out" in record.message]
    assert [sum(repr(name) in line for line in lines) for name in found] == [1, 1, 1, 1, 1]
    assert len(lines) == 5


@pytest.mark.parametrize("name", ["Meeting 10:30", "why?", "ends with a space ", "ends with a dot.", "con"])
@pytest.mark.parametrize("is_made", [True, False])
async def test_a_name_that_no_vault_accepts_does_not_end_the_watching(
    vault: Vault, name: str, is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def events(root: Path, *, poll: bool) -> AsyncIterator[set[str]]:
        if is_made:
            (root / name).mkdir()
        yield {str(root / name)}
        (root / "a.md").write_text("text")
        yield {str(root / "a.md")}
        await asyncio.Event().wait()

    monkeypatch.setattr(watcher, "watch_changes", events)
    watching = asyncio.ensure_future(
        watcher.VaultWatcher(vault.root, vault.indexer, reconcile_seconds=1e6)._watch_events(vault.root)
    )

    async def is_indexed() -> bool:
        assert not watching.done(), watching.exception()
        return await vault.texts() == {"a.md": "text"}

    await soon(is_indexed)
    watching.cancel()


async def test_a_change_that_cannot_be_checked_does_not_end_the_watching(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_files, texts = vault.indexer.check_files, iter(["first", "second"])

    async def fail_once(*args: Any) -> None:
        monkeypatch.setattr(vault.indexer, "check_files", check_files)
        raise ValueError("broken")

    async def events(root: Path, *, poll: bool) -> AsyncIterator[set[str]]:
        (root / "a.md").write_text(next(texts))
        yield {str(root / "a.md")}
        await asyncio.Event().wait()

    monkeypatch.setattr(vault.indexer, "check_files", fail_once)
    monkeypatch.setattr(watcher, "watch_changes", events)
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0)
    watching = asyncio.ensure_future(
        watcher.VaultWatcher(vault.root, vault.indexer, reconcile_seconds=1e6)._watch_events(vault.root)
    )

    async def is_indexed() -> bool:
        assert not watching.done(), watching.exception()
        return await vault.texts() == {"a.md": "second"}

    await soon(is_indexed)
    watching.cancel()


async def test_a_watch_that_begins_again_finds_what_changed_in_between(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, reconciled, reconcile_all = 0, list[int](), vault.indexer.reconcile

    async def events(root: Path, *, poll: bool) -> AsyncIterator[set[str]]:
        nonlocal begun
        begun += 1
        await soon(lambda: reconciled)
        if begun < 9:
            raise OSError("no watch is free")
        (root / "a.md").write_text("no event tells of it")
        yield set()
        await asyncio.Event().wait()

    async def reconcile() -> int:
        changed = await reconcile_all()
        reconciled.append(begun)
        return changed

    monkeypatch.setattr(vault.indexer, "reconcile", reconcile)
    monkeypatch.setattr(watcher, "watch_changes", events)
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0)
    watching = asyncio.ensure_future(watcher.VaultWatcher(vault.root, vault.indexer, reconcile_seconds=1e6).run())

    async def is_indexed() -> bool:
        assert not watching.done(), watching.exception()
        return await vault.texts() == {"a.md": "no event tells of it"}

    await soon(is_indexed)
    await soon(lambda: len(reconciled) > 1)
    assert len(reconciled) == 2  # not after each watch that could not begin
    watching.cancel()


@requirement("memory.unreadable-left-out")
async def test_what_may_not_be_read_is_left_as_it_is_and_all_else_is_indexed(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (vault.root / "lost+found").mkdir()
    for name in ("a.md", "old.md", "private.md", "z.md"):
        (vault.root / name).write_text("one")
        await vault.indexer.check_files(["old.md"])
    with monkeypatch.context() as refused:
        make_unreadable(refused, "old.md", "private.md", "lost+found")
        (vault.root / "old.md").write_text("changed")
        assert [await vault.indexer.reconcile() for _ in range(2)] == [2, 0]
        await vault.indexer.check_folder("lost+found")
        await vault.indexer.check_files(["private.md"])
        assert (await vault.indexer.reindex("", 10)).done == 2
        found = (await vault.indexer.verify("", 10)).differences
    assert [(one.path, one.problem) for one in found] == [("old.md", "stale"), ("private.md", "missing")]
    assert await vault.index.read_bodies(["a.md", "old.md", "private.md", "z.md"]) == dict.fromkeys(
        ["a.md", "old.md", "z.md"], "one"
    )
    lines = [record.message for record in caplog.records if "left out" in record.message]
    assert [sum(repr(name) in line for line in lines) for name in ("old.md", "private.md")] == [1, 1]
    assert await vault.indexer.reconcile() == 2
    assert (await vault.indexer.verify("", 10)).differences == []


async def test_a_rename_in_letter_case_only_leaves_one_note_on_a_disk_that_ignores_case(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_case(monkeypatch, vault.root)
    follow = watcher.VaultWatcher(vault.root, vault.indexer, reconcile_seconds=1e6)
    (vault.root / "projects").mkdir()
    (vault.root / "projects/plan.md").write_text("text")
    await vault.indexer.reconcile()
    for old, new in (("projects", "Projects"), ("Projects/plan.md", "Projects/Plan.md")):
        (vault.root / old).rename(vault.root / new)
        await follow._check_changes(vault.root, {str(vault.root / old), str(vault.root / new)})
        assert len(await vault.index.file_states()) == 1
    (vault.root / "Projects/Plan.md").rename(vault.root / "Projects/PLAN.md")
    await vault.indexer.reconcile()
    assert list(await vault.index.file_states()) == ["Projects/PLAN.md"]


async def test_two_edits_of_one_size_and_second_are_both_indexed_although_a_sync_program_rounds_their_time(
    vault: Vault,
) -> None:
    follow = watcher.VaultWatcher(vault.root, vault.indexer, reconcile_seconds=1e6)
    for text in ("- [ ] pay", "- [x] pay"):
        (vault.root / "a.md").write_text(text)
        os.utime(vault.root / "a.md", (1_700_000_000, 1_700_000_000))
        await follow._check_changes(vault.root, {str(vault.root / "a.md")})
        assert await vault.texts() == {"a.md": text}


async def test_a_file_that_a_folder_replaces_leaves_the_index_at_the_event(vault: Vault) -> None:
    follow = watcher.VaultWatcher(vault.root, vault.indexer, reconcile_seconds=1e6)
    (vault.root / "LICENSE").write_text("old")
    await vault.indexer.reconcile()
    (vault.root / "LICENSE").unlink()
    (vault.root / "LICENSE").mkdir()
    (vault.root / "LICENSE/in.md").write_text("new")
    await follow._check_changes(vault.root, {str(vault.root / "LICENSE")})
    assert list(await vault.index.file_states()) == ["LICENSE/in.md"]


async def test_reindex_counts_the_notes_that_the_index_has_as_verify_does(vault: Vault) -> None:
    (vault.root / "a.md").write_text("text")
    (vault.root / "b.png").write_bytes(b"\x89PNG\xff")
    assert (await vault.indexer.reindex("", 10)).done == (await vault.indexer.verify("", 10)).done == 1


async def test_a_file_that_is_not_text_is_read_once_and_forgotten_when_it_is_gone(vault: Vault) -> None:
    (vault.root / "b.png").write_bytes(b"\x89PNG\xff")
    assert [await vault.indexer.reconcile() for _ in range(2)] == [1, 0]
    (vault.root / "b.png").unlink()
    assert await vault.indexer.reconcile() == 0
    assert vault.indexer._unindexed == {}


async def test_a_file_that_is_larger_than_a_note_may_be_is_never_read_and_leaves_the_index(vault: Vault) -> None:
    (vault.root / "a.md").write_text("text")
    assert await vault.indexer.reconcile() == 1
    # Sparse: of the size that reading it whole would need in memory.
    for name in ("a.md", "video.mp4"):
        with (vault.root / name).open("ab") as file:
            file.truncate(1 << 40)
    await vault.indexer.check_files(["a.md", "video.mp4"])
    assert await vault.texts() == {}
    assert [await vault.indexer.reconcile() for _ in range(2)] == [0, 0]
    assert (await vault.indexer.reindex("", 10)).done == 0
    assert (await vault.indexer.verify("", 10)).differences == [IndexDifference("a.md", "too_large")]


async def test_only_a_few_large_files_are_held_at_once(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "BATCH_BYTES", 20)
    for name in "abcdef":
        (vault.root / f"{name}.md").write_text(name * 8)
    upsert, sizes = vault.index.upsert, list[int]()

    async def record(entries: Sequence[IndexEntry], *args: Any, **options: Any) -> dict[str, int]:
        sizes.append(sum(entry.size for entry in entries))
        return await upsert(entries, *args, **options)

    monkeypatch.setattr(vault.index, "upsert", record)
    assert await vault.indexer.reconcile() == 6
    assert sizes == [24, 24]


@pytest.mark.parametrize(("count", "p95"), [(1, 1), (20, 19), (40, 38), (100, 95)])
def test_of_the_latest_lags_one_in_twenty_is_above_the_95th_percentile(count: int, p95: int) -> None:
    lag = SyncLag(f"stentor_test_lag_{count}_seconds", "keyword")
    for seconds in range(count, 0, -1):
        lag.add(seconds)
    assert lag.p95 == p95


@requirement("memory.left-out-named")
async def test_names_that_no_path_can_address_are_named_too(vault: Vault, caplog: pytest.LogCaptureFixture) -> None:
    names = [
        b"latin\xe9.md", b"d\xe9/in.md",
        "Caf\u00e9.md", "Cafe\u0301.md", "f\u00e9/in.md", "fe\u0301/in.md", "E\u0301.md",
    ]  # fmt: skip
    for name in names:
        file = vault.root / os.fsdecode(name)
        file.parent.mkdir(exist_ok=True)
        file.write_text(ascii(name))
    await vault.indexer.reconcile()
    problems = {one.path: one.problem for one in (await vault.indexer.verify("", 10)).differences}
    left_out = [r"Cafe\u0301.md", r"d\xe9/in.md", r"fe\u0301/in.md", r"latin\xe9.md"]
    assert problems == dict.fromkeys(left_out, "invalid_name")
    assert sorted(await vault.index.file_states()) == ["Caf\u00e9.md", "f\u00e9/in.md", "\u00c9.md"]
    assert sum("left out" in record.message for record in caplog.records) == 4


@requirement("memory.edits-of-any-folder")
async def test_an_edit_is_found_beside_links_and_names_that_are_not_utf8(vault: Vault) -> None:
    (vault.root / "notes").mkdir()
    (vault.root / "z").mkdir()
    (vault.root / "z" / "link").symlink_to("../notes")
    (vault.root / os.fsdecode(b"d\xe9")).mkdir()
    watching = asyncio.ensure_future(
        watcher.VaultWatcher(vault.root, vault.indexer, reconcile_seconds=1e6)._watch_events(vault.root)
    )
    await asyncio.sleep(0)
    (vault.root / "notes" / "a.md").write_text("text")

    async def is_indexed() -> bool:
        return await vault.index.read_bodies(["notes/a.md"]) == {"notes/a.md": "text"}

    await soon(is_indexed)
    watching.cancel()
