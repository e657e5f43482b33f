"""Many files read or written at once: each folder is opened, looked through and flushed once for all of them.

Every file goes through the steps of a write alone, in their order: durable aside, compared, put under its name, the
folder durable. One that cannot be written takes down no other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stentor.domains.notes import beneath, files, model, paths
from stentor.domains.notes.model import ANYTHING, Change, NameTaken, Note, NoteTooLarge

LANES = 4
"""Flushes under way at the same time: the file system commits them together."""


class Wish(msgspec.Struct, frozen=True):
    """`content` under `path`, if what is there is in the `expected` state."""

    path: str
    content: bytes
    expected: str = ANYTHING


class Flush:
    """Makes open files or folders durable, several at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(LANES, thread_name_prefix="stentor-vault-flush")

    def all(self, opened: Sequence[int]) -> dict[int | None, OSError]:
        """Answers those that could not be, with the reason."""
        if len(opened) <= 1:
            return _flush(opened)
        failed: dict[int | None, OSError] = {}
        for found in self._pool.map(_flush, [opened[lane::LANES] for lane in range(min(LANES, len(opened)))]):
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
            self._twins = beneath.twins(self.opened, self.fresh)
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
        *above, name = paths.segments(path)
        known = self._open.get(tuple(above))
        if known is None:
            if self._top is None:
                self._top = self._stack.enter_context(beneath.root(self._root))
            opened = self._stack.enter_context(beneath.folder(self._top, above, make=self._make))
            known = self._open[tuple(above)] = _Folder(opened)
        return known, name


@dataclass(slots=True)
class _File:
    """A file on its way. `name` is as the folder spells it, `aside` the temporary name while there is one."""

    wish: Wish
    folder: _Folder | None = None
    name: str = ""
    fresh: bool = False
    aside: str | None = None
    opened: int | None = None
    before: bytes | None = None
    outcome: Change | Exception | None = None

    def open(self, folders: _Folders) -> None:
        path, size = self.wish.path, len(self.wish.content)
        if size > model.MAX_BYTES:
            raise NoteTooLarge(f"{path!r} would have {size} bytes; {model.MAX_BYTES} are the most.")
        self.folder, name = folders.of(path)
        spelled = beneath.spelled(self.folder.opened, name)
        self.name, self.fresh = spelled or name, spelled is None
        if self.fresh:
            self.folder.fresh.append(name)

    def prepare(self) -> None:
        assert self.folder is not None
        if self.fresh:
            self.folder.refuse_twin(self.name)
        self.aside, self.opened = files.aside(self.folder.opened)
        files.write_all(self.opened, self.wish.content)
        if not self.fresh:
            files.copy_mode(self.folder.opened, self.name, self.opened)

    def put(self) -> None:
        assert self.folder is not None
        assert self.aside is not None
        wish = self.wish
        self.before = files.put(self.folder.opened, self.aside, self.name, wish.path, wish.expected)
        if self.before is not None:  # it has the temporary name now
            files.remove(self.folder.opened, self.aside)
        self.aside = None

    def finish(self) -> None:
        assert self.folder is not None
        self.outcome = Change(files.stat_at(self.folder.opened, self.name, self.wish.path), self.before)

    def close(self) -> None:
        if self.opened is not None:
            os.close(self.opened)
            self.opened = None

    def clean(self) -> None:
        self.close()
        if self.aside is not None and self.folder is not None:
            files.remove(self.folder.opened, self.aside)


def write(root: Path, wishes: Iterable[Wish], flush: Flush) -> list[Change | Exception]:
    """What came of each, in their order. No two may have paths that some system takes for the same."""
    wanted = [_File(wish) for wish in wishes]
    with ExitStack() as stack:
        folders = _Folders(root, stack, make=True)
        try:
            _each(wanted, lambda file: file.open(folders))
            _each(wanted, _File.prepare)
            _flush_by(wanted, lambda file: file.opened, flush)
            for file in wanted:
                file.close()
            _each(wanted, _File.put)
            _flush_by(wanted, lambda file: file.folder.opened if file.folder else None, flush)
            _each(wanted, _File.finish)
        finally:
            for file in wanted:
                file.clean()
    return [file.outcome for file in wanted if file.outcome is not None]


def read(root: Path, wanted: Iterable[str]) -> list[Note | Exception]:
    """The note of each path, or why there is none."""
    with ExitStack() as stack:
        folders = _Folders(root, stack, make=False)
        return [_read(folders, path) for path in wanted]


def _read(folders: _Folders, path: str) -> Note | Exception:
    try:
        with beneath.faults(f"{path!r} cannot be used"):
            folder, name = folders.of(path)
            return files.read(folder.opened, files.known(folder.opened, name, path), path)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's of this path
        return error


def _each(wanted: Iterable[_File], step: Callable[[_File], None]) -> None:
    """One step of all that have not failed yet."""
    for file in wanted:
        if file.outcome is None:
            try:
                with beneath.faults(f"{file.wish.path!r} cannot be used"):
                    step(file)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's of this file
                file.outcome = error


def _flush_by(wanted: Iterable[_File], opened: Callable[[_File], int | None], flush: Flush) -> None:
    """Flush what the files that have not failed name, each once."""
    by = [(file, one) for file in wanted if file.outcome is None and (one := opened(file)) is not None]
    failed = flush.all(list(dict.fromkeys(one for _, one in by)))

    def check(file: _File) -> None:
        one = opened(file)
        if one in failed:
            raise failed[one]

    if failed:
        _each([file for file, _ in by], check)


def _flush(opened: Iterable[int]) -> dict[int | None, OSError]:
    failed: dict[int | None, OSError] = {}
    for one in opened:
        try:
            os.fsync(one)
        except OSError as error:
            failed[one] = error
    return failed
