"""The vault in a folder: links, hidden files, other programs, a folder that is gone, a disk that is full."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import resource
import shutil
import stat
import subprocess
import tempfile
import threading
import time
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from stentor_vault.notes import folder_vault
from stentor_vault.notes.files import safe_files, safe_folders
from stentor_vault.notes.files.file_events import watch_changes
from stentor_vault.notes.files.inotify import FolderEvents
from stentor_vault.notes.folder_vault import TRASH_FOLDER, FolderVault
from stentor_vault.notes.model import (
    NO_FILE,
    NameTaken,
    NoSuchNote,
    Note,
    NoteChanged,
    ReadOnlyNote,
    UnreadablePath,
    VaultUnavailable,
    content_hash,
)
from stentor_vault.notes.paths import MAX_PATH_LENGTH
from tests.caseless import ignore_case
from tests.requirements import requirement
from tests.unreadable import make_unreadable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "vault"
    folder.mkdir()
    return folder


@pytest.fixture
def vault(root: Path) -> FolderVault:
    return FolderVault(root)


def test_no_link_is_followed_whether_to_a_file_or_a_folder(vault: FolderVault, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("secret")
    (root / "folder").symlink_to(outside)
    (root / "file.md").symlink_to(outside / "secret.md")
    for path in ("folder/secret.md", "file.md"):
        with pytest.raises(NoSuchNote):
            vault.read_sync(path)
    for path in ("folder/secret.md", "folder/new.md", "file.md"):
        with pytest.raises(NoSuchNote):
            vault.write_sync(path, b"x")
    assert vault.list_folder_sync() == []
    assert vault.walk_sync() == []
    assert sorted(p.name for p in outside.iterdir()) == ["secret.md"]
    assert (outside / "secret.md").read_text() == "secret"


@requirement("memory.unreadable-left-out")
def test_what_may_not_be_read_is_left_out_of_the_lists_and_an_error_by_itself(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in ("lost+found", "notes"):
        (root / folder).mkdir()
        (root / folder / "a.md").write_text("x")
    (root / "private.md").write_text("x")
    make_unreadable(monkeypatch, "lost+found", "private.md")
    for _ in range(2):
        assert [found.path for found in vault.walk_sync()] == ["notes/a.md", "private.md"]
    assert [record.message for record in caplog.records] == [
        "vault: folder left out, no permission to read it path='lost+found'"
    ]
    assert vault.list_nonempty_sync() == ["notes/", "private.md"]
    for listing in (vault.walk_sync, vault.list_folder_sync, vault.list_nonempty_sync):
        with pytest.raises(UnreadablePath, match="Cannot list 'lost"):
            listing("lost+found")
    first, *others = vault.read_batch_sync(["notes/a.md", "private.md", "lost+found/a.md"])
    assert isinstance(first, Note)
    assert [type(error) for error in others] == [UnreadablePath, UnreadablePath]


def test_a_root_that_may_not_be_read_is_an_error_and_no_empty_vault(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.md").write_text("x")
    make_unreadable(monkeypatch, root)
    for use in (vault.walk_sync, vault.list_folder_sync, lambda: vault.read_sync("a.md")):
        with pytest.raises(VaultUnavailable) as raised:
            use()
        assert not isinstance(raised.value, UnreadablePath)


@requirement("memory.unreadable-left-out")
async def test_a_folder_that_may_not_be_read_does_not_end_the_watch(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {}

    async def awatch(path: Path, **given: Any) -> AsyncIterator[set[tuple[int, str]]]:
        options.update(given)
        yield {(1, str(path / "a.md"))}

    monkeypatch.setattr(watchfiles, "awatch", awatch)
    assert [changes async for changes in watch_changes(root, poll=True)] == [{str(root / "a.md")}]
    assert options["ignore_permission_denied"]
    with pytest.raises(FileNotFoundError):
        await anext(watch_changes(root / "missing"))


async def test_the_watch_ends_when_another_folder_is_in_its_place(root: Path) -> None:
    changes = watch_changes(root)
    watching = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    (root / "a.md").write_text("x")
    assert await watching == {str(root / "a.md")}
    root.rename(root.with_name("old"))
    root.mkdir()
    assert [names async for names in changes if names] == []


class Watch:
    """The changes of a folder, from now on."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._events = FolderEvents(root)

    def __del__(self) -> None:
        self._events.close()

    def read(self) -> set[bytes]:
        return {os.fsencode(os.path.relpath(name, self._root)) for name in self._events.read()}


@requirement("memory.edits-of-any-folder")
def test_an_edit_in_a_folder_that_a_link_of_the_vault_leads_to_has_its_own_name(root: Path) -> None:
    (root / "notes").mkdir()
    (root / "z").mkdir()
    (root / "z" / "link").symlink_to("../notes")
    (root / "z" / "loop").symlink_to("..")
    watch = Watch(root)
    (root / "notes" / "a.md").write_text("x")
    assert watch.read() == {b"notes/a.md"}
    (root / "z" / "link").unlink()
    watch.read()
    (root / "notes" / "a.md").write_text("y")
    assert watch.read() == {b"notes/a.md"}


@requirement("memory.edits-of-any-folder")
def test_a_name_that_is_not_utf8_does_not_end_the_events(root: Path) -> None:
    folder = root / os.fsdecode(b"d\xe9")
    folder.mkdir()
    watch = Watch(root)
    (folder / "x.md").write_text("x")
    (root / "a.md").write_text("x")
    assert watch.read() == {b"d\xe9/x.md", b"a.md"}


@requirement("memory.edits-of-any-folder")
def test_the_events_follow_a_folder_that_was_moved_and_one_that_was_made_again(root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    watch = Watch(root)
    (root / "a").rename(root / "c")
    (root / "a").mkdir()
    assert watch.read() == {b"a", b"c"}
    (root / "c" / "b" / "n.md").write_text("x")
    (root / "a" / "n.md").write_text("x")
    assert watch.read() == {b"c/b/n.md", b"a/n.md"}
    shutil.rmtree(root / "c")
    (root / "c").mkdir()
    watch.read()
    (root / "c" / "n.md").write_text("x")
    assert watch.read() == {b"c/n.md"}
    (root / ".obsidian").mkdir()
    (root / ".obsidian" / "app.json").write_text("{}")
    assert watch.read() == set()


@requirement("memory.edits-of-any-folder")
def test_the_events_follow_a_folder_that_takes_the_place_of_another(root: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (root / name).mkdir()
    watch = Watch(root)
    (root / "a").rename(root / "b")
    _exchange(root / "c", root / "d")
    assert watch.read() == {b"a", b"b", b"c", b"d"}
    for name in ("b", "c", "d"):
        (root / name / "n.md").write_text("x")
    assert watch.read() == {b"b/n.md", b"c/n.md", b"d/n.md"}


def _exchange(first: Path, second: Path) -> None:
    at_working_folder, exchange = -100, 2
    names = os.fsencode(first), os.fsencode(second)
    libc = ctypes.CDLL(None)
    assert libc.renameat2(at_working_folder, names[0], at_working_folder, names[1], exchange) == 0


@requirement("memory.edits-of-any-folder")
def test_folders_in_folders_may_be_as_deep_as_a_path_can_be(root: Path) -> None:
    folders = [root]
    for _ in range(MAX_PATH_LENGTH // 2):
        folders.append(folders[-1] / "a")
        folders[-1].mkdir()
    watch = Watch(root)
    (folders[-1] / "b").write_text("x")
    assert watch.read() == {os.fsencode(folders[-1].relative_to(root) / "b")}
    (folders[-1] / "b").unlink()
    # Not left to `rmtree`, which calls itself for each level.
    for folder in reversed(folders):
        folder.rmdir()


def test_a_read_does_not_wait_for_changes_to_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(root)
    (root / "a.md").write_text("x")
    read = os.read

    def read_and_change(descriptor: int, size: int) -> bytes:
        data = read(descriptor, size)
        if not (root / "b.md").exists():
            (root / "b.md").write_text("x")
        return data

    monkeypatch.setattr(os, "read", read_and_change)
    assert watch.read() == {b"a.md"}
    assert watch.read() == {b"b.md"}


@pytest.mark.parametrize(("forced", "release"), [("true", "6.1.0"), ("", "5.15.90.1-Microsoft-standard-WSL2")])
async def test_files_are_polled_where_the_system_sends_no_events(
    root: Path, monkeypatch: pytest.MonkeyPatch, forced: str, release: str
) -> None:
    async def awatch(path: Path, **given: Any) -> AsyncIterator[set[tuple[int, str]]]:
        yield {(1, str(path / "polled.md"))}

    monkeypatch.setattr(watchfiles, "awatch", awatch)
    monkeypatch.setenv("WATCHFILES_FORCE_POLLING", forced)
    monkeypatch.setattr(platform, "release", lambda: release)
    assert await anext(watch_changes(root)) == {str(root / "polled.md")}


def test_events_that_the_system_dropped_are_an_error(root: Path) -> None:
    names = [root / "a.md", root / "b.md"]
    for name in names:
        name.write_text("x")
    watch = Watch(root)
    # Equal events in a row are one.
    for number in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) + 1):
        os.utime(names[number % 2])
    with pytest.raises(OSError, match="dropped"):
        watch.read()


def test_hidden_files_and_devices_are_not_there(vault: FolderVault, root: Path) -> None:
    (root / ".obsidian").mkdir()
    (root / ".obsidian" / "app.json").write_text("{}")
    (root / ".note.md").write_text("x")
    os.mkfifo(root / "pipe.md")
    (root / "a.md").write_text("x")
    assert vault.list_folder_sync() == ["a.md"]
    assert [found.path for found in vault.walk_sync()] == ["a.md"]
    with pytest.raises(NoSuchNote):
        vault.read_sync("pipe.md")


def test_a_decomposed_name_of_another_system_is_the_same_note(vault: FolderVault, root: Path) -> None:
    name = unicodedata.normalize("NFD", "Über.md")
    (root / name).write_text("one")
    assert vault.read_sync("Über.md").content == b"one"
    vault.write_sync("Über.md", b"two")
    assert [p.name for p in root.iterdir()] == [name]
    assert [found.path for found in vault.walk_sync()] == ["Über.md"]


def test_a_name_in_another_case_is_no_note_and_cannot_be_written_also_where_the_disk_ignores_case(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_case(monkeypatch, root)
    vault.write_sync("Notes/Plan.md", b"one")
    for path in ("Notes/plan.md", "notes/Plan.md"):
        with pytest.raises(NoSuchNote):
            vault.read_sync(path)
        with pytest.raises(NameTaken):
            vault.write_sync(path, b"two")
    assert vault.read_sync("Notes/Plan.md").content == b"one"
    vault.write_sync("Notes/Plan.md", b"two")
    assert [found.path for found in vault.walk_sync()] == ["Notes/Plan.md"]
    assert vault.list_nonempty_sync() == ["Notes/"]


def test_the_deepest_folders_are_walked_with_one_descriptor_for_each_level(vault: FolderVault, root: Path) -> None:
    path = "a/" * 510 + "b.md"
    vault.write_sync(path, b"text")
    lowest, limits = os.dup(0), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 700, limits[1]))
    try:
        assert [found.path for found in vault.walk_sync()] == [path]
        assert vault.list_nonempty_sync() == ["a/"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_mode_of_a_file_is_kept_and_nothing_is_left_over(vault: FolderVault, root: Path) -> None:
    (root / "a.md").write_text("one")
    (root / "a.md").chmod(0o640)
    vault.write_sync("a.md", b"two")
    assert stat.S_IMODE((root / "a.md").stat().st_mode) == 0o640
    assert [p.name for p in root.iterdir()] == ["a.md"]


@requirement("memory.read-only-notes")
def test_a_read_only_note_is_neither_replaced_nor_deleted_nor_moved(vault: FolderVault, root: Path) -> None:
    for name in ("a.md", "b.md"):
        (root / name).write_text("one")
    (root / "a.md").chmod(0o444)
    for change in (
        lambda: vault.write_sync("a.md", b"two"),
        lambda: vault.delete_sync("a.md"),
        lambda: vault.delete_sync("a.md", permanent=True),
        lambda: vault.move_sync("a.md", "c.md"),
        lambda: vault.move_sync("b.md", "a.md", overwrite=True),
    ):
        with pytest.raises(ReadOnlyNote, match=r"'a\.md' is read-only"):
            change()
    # One that has changed says so, as the journal has to know after a crash that a write was applied.
    with pytest.raises(NoteChanged):
        vault.write_sync("a.md", b"two", NO_FILE)
    assert {p.name: p.read_text() for p in root.iterdir() if p.is_file()} == {"a.md": "one", "b.md": "one"}
    (root / "a.md").chmod(0o644)
    vault.write_sync("a.md", b"two")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
@requirement("memory.read-only-notes")
def test_a_note_of_another_owner_is_written_only_with_permission_and_stays_theirs() -> None:
    owner, other = 65_534, 65_533
    # Not below the folder of the tests, which is shut to others.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        vault, note = FolderVault(Path(folder)), Path(folder) / "a.md"
        note.write_text("one")
        note.chmod(0o644)
        os.chown(note, owner, owner)
        vault.write_sync("a.md", b"two")
        info = note.stat()
        assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (owner, owner, 0o644)
        os.seteuid(other)
        try:
            with pytest.raises(ReadOnlyNote):
                vault.write_sync("a.md", b"three")
        finally:
            os.seteuid(0)
        assert note.read_text() == "two"


@requirement("memory.read-only-notes")
def test_a_note_is_written_where_its_owner_cannot_be_set_and_its_group_only_by_itself(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.md").write_text("one")
    info, read, set_ids = (root / "a.md").stat(), os.fstat, list[tuple[int, int]]()

    def read_other(descriptor: int) -> os.stat_result:
        own = read(descriptor)
        fields = (*own[:4], info.st_uid + 1, info.st_gid + 1, *own[6:])
        return os.stat_result(fields, {"st_mtime_ns": own.st_mtime_ns, "st_ctime_ns": own.st_ctime_ns})

    def set_owner(descriptor: int, uid: int, gid: int) -> None:
        if uid != -1:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # a user whom a container does not know
        set_ids.append((uid, gid))

    monkeypatch.setattr(safe_files.os, "fstat", read_other)
    monkeypatch.setattr(safe_files.os, "fchown", set_owner)
    vault.write_sync("a.md", b"two")
    assert (set_ids, (root / "a.md").read_text()) == ([(-1, info.st_gid)], "two")


def test_what_is_deleted_lies_in_the_trash_and_two_of_a_name_both_do(vault: FolderVault, root: Path) -> None:
    for content in (b"one", b"two"):
        vault.write_sync("a/x.md", content)
        vault.delete_sync("a/x.md")
    vault.write_sync("x.md", b"three")
    vault.delete_sync("x.md", permanent=True)
    assert {p.name: p.read_bytes() for p in (root / TRASH_FOLDER).iterdir()} == {"x.md": b"one", "x 2.md": b"two"}


@pytest.mark.parametrize("permanent", [False, True])
def test_a_file_in_a_mounted_folder_is_deleted_into_a_trash_beside_it(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch, permanent: bool
) -> None:
    def rename(source_folder: int, source: str, target_folder: int, target: str, flags: int) -> bool:
        if os.fstat(source_folder).st_ino == mounted and os.fstat(target_folder).st_ino not in (mounted, beside()):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return real_rename(source_folder, source, target_folder, target, flags)

    def beside() -> int:
        folder = root / "mounted" / TRASH_FOLDER
        return folder.stat().st_ino if folder.exists() else -1

    vault.write_sync("mounted/a.md", b"text")
    mounted, real_rename = (root / "mounted").stat().st_ino, safe_files._rename
    monkeypatch.setattr(safe_files, "_rename", rename)
    assert vault.delete_sync("mounted/a.md", permanent=permanent).previous == b"text"
    assert not (root / "mounted/a.md").exists()
    assert [path.name for path in (root / "mounted" / TRASH_FOLDER).iterdir()] == ([] if permanent else ["a.md"])
    vault.write_sync("mounted/b.md", b"text")
    with pytest.raises(VaultUnavailable, match="cross-device"):
        vault.move_sync("mounted/b.md", "b.md")


def test_what_a_killed_write_left_goes_to_the_trash_once_it_is_old(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "Folder").mkdir()
    temp_name = f"{safe_files.TEMP_PREFIX}{'0a' * 12}"
    leftover = root / "Folder" / temp_name
    leftover.write_text("edit of another program")
    # As an exchange of names leaves it: the modification time is the one of the previous file.
    os.utime(leftover, (0, 0))
    settings = root / "Folder" / f"{safe_files.TEMP_PREFIX}settings"
    settings.write_text("of a user")
    assert vault.walk_sync() == []
    assert leftover.exists()
    monkeypatch.setattr(folder_vault, "LEFTOVER_SECONDS", -60)
    assert vault.walk_sync() == []
    assert not leftover.exists()
    assert (root / TRASH_FOLDER / temp_name).read_text() == "edit of another program"
    assert settings.exists()


def test_a_trash_that_is_a_link_is_an_error_that_names_it(vault: FolderVault, root: Path, tmp_path: Path) -> None:
    vault.write_sync("a.md", b"text")
    (root / TRASH_FOLDER).symlink_to(tmp_path)
    with pytest.raises(VaultUnavailable, match=r"\.trash"):
        vault.delete_sync("a.md")


def test_two_deletes_of_one_name_at_a_time_both_reach_the_trash(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = safe_files.move_noreplace

    def move_noreplace(source_folder: int, source: str, target_folder: int, target: str) -> None:
        """Let another delete take the name first."""
        if not (root / TRASH_FOLDER / target).exists():
            (root / TRASH_FOLDER / target).write_bytes(b"other")
            monkeypatch.undo()
        move(source_folder, source, target_folder, target)

    vault.write_sync("a/x.md", b"one")
    monkeypatch.setattr(safe_files, "move_noreplace", move_noreplace)
    vault.delete_sync("a/x.md")
    assert {p.name: p.read_bytes() for p in (root / TRASH_FOLDER).iterdir()} == {"x.md": b"other", "x 2.md": b"one"}


@pytest.mark.parametrize("name", ["a" * 252 + ".md", "ü" * 126 + ".md", "a." + "b" * 253, "a" * 255], ids=range(4))
def test_the_longest_name_can_be_deleted_again_and_again(vault: FolderVault, root: Path, name: str) -> None:
    for content in (b"one", b"two", b"three"):
        vault.write_sync(name, content)
        vault.delete_sync(name)
    found = {p.name: p.read_bytes() for p in (root / TRASH_FOLDER).iterdir()}
    assert sorted(found.values()) == [b"one", b"three", b"two"]
    assert found[name] == b"one"
    if name.endswith(".md"):
        assert all(each.endswith(".md") for each in found)


def test_a_moved_file_keeps_its_bytes_and_overwrites_only_when_told(vault: FolderVault) -> None:
    vault.write_sync("a.md", b"a")
    vault.write_sync("b.md", b"b")
    with pytest.raises(NoteChanged):
        vault.move_sync("a.md", "b.md")
    with pytest.raises(NameTaken):
        vault.move_sync("a.md", "B.md")
    assert vault.move_sync("a.md", "b.md", overwrite=True).previous == b"b"
    vault.move_sync("b.md", "deep/c.md")
    vault.move_sync("deep/c.md", "deep/C.md")
    assert [(found.path, found.size) for found in vault.walk_sync()] == [("deep/C.md", 1)]
    with pytest.raises(NoSuchNote):
        vault.move_sync("a.md", "d.md")


@pytest.mark.parametrize("step", ["find_name", "require_file_name", "read_content"])
@pytest.mark.parametrize("call", ["read", "delete", "move"])
def test_a_file_that_another_program_deletes_during_a_call_is_no_note(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch, step: str, call: str
) -> None:
    vault.write_sync("a.md", b"a")
    module = safe_folders if step == "find_name" else safe_files
    function = getattr(module, step)

    def delete_after(*arguments: Any) -> Any:
        result = function(*arguments)
        (root / "a.md").unlink(missing_ok=True)
        return result

    monkeypatch.setattr(module, step, delete_after)
    calls = {"read": vault.read_sync, "delete": vault.delete_sync, "move": lambda path: vault.move_sync(path, "b.md")}
    if step == "read_content" and call != "delete":
        calls[call]("a.md")  # it has been read, or is moved unread
    else:
        with pytest.raises(NoSuchNote):
            calls[call]("a.md")


def test_a_file_that_is_deleted_as_soon_as_it_is_written_has_changed(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = safe_files.replace_if_expected

    def replace_and_delete(*arguments: Any) -> Any:
        previous = replace(*arguments)
        (root / "a.md").unlink()
        return previous

    monkeypatch.setattr(safe_files, "replace_if_expected", replace_and_delete)
    with pytest.raises(NoteChanged):
        vault.write_sync("a.md", b"a")


def test_a_file_made_during_a_delete_that_is_refused_is_not_overwritten(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program saves the note just before it is deleted, and makes it again before it is put back."""
    vault.write_sync("a.md", b"old")
    read = safe_files.read_content

    def read_content(folder: int, name: str, max_bytes: int | None = None) -> bytes:
        in_trash = not (root / "a.md").exists()
        content = read(folder, name, max_bytes)
        (root / "a.md").write_bytes(b"newest" if in_trash else b"saved")
        return content

    monkeypatch.setattr(safe_files, "read_content", read_content)
    with pytest.raises(NoteChanged):
        vault.delete_sync("a.md", content_hash(b"old"), permanent=True)
    assert (root / "a.md").read_bytes() == b"newest"
    assert (root / TRASH_FOLDER / "a.md").read_bytes() == b"saved"


@pytest.mark.parametrize("renameat2", [True, False])
def test_a_file_made_during_a_move_is_not_overwritten(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch, renameat2: bool
) -> None:
    vault.write_sync("a.md", b"a")
    check = safe_folders.reject_case_collision

    def reject_case_collision(parent: int, name: str) -> None:
        check(parent, name)
        (root / "b.md").write_bytes(b"another program's")

    monkeypatch.setattr(safe_folders, "reject_case_collision", reject_case_collision)
    if not renameat2:
        monkeypatch.setattr(safe_files, "_renameat2", None)
    with pytest.raises(NoteChanged):
        vault.move_sync("a.md", "b.md")
    assert (root / "a.md").read_bytes() == b"a"
    assert (root / "b.md").read_bytes() == b"another program's"


def test_a_folder_that_is_gone_is_an_outage_and_works_again_when_it_is_back(vault: FolderVault, root: Path) -> None:
    vault.write_sync("a.md", b"one")
    aside = root.rename(root.with_name("aside"))
    for call in (
        vault.walk_sync,
        vault.list_folder_sync,
        lambda: vault.read_sync("a.md"),
        lambda: vault.write_sync("a.md", b""),
    ):
        with pytest.raises(VaultUnavailable, match="cannot be opened"):
            call()
    aside.rename(root)
    assert vault.read_sync("a.md").content == b"one"


def test_a_full_disk_is_an_outage_and_leaves_the_old_note(tmp_path: Path) -> None:
    root = tmp_path / "small"
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(root)], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    try:
        vault = FolderVault(root)
        vault.write_sync("a.md", b"x" * 30_000)
        with pytest.raises(VaultUnavailable, match="No space"):
            vault.write_sync("a.md", b"y" * 60_000)
        assert vault.read_sync("a.md").content == b"x" * 30_000
        assert [p.name for p in root.iterdir()] == ["a.md"]
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def test_an_edit_by_another_program_in_the_middle_of_a_write_is_never_lost(vault: FolderVault, root: Path) -> None:
    """An editor that saves by rename, as fast as it can, against writers that expect what they read."""
    note = root / "a.md"
    note.write_bytes(b"0;")
    stop = threading.Event()
    lost: list[bytes] = []

    def edit() -> None:
        for i in range(200):
            time.sleep(0.001 * (i % 8))
            aside = root / f".editor-{i}"
            seen = note.read_bytes()
            aside.write_bytes(seen + b"e;")
            if note.read_bytes() == seen:  # an editor's own window; ours must not widen it
                aside.rename(note)
        stop.set()

    editor = threading.Thread(target=edit)
    editor.start()
    written = 0
    while not stop.is_set():
        before = vault.read_sync("a.md")
        try:
            change = vault.write_sync("a.md", before.content + b"w;", content_hash(before.content))
        except NoteChanged:
            continue
        written += 1
        if change.previous != before.content:
            lost.append(change.previous or b"")
    editor.join()
    assert written > 0
    assert lost == []


def test_the_time_of_a_read_or_written_note_is_not_that_of_a_file_that_replaced_it(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place_other() -> None:
        other = root.parent / "other.md"
        other.write_bytes(b"other")
        os.utime(other, (1_000_000_000, 1_000_000_000))
        other.replace(root / "a.md")

    replace, open_file = safe_files.replace_if_expected, os.open

    def replace_and_lose(*args: Any) -> bytes | None:
        previous = replace(*args)
        place_other()
        return previous

    with monkeypatch.context() as patch:
        patch.setattr(safe_files, "replace_if_expected", replace_and_lose)
        written = vault.write_sync("a.md", b"mine!")
    assert written.stat is not None
    assert written.stat.modified_at > 1_700_000_000_000_000

    vault.write_sync("a.md", b"mine!")

    def open_other(name: Any, *args: Any, **options: Any) -> int:
        if name == "a.md":
            place_other()
        return open_file(name, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(safe_files.os, "open", open_other)
        note = vault.read_sync("a.md")
    assert note.content == b"other"
    assert note.stat.modified_at == 1_000_000_000_000_000


def test_a_folder_that_another_program_moves_while_it_is_opened_is_missing(
    vault: FolderVault, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_name = safe_folders.find_name

    def find_and_move(parent: int, name: str) -> str | None:
        found = find_name(parent, name)
        if found == "moving":
            (root / "moving").rename(root / "moved")
        return found

    monkeypatch.setattr(safe_folders, "find_name", find_and_move)
    for list_or_read in (vault.list_folder_sync, lambda folder: vault.read_sync(f"{folder}/a.md")):
        (root / "moving").mkdir()
        with pytest.raises(NoSuchNote):
            list_or_read("moving")
        (root / "moved").rmdir()
    (root / "moving").mkdir()
    assert vault.walk_sync("moving") == []
