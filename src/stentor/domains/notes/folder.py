"""A vault in a folder: atomic writes that compare before they replace, and no path out of it."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from stentor.domains.notes import batch, beneath, files, model, paths
from stentor.domains.notes.batch import Flush, Wish
from stentor.domains.notes.gathered import Gathered
from stentor.domains.notes.model import ANYTHING, Change, NoSuchNote, Note, NoteChanged, Stat, expects

T = TypeVar("T")
TRASH = ".trash"
_TRASH = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LARGE = 1 << 18
"""Bytes from which a note is written alone."""


class FolderVault:
    """Implements the port `Vault`. Other programs may change the same files at any time.

    `unlisted` says which folders `walk` leaves out; their files can be read all the same.
    """

    def __init__(self, root: Path, unlisted: Callable[[str], bool] = lambda folder: False) -> None:
        self.root = root
        self._unlisted = unlisted
        self._locks = [threading.Lock() for _ in range(256)]
        self._flush = Flush()
        self._reads: Gathered[str, Note | Exception] = Gathered(self.read_all_now, 2)
        self._writes: Gathered[Wish, Change | Exception] = Gathered(self.write_all_now, 1)

    async def read(self, path: str) -> Note:
        return _result(await self._reads.do(path))

    async def write(self, path: str, content: bytes, expected: str = ANYTHING) -> Change:
        if len(content) > LARGE:  # the small ones do not wait for it
            return await self.run(self.write_now, path, content, expected)
        return _result(await self._writes.do(Wish(path, content, expected)))

    async def delete(self, path: str, expected: str = ANYTHING) -> Change:
        return await self.run(self.delete_now, path, expected)

    async def names(self, folder: str = "") -> list[str]:
        return await self.run(self.names_now, folder)

    async def walk(self, folder: str = "") -> list[Stat]:
        return await self.run(self.walk_now, folder)

    async def check(self) -> None:
        def touch() -> None:
            with beneath.root(self.root), beneath.faults(f"The vault's folder {self.root} cannot be used"):
                if not os.access(self.root, os.W_OK):
                    raise model.VaultUnavailable(f"The vault's folder {self.root} cannot be written.")

        await self.run(touch)

    def read_now(self, path: str) -> Note:
        return _result(self.read_all_now([path])[0])

    def read_all_now(self, wanted: Sequence[str]) -> list[Note | Exception]:
        """The note of each path, or why there is none."""
        return batch.read(self.root, wanted)

    def write_now(self, path: str, content: bytes, expected: str = ANYTHING) -> Change:
        return _result(self.write_all_now([Wish(path, content, expected)])[0])

    def write_all_now(self, wishes: Sequence[Wish]) -> list[Change | Exception]:
        """What came of each, in their order; those of one path are done one after the other."""
        outcomes: dict[int, Change | Exception] = {}
        left = dict(enumerate(wishes))
        while left:
            first = {paths.folded(wish.path): i for i, wish in reversed(left.items())}
            chosen = {i: left.pop(i) for i in sorted(first.values())}
            outcomes |= zip(chosen, self._write_distinct(list(chosen.values())), strict=True)
        return [outcomes[i] for i in range(len(wishes))]

    def _write_distinct(self, wishes: list[Wish]) -> list[Change | Exception]:
        with ExitStack() as stack:
            for number in sorted({self._number(wish.path) for wish in wishes}):  # in order: nobody waits in a ring
                stack.enter_context(self._locks[number])
            return batch.write(self.root, wishes, self._flush)

    def delete_now(self, path: str, expected: str = ANYTHING, *, permanent: bool = False) -> Change:
        """Takes the file into the trash, looks at it there, and puts it back when it is not the expected one."""
        with self._lock(path), self._parent(path) as (folder, name), ExitStack() as stack:
            spelled = files.known(folder, name, path)
            trash = stack.enter_context(self._trash())
            aside = files.free(trash, spelled)
            os.rename(spelled, aside, src_dir_fd=folder, dst_dir_fd=trash)
            before = files.content(trash, aside)
            if not expects(expected, before):
                os.rename(aside, spelled, src_dir_fd=trash, dst_dir_fd=folder)
                raise NoteChanged(path, model.content_hash(before))
            if permanent:
                os.unlink(aside, dir_fd=trash)
            os.fsync(trash)
            os.fsync(folder)
            return Change(None, before)

    def move_now(self, source: str, target: str, *, overwrite: bool = False) -> Change:
        """The file under another path, by one rename. Raises NoSuchNote, NoteChanged when the target exists."""
        with self._parent(source) as (old, name), self._parent(target, make=True) as (new, wanted):
            spelled = files.known(old, name, source)
            taken = beneath.spelled(new, wanted)
            if taken is not None and not overwrite:
                raise NoteChanged(target, model.content_hash(files.content(new, taken)))
            if taken is None:
                beneath.refuse_twin(new, wanted)
            before = None if taken is None else files.content(new, taken)
            os.rename(spelled, taken or wanted, src_dir_fd=old, dst_dir_fd=new)
            os.fsync(new)
            os.fsync(old)
            return Change(files.stat_at(new, taken or wanted, target), before)

    def names_now(self, folder: str = "") -> list[str]:
        parts = paths.segments(folder) if (folder := paths.folder(folder)) else []
        with beneath.root(self.root) as top, beneath.folder(top, parts) as opened:
            found = beneath.entries(opened)
            return sorted(f"{name}/" if stat.S_ISDIR(info.st_mode) else name for name, info in found)

    def walk_now(self, folder: str = "") -> list[Stat]:
        parts = paths.segments(folder) if (folder := paths.folder(folder)) else []
        try:
            with beneath.root(self.root) as top, beneath.folder(top, parts) as opened:
                return sorted(
                    _walk(opened, f"{folder}/" if folder else "", self._unlisted), key=lambda found: found.path
                )
        except NoSuchNote:
            return []

    def shown_now(self, folder: str = "") -> list[str]:
        """`names_now` without the folders that have no file anywhere below; looks no further than to the first."""
        parts = paths.segments(folder) if (folder := paths.folder(folder)) else []
        with beneath.root(self.root) as top, beneath.folder(top, parts) as opened:
            return sorted(
                f"{name}/" if stat.S_ISDIR(info.st_mode) else name
                for name, info in beneath.entries(opened)
                if stat.S_ISREG(info.st_mode) or _has_file(opened, name)
            )

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        *parts, name = paths.segments(path)
        with (
            beneath.faults(f"{path!r} cannot be used"),
            beneath.root(self.root) as top,
            beneath.folder(top, parts, make=make) as folder,
        ):
            yield folder, name

    @contextmanager
    def _trash(self) -> Iterator[int]:
        with beneath.root(self.root) as top:
            with suppress(FileExistsError):
                os.mkdir(TRASH, dir_fd=top)
            opened = os.open(TRASH, _TRASH, dir_fd=top)
            try:
                yield opened
            finally:
                os.close(opened)

    def _lock(self, path: str) -> threading.Lock:
        return self._locks[self._number(path)]

    def _number(self, path: str) -> int:
        return hash(path) % len(self._locks)

    async def run(self, function: Callable[..., T], *args: object, **options: object) -> T:
        """One of the synchronous methods in a thread."""
        return await asyncio.to_thread(function, *args, **options)


def _result(outcome: T | Exception) -> T:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _has_file(above: int, name: str) -> bool:
    try:
        with beneath.folder(above, [name]) as folder:
            return next(_walk(folder, "", lambda _: False), None) is not None
    except (NoSuchNote, FileNotFoundError):
        return False


def _walk(folder: int, prefix: str, unlisted: Callable[[str], bool]) -> Iterator[Stat]:
    for name, info in beneath.entries(folder):
        path = f"{prefix}{name}"
        if stat.S_ISREG(info.st_mode):
            yield files.stat_of(info, unicodedata.normalize("NFC", path))
            continue
        if unlisted(path):
            continue
        try:
            with beneath.folder(folder, [name]) as deeper:
                yield from _walk(deeper, f"{path}/", unlisted)
        except (NoSuchNote, FileNotFoundError):
            continue  # gone since, or made a link
