"""A vault in a folder: atomic writes that compare before they replace, and no path out of it.

What changes in a folder, as the system tells it.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import watchfiles

from stentor_vault.notes import batch_io, model, paths, safe_files
from stentor_vault.notes.batch_io import FsyncPool, WriteRequest
from stentor_vault.notes.model import ANY_STATE, FileChange, NoSuchNote, Note, NoteChanged, Stat, matches_state
from stentor_vault.notes.thread_batcher import ThreadBatcher

T = TypeVar("T")
TRASH_FOLDER = ".trash"
_TRASH_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
BATCH_MAX_BYTES = 1 << 18
"""Bytes from which a note is written alone."""


class FolderVault:
    """Implements the port `Vault`. Other programs may change the same files at any time.

    `unlisted` says which folders `walk` leaves out; their files can be read all the same.
    """

    def __init__(self, root: Path, is_unlisted: Callable[[str], bool] = lambda folder: False) -> None:
        self.root = root
        self._unlisted = is_unlisted
        self._locks = [threading.Lock() for _ in range(256)]
        self._flush = FsyncPool()
        self._reads: ThreadBatcher[str, Note | Exception] = ThreadBatcher(self.read_batch_sync, 2)
        self._writes: ThreadBatcher[WriteRequest, FileChange | Exception] = ThreadBatcher(self.write_batch_sync, 1)

    async def read(self, path: str) -> Note:
        return _result(await self._reads.submit(path))

    async def write(self, path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        if len(content) > BATCH_MAX_BYTES:  # the small ones do not wait for it
            return await self.run_in_thread(self.write_sync, path, content, expected)
        return _result(await self._writes.submit(WriteRequest(path, content, expected)))

    async def delete(self, path: str, expected: str = ANY_STATE) -> FileChange:
        return await self.run_in_thread(self.delete_sync, path, expected)

    async def list_folder(self, folder: str = "") -> list[str]:
        return await self.run_in_thread(self.list_folder_sync, folder)

    async def walk(self, folder: str = "") -> list[Stat]:
        return await self.run_in_thread(self.walk_sync, folder)

    async def check(self) -> None:
        def touch() -> None:
            with (
                safe_files.open_root(self.root),
                safe_files.translate_os_errors(f"The vault's folder {self.root} cannot be used"),
            ):
                if not os.access(self.root, os.W_OK):
                    raise model.VaultUnavailable(f"The vault's folder {self.root} cannot be written.")

        await self.run_in_thread(touch)

    def read_sync(self, path: str) -> Note:
        return _result(self.read_batch_sync([path])[0])

    def read_batch_sync(self, wanted: Sequence[str]) -> list[Note | Exception]:
        """The note of each path, or why there is none."""
        return batch_io.read_batch(self.root, wanted)

    def write_sync(self, path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        return _result(self.write_batch_sync([WriteRequest(path, content, expected)])[0])

    def write_batch_sync(self, wishes: Sequence[WriteRequest]) -> list[FileChange | Exception]:
        """What came of each, in their order; those of one path are done one after the other."""
        outcomes: dict[int, FileChange | Exception] = {}
        left = dict(enumerate(wishes))
        while left:
            first = {paths.fold_path(wish.path): i for i, wish in reversed(left.items())}
            chosen = {i: left.pop(i) for i in sorted(first.values())}
            outcomes |= zip(chosen, self._write_distinct(list(chosen.values())), strict=True)
        return [outcomes[i] for i in range(len(wishes))]

    def _write_distinct(self, wishes: list[WriteRequest]) -> list[FileChange | Exception]:
        with ExitStack() as stack:
            for number in sorted({self._number(wish.path) for wish in wishes}):  # in order: nobody waits in a ring
                stack.enter_context(self._locks[number])
            return batch_io.write_batch(self.root, wishes, self._flush)

    def delete_sync(self, path: str, expected: str = ANY_STATE, *, permanent: bool = False) -> FileChange:
        """Takes the file into the trash, looks at it there, and puts it back when it is not the expected one."""
        with self._lock(path), self._parent(path) as (folder, name), ExitStack() as stack:
            spelled = safe_files.require_file_name(folder, name, path)
            trash = stack.enter_context(self._trash())
            aside = safe_files.find_unused_name(trash, spelled)
            os.rename(spelled, aside, src_dir_fd=folder, dst_dir_fd=trash)
            before = safe_files.read_content(trash, aside)
            if not matches_state(expected, before):
                os.rename(aside, spelled, src_dir_fd=trash, dst_dir_fd=folder)
                raise NoteChanged(path, model.content_hash(before))
            if permanent:
                os.unlink(aside, dir_fd=trash)
            os.fsync(trash)
            os.fsync(folder)
            return FileChange(None, before)

    def move_sync(self, source: str, target: str, *, overwrite: bool = False) -> FileChange:
        """The file under another path, by one rename. Raises NoSuchNote, NoteChanged when the target exists."""
        with self._parent(source) as (old, name), self._parent(target, make=True) as (new, wanted):
            spelled = safe_files.require_file_name(old, name, source)
            taken = safe_files.find_name(new, wanted)
            if taken is not None and not overwrite:
                raise NoteChanged(target, model.content_hash(safe_files.read_content(new, taken)))
            if taken is None:
                safe_files.reject_case_collision(new, wanted)
            before = None if taken is None else safe_files.read_content(new, taken)
            os.rename(spelled, taken or wanted, src_dir_fd=old, dst_dir_fd=new)
            os.fsync(new)
            os.fsync(old)
            return FileChange(safe_files.stat_file(new, taken or wanted, target), before)

    def list_folder_sync(self, folder: str = "") -> list[str]:
        parts = paths.split_path(folder) if (folder := paths.normalize_folder(folder)) else []
        with safe_files.open_root(self.root) as top, safe_files.open_folder(top, parts) as opened:
            found = safe_files.scan_folder(opened)
            return sorted(f"{name}/" if stat.S_ISDIR(info.st_mode) else name for name, info in found)

    def walk_sync(self, folder: str = "") -> list[Stat]:
        parts = paths.split_path(folder) if (folder := paths.normalize_folder(folder)) else []
        try:
            with safe_files.open_root(self.root) as top, safe_files.open_folder(top, parts) as opened:
                return sorted(
                    _walk(opened, f"{folder}/" if folder else "", self._unlisted), key=lambda found: found.path
                )
        except NoSuchNote:
            return []

    def list_nonempty_sync(self, folder: str = "") -> list[str]:
        """`names_now` without the folders that have no file anywhere below; looks no further than to the first."""
        parts = paths.split_path(folder) if (folder := paths.normalize_folder(folder)) else []
        with safe_files.open_root(self.root) as top, safe_files.open_folder(top, parts) as opened:
            return sorted(
                f"{name}/" if stat.S_ISDIR(info.st_mode) else name
                for name, info in safe_files.scan_folder(opened)
                if stat.S_ISREG(info.st_mode) or _has_file(opened, name)
            )

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        *parts, name = paths.split_path(path)
        with (
            safe_files.translate_os_errors(f"{path!r} cannot be used"),
            safe_files.open_root(self.root) as top,
            safe_files.open_folder(top, parts, make=make) as folder,
        ):
            yield folder, name

    @contextmanager
    def _trash(self) -> Iterator[int]:
        with safe_files.open_root(self.root) as top:
            with suppress(FileExistsError):
                os.mkdir(TRASH_FOLDER, dir_fd=top)
            opened = os.open(TRASH_FOLDER, _TRASH_FLAGS, dir_fd=top)
            try:
                yield opened
            finally:
                os.close(opened)

    def _lock(self, path: str) -> threading.Lock:
        return self._locks[self._number(path)]

    def _number(self, path: str) -> int:
        return hash(path) % len(self._locks)

    async def run_in_thread(self, function: Callable[..., T], *args: object, **options: object) -> T:
        """One of the synchronous methods in a thread."""
        return await asyncio.to_thread(function, *args, **options)


def _result(outcome: T | Exception) -> T:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _has_file(above: int, name: str) -> bool:
    try:
        with safe_files.open_folder(above, [name]) as folder:
            return next(_walk(folder, "", lambda _: False), None) is not None
    except (NoSuchNote, FileNotFoundError):
        return False


def _walk(folder: int, prefix: str, unlisted: Callable[[str], bool]) -> Iterator[Stat]:
    for name, info in safe_files.scan_folder(folder):
        path = f"{prefix}{name}"
        if stat.S_ISREG(info.st_mode):
            yield safe_files.to_stat(info, unicodedata.normalize("NFC", path))
            continue
        if unlisted(path):
            continue
        try:
            with safe_files.open_folder(folder, [name]) as deeper:
                yield from _walk(deeper, f"{path}/", unlisted)
        except (NoSuchNote, FileNotFoundError):
            continue  # gone since, or made a link


POLL_MS = 40
"""Milliseconds between two looks at what the system told: each one wakes the processor, however quiet the folder is."""
DEBOUNCE_MS = 100
"""Milliseconds that changes which go on and on are gathered at most."""


async def watch_changes(root: Path, *, poll: bool = False) -> AsyncIterator[set[str]]:
    """The paths that changed, gathered until nothing comes for a step; `poll` looks at the files themselves.

    Raises OSError, RuntimeError when the folder is not there, or cannot be followed.
    """
    told = watchfiles.awatch(root, watch_filter=None, step=POLL_MS, debounce=DEBOUNCE_MS, force_polling=poll or None)
    async for found in told:
        yield {path for _, path in found}
