"""A vault in a folder: atomic conditional writes that never leave the folder.

The file operations are in `safe_folders`, `safe_files` and `batch_io`, the events of changes in `file_events`; other
programs may change the same files at any time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from stentor_vault.notes import model, paths
from stentor_vault.notes.files import batch_io, safe_files, safe_folders
from stentor_vault.notes.files.batch_io import FsyncPool, WriteRequest
from stentor_vault.notes.files.thread_batcher import ThreadBatcher
from stentor_vault.notes.model import (
    ANY_STATE,
    FileChange,
    NoSuchNote,
    Note,
    NoteChanged,
    Stat,
    UnreadablePath,
    matches_state,
)

T = TypeVar("T")

TRASH_FOLDER = ".trash"
LEFTOVER_SECONDS = 86_400
"""Age of a temporary file from which on its writer must have been killed."""
_TRASH_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
BATCH_MAX_BYTES = 1 << 18
"""Notes above this size are written one by one, so that the small ones do not wait for them."""
log = logging.getLogger(__name__)


class FolderVault:
    """Implements the port `Vault`, and synchronous methods (`*_sync`) for callers that are in a thread already.

    `walk` leaves out the folders for which `is_unlisted` is true; their files can still be read. Reads, and changes
    that expect a state, raise NoteTooLarge for a file of more than `max_read_bytes`.
    """

    def __init__(
        self,
        root: Path,
        is_unlisted: Callable[[str], bool] = lambda folder: False,
        max_read_bytes: int = model.MAX_FILE_BYTES,
    ) -> None:
        self.root = root
        self._max_read_bytes = max_read_bytes
        self._is_unlisted = is_unlisted
        self._unreadable_folders: set[str] = set()
        # A fixed number, so that nothing has to be removed; two paths that share a lock only wait for each other.
        self._locks = [threading.Lock() for _ in range(256)]
        self._fsync_pool = FsyncPool()
        # Two threads read and one writes: more would only wait for the interpreter lock.
        self._reads: ThreadBatcher[str, Note | Exception] = ThreadBatcher(self.read_batch_sync, 2)
        self._writes: ThreadBatcher[WriteRequest, FileChange | Exception] = ThreadBatcher(self.write_batch_sync, 1)

    async def read(self, path: str) -> Note:
        return _result(await self._reads.submit(path))

    async def write(self, path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        if len(content) > BATCH_MAX_BYTES:
            return await self.run_in_thread(self.write_sync, path, content, expected)
        return _result(await self._writes.submit(WriteRequest(path, content, expected)))

    async def delete(self, path: str, expected: str = ANY_STATE) -> FileChange:
        return await self.run_in_thread(self.delete_sync, path, expected)

    async def list_folder(self, folder: str = "") -> list[str]:
        return await self.run_in_thread(self.list_folder_sync, folder)

    async def walk(self, folder: str = "") -> list[Stat]:
        return await self.run_in_thread(self.walk_sync, folder)

    async def check(self) -> None:
        def check_access() -> None:
            with (
                safe_folders.open_root(self.root),
                safe_files.translate_os_errors(f"Cannot use the vault's folder {self.root}"),
            ):
                if not os.access(self.root, os.W_OK):
                    raise model.VaultUnavailable(f"No write permission for the vault's folder {self.root}.")

        await self.run_in_thread(check_access)

    def read_sync(self, path: str) -> Note:
        return _result(self.read_batch_sync([path])[0])

    def stat_sync(self, path: str) -> Stat:
        """Return the metadata of a file without reading it. Raises NoSuchNote, UnreadablePath."""
        *parts, name = paths.split_path(path)
        try:
            with safe_folders.open_root(self.root) as top, safe_folders.open_folder(top, parts) as folder:
                return safe_files.stat_file(folder, safe_files.require_file_name(folder, name, path), path)
        except PermissionError as error:
            raise UnreadablePath(f"Cannot read {path!r}: {error.strerror}.") from error

    def read_batch_sync(self, note_paths: Sequence[str]) -> list[Note | Exception]:
        """Return the note of each path, or the error that reading it raised."""
        return batch_io.read_batch(self.root, note_paths, self._max_read_bytes)

    def write_sync(self, path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        return _result(self.write_batch_sync([WriteRequest(path, content, expected)])[0])

    def write_batch_sync(self, requests: Sequence[WriteRequest]) -> list[FileChange | Exception]:
        """Return the result of each write, in order; writes of one path run one after the other."""
        outcomes: dict[int, FileChange | Exception] = {}
        pending = dict(enumerate(requests))
        while pending:
            # Each round takes the first pending write of every path: `write_batch` requires distinct paths.
            first = {paths.fold_path(request.path): i for i, request in reversed(pending.items())}
            batch = {i: pending.pop(i) for i in sorted(first.values())}
            outcomes |= zip(batch, self._write_distinct(list(batch.values())), strict=True)
        return [outcomes[i] for i in range(len(requests))]

    def _write_distinct(self, requests: list[WriteRequest]) -> list[FileChange | Exception]:
        with self._hold_locks([request.path for request in requests]):
            return batch_io.write_batch(self.root, requests, self._fsync_pool)

    def delete_sync(self, path: str, expected: str = ANY_STATE, *, permanent: bool = False) -> FileChange:
        """Move the file to the trash, or delete it if `permanent`. Raises NoSuchNote, NoteChanged, ReadOnlyNote."""
        with self._hold_locks([path]), self._open_parent(path) as (folder, name):
            try:
                with safe_folders.open_root(self.root) as top:
                    return self._delete_into(top, folder, name, path, expected, permanent=permanent)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
            # The folder is on a file system of its own, so the trash is there too: a copy could miss a later write.
            return self._delete_into(folder, folder, name, path, expected, permanent=permanent)

    def _delete_into(
        self, top: int, folder: int, name: str, path: str, expected: str, *, permanent: bool
    ) -> FileChange:
        """Move the file to the trash in the open folder `top`."""
        with _open_trash(top) as trash:
            stored_name = safe_files.require_file_name(folder, name, path)
            present = safe_files.read_before_change(folder, stored_name, expected, self._max_read_bytes)
            if present is not None and not matches_state(expected, present):
                raise NoteChanged(path, model.content_hash(present))
            safe_files.require_writable(folder, stored_name, path)
            # The trash keeps every version: a name that is taken gets a number.
            trash_name = safe_files.move_to_unused_name(folder, stored_name, trash)
            # Compared again after the move: no program can replace the file between this and the deletion.
            previous = safe_files.read_before_change(trash, trash_name, ANY_STATE, self._max_read_bytes)
            if not matches_state(expected, previous):
                # If another program has made a file of this name in the meantime, the bytes stay in the trash.
                with suppress(FileExistsError):
                    safe_files.move_noreplace(trash, trash_name, folder, stored_name)
                raise NoteChanged(path, "" if previous is None else model.content_hash(previous))
            if permanent:
                os.unlink(trash_name, dir_fd=trash)
            # In this order, so that a power cut cannot leave the file in neither folder.
            os.fsync(trash)
            os.fsync(folder)
            return FileChange(None, previous)

    def _set_aside(self, folder: int, name: str) -> None:
        """Move a temporary file that a killed process left to the trash.

        Not deleted: after an exchange of names it may hold an edit by another program that was not compared yet.
        """
        if not safe_files.is_temp_name(name):
            return
        # If it cannot be moved, it is only a file that no vault lists.
        with suppress(OSError, model.VaultUnavailable):
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            # The time of the last rename, because an exchange leaves the modification time of the previous file.
            if not stat.S_ISREG(info.st_mode) or time.time() - info.st_ctime < LEFTOVER_SECONDS:
                return
            with safe_folders.open_root(self.root) as top, _open_trash(top) as trash:
                trash_name = safe_files.move_to_unused_name(folder, name, trash)
            log.warning("vault: file of an interrupted write moved path=%s/%s", TRASH_FOLDER, trash_name)

    def move_sync(self, source: str, target: str, *, overwrite: bool = False) -> FileChange:
        """Move a file by one rename, with whatever bytes it has then.

        Raises NoSuchNote, ReadOnlyNote, and NoteChanged if the target exists without `overwrite`.
        """
        with (
            self._hold_locks([source, target]),
            self._open_parent(source) as (source_folder, source_name),
            self._open_parent(target, make=True) as (target_folder, target_name),
        ):
            stored_name = safe_files.require_file_name(source_folder, source_name, source)
            existing_name = safe_folders.find_name(target_folder, target_name)
            # A file may get its own name in another case.
            if existing_name is None and paths.fold_path(source) != paths.fold_path(target):
                safe_folders.reject_case_collision(target_folder, target_name)
            # Before the rename, which would overwrite it.
            previous = None
            if existing_name is not None:
                previous = safe_files.read_before_change(target_folder, existing_name, ANY_STATE, self._max_read_bytes)
            new_name = existing_name or target_name
            safe_files.require_writable(source_folder, stored_name, source)
            if overwrite and existing_name is not None:
                safe_files.require_writable(target_folder, existing_name, target)
            try:
                if overwrite:
                    os.rename(stored_name, new_name, src_dir_fd=source_folder, dst_dir_fd=target_folder)
                else:
                    safe_files.move_noreplace(source_folder, stored_name, target_folder, new_name)
            except FileExistsError:
                raise NoteChanged(target, "" if previous is None else model.content_hash(previous)) from None
            # In this order, so that a power cut cannot leave the file in neither folder.
            os.fsync(target_folder)
            os.fsync(source_folder)
            return FileChange(safe_files.stat_file(target_folder, new_name, target), previous)

    def list_folder_sync(self, folder: str = "") -> list[str]:
        with self._open_listed(paths.normalize_folder(folder)) as descriptor:
            return sorted(_list_level(list(safe_folders.scan_folder(descriptor))))

    def walk_sync(self, folder: str = "") -> list[Stat]:
        folder = paths.normalize_folder(folder)
        prefix = f"{folder}/" if folder else ""
        try:
            with self._open_listed(folder) as descriptor:
                found = _walk(descriptor, prefix, self._is_unlisted, self._leave_out, self._set_aside)
                return sorted(found, key=lambda file: file.path)
        except NoSuchNote:
            return []

    def list_nonempty_sync(self, folder: str = "") -> list[str]:
        """List one level like `list_folder_sync`, without the folders that have no file anywhere below."""
        with self._open_listed(paths.normalize_folder(folder)) as descriptor:
            entries = [
                (name, info)
                for name, info in list(safe_folders.scan_folder(descriptor))
                if stat.S_ISREG(info.st_mode) or _has_file(descriptor, name)
            ]
            return sorted(_list_level(entries))

    async def run_in_thread(self, function: Callable[..., T], *args: object, **options: object) -> T:
        """Run one of the synchronous methods in a thread."""
        return await asyncio.to_thread(function, *args, **options)

    @contextmanager
    def _open_listed(self, folder: str) -> Iterator[int]:
        """Open a folder to list it; "" is the root. Raises UnreadablePath, VaultUnavailable."""
        parts = paths.split_path(folder) if folder else []
        try:
            with safe_folders.open_root(self.root) as top, safe_folders.open_folder(top, parts) as descriptor:
                yield descriptor
        except PermissionError as error:
            kind = UnreadablePath if folder else model.VaultUnavailable
            raise kind(f"Cannot list {folder or 'the vault'!r}: {error.strerror}.") from error

    def _leave_out(self, folder: str) -> None:
        """Log a folder that may not be read, the first time only."""
        if folder not in self._unreadable_folders:
            self._unreadable_folders.add(folder)
            log.warning("vault: folder left out, no permission to read it path=%r", folder)

    @contextmanager
    def _open_parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        *parts, name = paths.split_path(path)
        with (
            safe_files.translate_os_errors(f"Cannot use {path!r}"),
            safe_folders.open_root(self.root) as top,
            safe_folders.open_folder(top, parts, make=make) as folder,
        ):
            try:
                yield folder, name
            except FileNotFoundError:
                if make:
                    raise  # it is the other file of a move
                # Deleted by another program since it was looked up.
                raise NoSuchNote(f"The vault has no file {paths.display_path(path)}.") from None

    @contextmanager
    def _hold_locks(self, note_paths: Iterable[str]) -> Iterator[None]:
        with ExitStack() as stack:
            # In ascending order, so that two callers cannot deadlock.
            for index in sorted({hash(paths.fold_path(path)) % len(self._locks) for path in note_paths}):
                stack.enter_context(self._locks[index])
            yield


@contextmanager
def _open_trash(top: int) -> Iterator[int]:
    with safe_files.translate_os_errors(f"Cannot use the folder {TRASH_FOLDER!r}"):
        with suppress(FileExistsError):
            os.mkdir(TRASH_FOLDER, dir_fd=top)
        descriptor = os.open(TRASH_FOLDER, _TRASH_FLAGS, dir_fd=top)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _result(outcome: T | Exception) -> T:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _list_level(entries: Sequence[tuple[str, os.stat_result]]) -> Iterator[str]:
    """Yield the names of these entries as the vault lists them; folders end in a slash."""
    names = paths.listed_names(name for name, _ in entries)
    for name, (_, info) in zip(names, entries, strict=True):
        yield f"{name}/" if stat.S_ISDIR(info.st_mode) else name


def _has_file(parent: int, name: str) -> bool:
    try:
        with safe_folders.open_folder(parent, [name]) as folder:
            return next(_walk(folder, "", lambda _: False, lambda _: None, lambda *_: None), None) is not None
    except (NoSuchNote, FileNotFoundError, PermissionError):
        return False


def _walk(
    folder: int,
    prefix: str,
    is_unlisted: Callable[[str], bool],
    leave_out: Callable[[str], None],
    on_hidden: Callable[[int, str], None],
) -> Iterator[Stat]:
    """Yield the files below an open folder. `leave_out` is called with each folder that may not be read, `on_hidden`
    with an open folder and the name of each hidden entry in it.
    """
    hidden: list[str] = []
    entries = list(safe_folders.scan_folder(folder, hidden.append))
    for name in hidden:
        on_hidden(folder, name)
    listed = paths.listed_names(name for name, _ in entries)
    for name, (_, info) in zip(listed, entries, strict=True):
        if stat.S_ISREG(info.st_mode):
            yield safe_files.to_stat(info, f"{prefix}{name}")
    # Only now: an open scan takes a descriptor at each level, and another listing of the folder would start it again.
    for listed_name, (name, info) in zip(listed, entries, strict=True):
        if stat.S_ISREG(info.st_mode):
            continue
        path = f"{prefix}{listed_name}"
        if is_unlisted(path):
            continue
        try:
            with safe_folders.open_folder(folder, [name]) as subfolder:
                yield from _walk(subfolder, f"{path}/", is_unlisted, leave_out, on_hidden)
        except (NoSuchNote, FileNotFoundError):
            continue  # deleted since the scan, or replaced by a link
        except PermissionError:
            leave_out(path)
