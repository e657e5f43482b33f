"""Notes that are written or read at the same time: each on its own, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from stentor.core.errors import InvalidRequest
from stentor_vault.notes.files import batch_io
from stentor_vault.notes.files.batch_io import FsyncPool, WriteRequest
from stentor_vault.notes.files.thread_batcher import ThreadBatcher
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import NO_FILE, FileChange, NameTaken, NoSuchNote, Note, NoteChanged, VaultUnavailable
from tests.requirements import requirement


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "vault"
    folder.mkdir()
    return folder


@pytest.fixture
def vault(root: Path) -> FolderVault:
    return FolderVault(root)


class Watched(FsyncPool):
    """Notes what was under which name at every flush; fails for the file with `bad` in it."""

    def __init__(self, root: Path, bad: bytes = b"none") -> None:
        super().__init__()
        self.root, self.bad = root, bad
        self.seen: list[tuple[list[str], dict[str, bytes]]] = []

    def sync_all(self, opened: Sequence[int]) -> dict[int | None, OSError]:
        names = [Path(f"/proc/self/fd/{one}").readlink() for one in opened]
        kinds = ["folder" if name.is_dir() else name.read_bytes().decode() for name in names]
        shown = {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("[!.]*.md")}
        self.seen.append((sorted(kinds), shown))
        failed: dict[int | None, OSError] = {
            one: OSError(errno.EIO, "Input/output error")
            for one, name in zip(opened, names, strict=True)
            if name.is_file() and name.read_bytes() == self.bad
        }
        return super().sync_all(opened) | failed


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def kinds(outcomes: Sequence[FileChange | Note | Exception]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


@requirement("memory.writes-together")
def test_what_cannot_be_written_takes_down_no_other(vault: FolderVault, root: Path) -> None:
    for path in ("old.md", "Taken.md", "file"):
        vault.write_sync(path, b"old")
    wishes = [
        WriteRequest("new.md", b"1"),
        WriteRequest("old.md", b"2", NO_FILE),
        WriteRequest("taken.md", b"3"),
        WriteRequest("file/below.md", b"4"),
        WriteRequest("../out.md", b"5"),
        WriteRequest("deep/er/new.md", b"6", NO_FILE),
        WriteRequest("old.md", b"7"),
        WriteRequest("large.md", b"8" * (20 * 1024 * 1024 + 1)),
    ]
    outcomes = vault.write_batch_sync(wishes)
    assert kinds(outcomes[:4]) == [FileChange, NoteChanged, NameTaken, NoSuchNote]
    assert isinstance(outcomes[4], InvalidRequest)
    assert kinds(outcomes[5:7]) == [FileChange, FileChange]
    assert isinstance(outcomes[7], InvalidRequest)
    assert files(root) == {"new.md": b"1", "old.md": b"7", "Taken.md": b"old", "file": b"old", "deep/er/new.md": b"6"}


def test_two_of_one_path_are_written_one_after_the_other(vault: FolderVault, root: Path) -> None:
    outcomes = vault.write_batch_sync(
        [WriteRequest("a.md", b"1"), WriteRequest("a.md", b"2"), WriteRequest("A.md", b"3"), WriteRequest("a.md", b"4")]
    )
    assert kinds(outcomes) == [FileChange, FileChange, NameTaken, FileChange]
    assert [one.previous for one in outcomes if isinstance(one, FileChange)] == [None, b"1", b"2"]
    assert files(root) == {"a.md": b"4"}


@requirement("memory.writes-together")
def test_a_file_has_its_name_only_when_it_is_durable_and_a_folder_is_flushed_once(root: Path) -> None:
    (root / "x").mkdir()
    (root / "x" / "2.md").write_bytes(b"old")
    flush = Watched(root)
    batch_io.write_batch(
        root, [WriteRequest("x/1.md", b"one"), WriteRequest("x/2.md", b"two"), WriteRequest("y/3.md", b"three")], flush
    )
    assert flush.seen == [
        (["one", "three", "two"], {"x/2.md": b"old"}),
        (["folder", "folder"], {"x/1.md": b"one", "x/2.md": b"two", "y/3.md": b"three"}),
    ]


@requirement("memory.writes-together")
def test_a_disk_that_fails_for_one_file_leaves_the_old_note_and_writes_the_others(root: Path) -> None:
    (root / "2.md").write_bytes(b"old")
    outcomes = batch_io.write_batch(
        root,
        [WriteRequest("1.md", b"1"), WriteRequest("2.md", b"bad"), WriteRequest("3.md", b"3")],
        Watched(root, b"bad"),
    )
    assert kinds(outcomes) == [FileChange, VaultUnavailable, FileChange]
    assert files(root) == {"1.md": b"1", "2.md": b"old", "3.md": b"3"}


def test_a_folder_that_cannot_be_flushed_fails_the_writes_into_it(root: Path) -> None:
    class Broken(FsyncPool):
        def sync_all(self, opened: Sequence[int]) -> dict[int | None, OSError]:
            bad = [one for one in opened if os.readlink(f"/proc/self/fd/{one}").endswith("/bad")]  # noqa: PTH115
            return {one: OSError(errno.EIO, "Input/output error") for one in bad}

    outcomes = batch_io.write_batch(
        root,
        [WriteRequest("bad/1.md", b"1"), WriteRequest("good/2.md", b"2"), WriteRequest("bad/3.md", b"3")],
        Broken(),
    )
    assert kinds(outcomes) == [VaultUnavailable, FileChange, VaultUnavailable]


def test_every_note_of_many_is_read_or_said_to_be_missing(vault: FolderVault, root: Path) -> None:
    vault.write_sync("x/a.md", b"a")
    os.mkfifo(root / "pipe.md")
    wanted = ["x/a.md", "x/none.md", "none/a.md", "pipe.md", "../a.md"]
    found = vault.read_batch_sync(wanted)
    assert kinds(found[:4]) == [Note, NoSuchNote, NoSuchNote, NoSuchNote]
    assert isinstance(found[4], InvalidRequest)
    assert found[0] == vault.read_sync("x/a.md")


async def test_many_writers_and_readers_at_once_get_each_their_own_answer(vault: FolderVault, root: Path) -> None:
    paths = [f"{i % 3}/{i}.md" for i in range(100)]
    done = await asyncio.gather(*(vault.write(path, path.encode(), NO_FILE) for path in paths))
    assert [change.stat.path for change in done if change.stat] == paths
    again = await asyncio.gather(*(vault.write(path, b"no", NO_FILE) for path in paths), return_exceptions=True)
    assert {type(one) for one in again} == {NoteChanged}
    found = await asyncio.gather(*(vault.read(path) for path in paths))
    assert [note.content.decode() for note in found] == paths
    assert len(files(root)) == 100


async def test_what_waits_goes_together_and_a_caller_who_left_is_left_out() -> None:
    free = threading.Event()
    calls: list[list[int]] = []

    def work(pieces: Sequence[int]) -> list[int]:
        calls.append(list(pieces))
        assert free.wait(200)
        return [10 * piece for piece in pieces]

    gathered = ThreadBatcher(work, 1)
    asked = [asyncio.ensure_future(gathered.submit(i)) for i in range(5)]
    await asyncio.sleep(0)
    asked[3].cancel()
    free.set()
    assert await asyncio.gather(*asked[:3], asked[4]) == [0, 10, 20, 40]
    assert calls == [[0], [1, 2, 4]]


async def test_work_that_breaks_is_told_to_all_that_waited_for_it_and_goes_on_after() -> None:
    def work(pieces: Sequence[int]) -> list[int]:
        if 0 in pieces:
            raise ValueError("broken")
        return list(pieces)

    gathered = ThreadBatcher(work, 1)
    found = await asyncio.gather(gathered.submit(1), gathered.submit(0), gathered.submit(2), return_exceptions=True)
    assert found[0] == 1
    assert [str(one) for one in found[1:]] == ["broken", "broken"]
    assert await gathered.submit(3) == 3
