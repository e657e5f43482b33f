"""Many files read or written at once: each folder is opened, looked through and flushed once for all of them.

Every file goes through the steps of a write alone, in their order: durable aside, compared, put under its name, the
folder durable. One that cannot be written takes down no other.

Many notes of one folder written at once, for a projection that can be made again.

Each is whole under its name or not there, but nothing is flushed to the disk, and what stood there is not kept.

Small pieces of blocking work done together: what comes while a thread is busy goes to it in one call.

A call in a thread for each would cost more than the work, and threads that all wait for the interpreter slow down
each other and the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from stentor_vault import file_modes
from stentor_vault.notes import model, paths, safe_files
from stentor_vault.notes.model import ANY_STATE, FileChange, NameTaken, NoSuchNote, Note, NoteTooLarge

FSYNC_THREADS = 4
"""Flushes under way at the same time: the file system commits them together."""


class WriteRequest(msgspec.Struct, frozen=True):
    """`content` under `path`, if what is there is in the `expected` state."""

    path: str
    content: bytes
    expected: str = ANY_STATE


class FsyncPool:
    """Makes open files or folders durable, several at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(FSYNC_THREADS, thread_name_prefix="stentor-vault-flush")

    def sync_all(self, opened: Sequence[int]) -> dict[int | None, OSError]:
        """Answers those that could not be, with the reason."""
        if len(opened) <= 1:
            return _fsync_each(opened)
        failed: dict[int | None, OSError] = {}
        for found in self._pool.map(
            _fsync_each, [opened[lane::FSYNC_THREADS] for lane in range(min(FSYNC_THREADS, len(opened)))]
        ):
            failed |= found
        return failed


class _Folder:
    """An open folder, and the names that are to be new in it."""

    def __init__(self, opened: int) -> None:
        self.opened = opened
        self.fresh: list[str] = []
        self._twins: dict[str, NameTaken] | None = None

    def refuse_twin(self, name: str) -> None:
        if self._twins is None:
            self._twins = safe_files.find_case_collisions(self.opened, self.fresh)
        if name in self._twins:
            raise self._twins[name]


class _Folders:
    """Opens the vault and its folders when they are first asked for, until the stack is left."""

    def __init__(self, root: Path, stack: ExitStack, *, make: bool) -> None:
        self._root, self._stack, self._make = root, stack, make
        self._top: int | None = None
        self._open: dict[tuple[str, ...], _Folder] = {}

    def of(self, path: str) -> tuple[_Folder, str]:
        """The folder of a file and the file's name. Raises InvalidPath, NoSuchNote, VaultUnavailable."""
        *above, name = paths.split_path(path)
        known = self._open.get(tuple(above))
        if known is None:
            if self._top is None:
                self._top = self._stack.enter_context(safe_files.open_root(self._root))
            opened = self._stack.enter_context(safe_files.open_folder(self._top, above, make=self._make))
            known = self._open[tuple(above)] = _Folder(opened)
        return known, name


@dataclass(slots=True)
class _File:
    """A file on its way. `name` is as the folder spells it, `aside` the temporary name while there is one."""

    wish: WriteRequest
    folder: _Folder | None = None
    name: str = ""
    fresh: bool = False
    aside: str | None = None
    opened: int | None = None
    before: bytes | None = None
    outcome: FileChange | Exception | None = None

    def open(self, folders: _Folders) -> None:
        path, size = self.wish.path, len(self.wish.content)
        if size > model.MAX_NOTE_BYTES:
            raise NoteTooLarge(f"{path!r} would have {size} bytes; {model.MAX_NOTE_BYTES} are the most.")
        self.folder, name = folders.of(path)
        spelled = safe_files.find_name(self.folder.opened, name)
        self.name, self.fresh = spelled or name, spelled is None
        if self.fresh:
            self.folder.fresh.append(name)

    def prepare(self) -> None:
        assert self.folder is not None
        if self.fresh:
            self.folder.refuse_twin(self.name)
        self.aside, self.opened = safe_files.create_temp_file(self.folder.opened)
        safe_files.write_all(self.opened, self.wish.content)
        if not self.fresh:
            safe_files.copy_mode(self.folder.opened, self.name, self.opened)

    def put(self) -> None:
        assert self.folder is not None
        assert self.aside is not None
        wish = self.wish
        self.before = safe_files.replace_if_expected(
            self.folder.opened, self.aside, self.name, wish.path, wish.expected
        )
        if self.before is not None:  # it has the temporary name now
            safe_files.unlink_if_exists(self.folder.opened, self.aside)
        self.aside = None

    def finish(self) -> None:
        assert self.folder is not None
        self.outcome = FileChange(safe_files.stat_file(self.folder.opened, self.name, self.wish.path), self.before)

    def close(self) -> None:
        if self.opened is not None:
            os.close(self.opened)
            self.opened = None

    def clean(self) -> None:
        self.close()
        if self.aside is not None and self.folder is not None:
            safe_files.unlink_if_exists(self.folder.opened, self.aside)


def write_batch(root: Path, wishes: Iterable[WriteRequest], flush: FsyncPool) -> list[FileChange | Exception]:
    """What came of each, in their order. No two may have paths that some system takes for the same."""
    wanted = [_File(wish) for wish in wishes]
    with ExitStack() as stack:
        folders = _Folders(root, stack, make=True)
        try:
            _each(wanted, lambda file: file.open(folders))
            _each(wanted, _File.prepare)
            _fsync_files(wanted, lambda file: file.opened, flush)
            for file in wanted:
                file.close()
            _each(wanted, _File.put)
            _fsync_files(wanted, lambda file: file.folder.opened if file.folder else None, flush)
            _each(wanted, _File.finish)
        finally:
            for file in wanted:
                file.clean()
    return [file.outcome for file in wanted if file.outcome is not None]


def read_batch(root: Path, wanted: Iterable[str]) -> list[Note | Exception]:
    """The note of each path, or why there is none."""
    with ExitStack() as stack:
        folders = _Folders(root, stack, make=False)
        return [_read(folders, path) for path in wanted]


def _read(folders: _Folders, path: str) -> Note | Exception:
    try:
        with safe_files.translate_os_errors(f"{path!r} cannot be used"):
            folder, name = folders.of(path)
            return safe_files.read_note(folder.opened, safe_files.require_file_name(folder.opened, name, path), path)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's of this path
        return error


def _each(wanted: Iterable[_File], step: Callable[[_File], None]) -> None:
    """One step of all that have not failed yet."""
    for file in wanted:
        if file.outcome is None:
            try:
                with safe_files.translate_os_errors(f"{file.wish.path!r} cannot be used"):
                    step(file)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's of this file
                file.outcome = error


def _fsync_files(wanted: Iterable[_File], opened: Callable[[_File], int | None], flush: FsyncPool) -> None:
    """Flush what the files that have not failed name, each once."""
    by = [(file, one) for file in wanted if file.outcome is None and (one := opened(file)) is not None]
    failed = flush.sync_all(list(dict.fromkeys(one for _, one in by)))

    def check(file: _File) -> None:
        one = opened(file)
        if one in failed:
            raise failed[one]

    if failed:
        _each([file for file, _ in by], check)


def _fsync_each(opened: Iterable[int]) -> dict[int | None, OSError]:
    failed: dict[int | None, OSError] = {}
    for one in opened:
        try:
            os.fsync(one)
        except OSError as error:
            failed[one] = error
    return failed


_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCKED_BY_FOLDER = {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST}
log = logging.getLogger(__name__)


def write_projection(
    root: Path, folder: str, notes: Iterable[tuple[str, bytes]], *, temp_name: str, skip_unchanged: bool = False
) -> int:
    """Write names with their bytes into a folder, which is made; answers how many were not as they should be.

    `aside` is the temporary name, one for each writer. `compare` leaves alone what has the bytes already.
    Raises VaultUnavailable, NameTaken, NoSuchNote when a file stands where a folder should.
    """
    parts = paths.split_path(folder)
    with (
        safe_files.translate_os_errors(f"{folder!r} cannot be written"),
        safe_files.open_root(root) as top,
        safe_files.open_folder(top, parts, make=True) as opened,
    ):
        return sum(_write_unsynced(opened, name, content, temp_name, compare=skip_unchanged) for name, content in notes)


def find_differing(root: Path, folder: str, notes: Iterable[tuple[str, bytes]]) -> list[tuple[str, bool]]:
    """The names whose files do not have these bytes, each with whether there is a file."""
    parts = paths.split_path(folder)
    wanted = list(notes)
    with safe_files.translate_os_errors(f"{folder!r} cannot be read"), safe_files.open_root(root) as top:
        try:
            with safe_files.open_folder(top, parts) as opened:
                present = [(name, content, _read_if_exists(opened, name)) for name, content in wanted]
        except NoSuchNote:
            return [(name, False) for name, _ in wanted]
    return [(name, there is not None) for name, content, there in present if there != content]


def _write_unsynced(folder: int, name: str, content: bytes, aside: str, *, compare: bool) -> bool:
    if compare and _read_if_exists(folder, name) == content:
        return False
    opened = os.open(aside, _CREATE_FLAGS, 0o666, dir_fd=folder)
    try:
        os.fchmod(opened, file_modes.inherited_mode(folder, 0o666))
        safe_files.write_all(opened, content)
    finally:
        os.close(opened)
    try:
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in _BLOCKED_BY_FOLDER:
            raise
        safe_files.unlink_if_exists(folder, aside)
        log.error("the note %s cannot be written, because a folder has its name", name)
    return True


def _read_if_exists(folder: int, name: str) -> bytes | None:
    try:
        return safe_files.read_content(folder, name)
    except NoSuchNote:
        return None


W = TypeVar("W")
R = TypeVar("R")

MAX_BATCH_ITEMS = 32
"""Pieces of one call at most: bounds the wait of the first one."""

_Waiting = tuple[W, "asyncio.Future[R]"]


class ThreadBatcher(Generic[W, R]):
    """`work` answers a result for each piece, in their order; `most` calls of it are under way at the same time.

    For one event loop at a time.
    """

    def __init__(self, work: Callable[[Sequence[W]], Sequence[R]], most: int) -> None:
        self._work = work
        self._most = most
        self._waiting: deque[_Waiting[W, R]] = deque()
        self._calls = 0

    async def submit(self, piece: W) -> R:
        """The result of this piece. Raises what `work` raises."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((piece, future))
        self._start()
        return await future

    def _start(self) -> None:
        while self._calls < self._most and (taken := self._take()):
            call = asyncio.get_running_loop().run_in_executor(None, self._work, [piece for piece, _ in taken])
            self._calls += 1
            call.add_done_callback(lambda done, taken=taken: self._answer(taken, done))  # type: ignore[misc]

    def _take(self) -> list[_Waiting[W, R]]:
        """The next ones whose callers have not left."""
        taken: list[_Waiting[W, R]] = []
        while self._waiting and len(taken) < MAX_BATCH_ITEMS:
            one = self._waiting.popleft()
            if not one[1].done():
                taken.append(one)
        return taken

    def _answer(self, taken: list[_Waiting[W, R]], done: asyncio.Future[Sequence[R]]) -> None:
        self._calls -= 1
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        results = [None] * len(taken) if error else done.result()
        for (_, future), result in zip(taken, results, strict=True):
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]
        self._start()
