"""Read or write many files of a vault at once: each folder is opened, scanned and synced to disk once per batch.

Each file goes through the steps of a single write in the same order: temporary file synced to disk, content
compared, renamed into place, folder synced. A file that fails does not affect the others. Notes that can be
regenerated are written without fsync by `projection`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stentor_vault.notes import model, paths
from stentor_vault.notes.files import safe_files, safe_folders
from stentor_vault.notes.model import (
    ANY_STATE,
    FileChange,
    NameTaken,
    NoSuchNote,
    Note,
    NoteChanged,
    NoteTooLarge,
    UnreadablePath,
)

FSYNC_THREADS = 4
"""Concurrent fsync calls: the file system commits them together."""


class WriteRequest(msgspec.Struct, frozen=True):
    """A write of `content` to `path`, on the condition that the file is in the `expected` state."""

    path: str
    content: bytes
    expected: str = ANY_STATE


class FsyncPool:
    """A thread pool that syncs open files or folders to disk, several at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(FSYNC_THREADS, thread_name_prefix="stentor-vault-flush")

    def sync_all(self, descriptors: Sequence[int]) -> dict[int | None, OSError]:
        """Sync all descriptors and return those that failed, each with its error."""
        if len(descriptors) <= 1:
            return _fsync_each(descriptors)
        failed: dict[int | None, OSError] = {}
        for errors in self._pool.map(
            _fsync_each, [descriptors[lane::FSYNC_THREADS] for lane in range(min(FSYNC_THREADS, len(descriptors)))]
        ):
            failed |= errors
        return failed


def write_batch(root: Path, requests: Iterable[WriteRequest], fsync_pool: FsyncPool) -> list[FileChange | Exception]:
    """Write all files and return the result of each, in order.

    No two paths may be equal under `paths.fold_path`: the batch checks for case collisions only with files on disk.
    """
    files = [_FileWrite(request) for request in requests]
    with ExitStack() as stack:
        folders = _FolderCache(root, stack, make=True)
        try:
            _for_each(files, lambda file: file.open(folders))
            _for_each(files, _FileWrite.write_temp_file)
            # The bytes must be on disk before the rename: otherwise a crash could leave an empty file at the final
            # name.
            _fsync_files(files, lambda file: file.descriptor, fsync_pool)
            for file in files:
                file.close_written()
            _for_each(files, _FileWrite.rename_into_place)
            # The folders too: without it a power cut may lose the rename itself.
            _fsync_files(files, lambda file: file.folder.descriptor if file.folder else None, fsync_pool)
            _for_each(files, _FileWrite.finish)
        finally:
            for file in files:
                file.clean_up()
    return [file.outcome for file in files if file.outcome is not None]


def read_batch(root: Path, note_paths: Iterable[str], max_bytes: int | None = None) -> list[Note | Exception]:
    """Return the note of each path, or the error that reading it raised: NoteTooLarge above `max_bytes`."""
    with ExitStack() as stack:
        folders = _FolderCache(root, stack, make=False)
        return [_read(folders, path, max_bytes) for path in note_paths]


class _Folder:
    """An open folder, and the names that the batch creates in it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.new_names: list[str] = []
        self._collisions: dict[str, NameTaken] | None = None

    def reject_case_collision(self, name: str) -> None:
        # Lists the folder once for all new names: this is why every file is opened before the first one is checked.
        if self._collisions is None:
            self._collisions = safe_folders.find_case_collisions(self.descriptor, self.new_names)
        if name in self._collisions:
            raise self._collisions[name]


class _FolderCache:
    """The vault's root and folders, opened on first use; the exit stack closes them."""

    def __init__(self, root: Path, stack: ExitStack, *, make: bool) -> None:
        self._root, self._stack, self._make = root, stack, make
        self._root_descriptor: int | None = None
        self._folders: dict[tuple[str, ...], _Folder] = {}

    def locate(self, path: str) -> tuple[_Folder, str]:
        """Return the folder of a file and the file's name. Raises InvalidPath, NoSuchNote, VaultUnavailable."""
        *parents, name = paths.split_path(path)
        folder = self._folders.get(tuple(parents))
        if folder is None:
            if self._root_descriptor is None:
                self._root_descriptor = self._stack.enter_context(safe_folders.open_root(self._root))
            descriptor = self._stack.enter_context(
                safe_folders.open_folder(self._root_descriptor, parents, make=self._make)
            )
            folder = self._folders[tuple(parents)] = _Folder(descriptor)
        return folder, name


@dataclass(slots=True)
class _FileWrite:
    """A write in progress. `name` is the name as stored on disk, `temp_name` is set while the temporary file exists."""

    request: WriteRequest
    folder: _Folder | None = None
    name: str = ""
    is_new: bool = False
    temp_name: str | None = None
    descriptor: int | None = None
    written: os.stat_result | None = None
    previous: bytes | None = None
    outcome: FileChange | Exception | None = None

    def open(self, folders: _FolderCache) -> None:
        path, size = self.request.path, len(self.request.content)
        if size > model.MAX_NOTE_BYTES:
            raise NoteTooLarge(f"{path!r} would have {size} bytes; the maximum is {model.MAX_NOTE_BYTES}.")
        self.folder, name = folders.locate(path)
        stored_name = safe_folders.find_name(self.folder.descriptor, name)
        self.name, self.is_new = stored_name or name, stored_name is None
        if self.is_new:
            self.folder.new_names.append(name)

    def write_temp_file(self) -> None:
        assert self.folder is not None
        if self.is_new:
            self.folder.reject_case_collision(self.name)
        # In the folder of the note, because a rename is atomic only within one file system.
        self.temp_name, self.descriptor = safe_files.create_temp_file(self.folder.descriptor)
        safe_files.write_all(self.descriptor, self.request.content)
        if not self.is_new:
            safe_files.copy_owner_and_mode(self.folder.descriptor, self.name, self.descriptor)

    def rename_into_place(self) -> None:
        assert self.folder is not None
        assert self.temp_name is not None
        request = self.request
        self.previous = safe_files.replace_if_expected(
            self.folder.descriptor, self.temp_name, self.name, request.path, request.expected
        )
        # If there was a file, the exchange moved it to the temporary name.
        safe_files.unlink_if_exists(self.folder.descriptor, self.temp_name)
        self.temp_name = None

    def finish(self) -> None:
        assert self.folder is not None
        assert self.written is not None
        path = self.request.path
        try:
            safe_files.stat_entry(self.folder.descriptor, self.name, path)
        except NoSuchNote:
            raise NoteChanged(path, model.NO_FILE) from None  # deleted by another program in the meantime
        # Not the status of the file that has the name by now, which another program may have put there: an index that
        # stores its size and time with these bytes would consider it known and never read it.
        self.outcome = FileChange(safe_files.to_stat(self.written, path), self.previous)

    def close_written(self) -> None:
        """Close the temporary file once it is on disk, and remember its size and times."""
        if self.descriptor is not None:
            self.written = os.fstat(self.descriptor)
        self.close()

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def clean_up(self) -> None:
        self.close()
        if self.temp_name is not None and self.folder is not None:
            safe_files.unlink_if_exists(self.folder.descriptor, self.temp_name)


def _read(folders: _FolderCache, path: str, max_bytes: int | None) -> Note | Exception:
    try:
        with safe_files.translate_os_errors(f"Cannot use {path!r}"):
            return _read_located(folders, path, max_bytes)
    except Exception as error:  # noqa: BLE001 - raised again for the caller of this path; the others continue
        return error


def _read_located(folders: _FolderCache, path: str, max_bytes: int | None) -> Note:
    try:
        folder, name = folders.locate(path)
        stored_name = safe_files.require_file_name(folder.descriptor, name, path)
        return safe_files.read_note(folder.descriptor, stored_name, path, max_bytes)
    except PermissionError as error:
        raise UnreadablePath(f"Cannot read {path!r}: {error.strerror}.") from error


def _for_each(files: Iterable[_FileWrite], step: Callable[[_FileWrite], None]) -> None:
    """Run one step for every file that has not failed yet."""
    for file in files:
        if file.outcome is None:
            try:
                with safe_files.translate_os_errors(f"Cannot use {file.request.path!r}"):
                    step(file)
            except Exception as error:  # noqa: BLE001 - raised again for the caller of this file; the others continue
                file.outcome = error


def _fsync_files(
    files: Iterable[_FileWrite], get_descriptor: Callable[[_FileWrite], int | None], fsync_pool: FsyncPool
) -> None:
    """Sync the descriptor of each file that has not failed; files that share a descriptor sync it once."""
    pending = [file for file in files if file.outcome is None]
    failed = fsync_pool.sync_all(
        list(dict.fromkeys(fd for file in pending if (fd := get_descriptor(file)) is not None))
    )

    def raise_error(file: _FileWrite) -> None:
        descriptor = get_descriptor(file)
        if descriptor in failed:
            raise failed[descriptor]

    if failed:
        _for_each(pending, raise_error)


def _fsync_each(descriptors: Iterable[int]) -> dict[int | None, OSError]:
    failed: dict[int | None, OSError] = {}
    for descriptor in descriptors:
        try:
            os.fsync(descriptor)
        except OSError as error:
            failed[descriptor] = error
    return failed
