"""Single files in an open folder: read, written aside, put under their name."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from stentor.core import filesystem, ids
from stentor.domains.notes import beneath, model, paths, swap
from stentor.domains.notes.model import NoSuchNote, Note, NoteChanged, Stat, expects

PREFIX = ".stentor-"
"""Of the names of temporary files, which no vault shows."""
_NO_FILE = {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR}
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def known(folder: int, name: str, path: str) -> str:
    """The name of a regular file as its folder spells it. Raises NoSuchNote."""
    spelled = beneath.spelled(folder, name)
    if spelled is None or not stat.S_ISREG(os.stat(spelled, dir_fd=folder, follow_symlinks=False).st_mode):
        raise NoSuchNote(f"The vault has no file {paths.shown(path)}.")
    return spelled


def read(folder: int, name: str, path: str) -> Note:
    return Note(stat_at(folder, name, path), content(folder, name))


def content(folder: int, name: str) -> bytes:
    try:
        opened = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise NoSuchNote(f"{name!r} is no file of the vault ({error.strerror}).") from error
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise NoSuchNote(f"{name!r} is no file of the vault.")
    with os.fdopen(opened, "rb") as file:
        return file.read()


def stat_at(folder: int, name: str, path: str) -> Stat:
    return stat_of(os.stat(name, dir_fd=folder, follow_symlinks=False), path)


def stat_of(info: os.stat_result, path: str) -> Stat:
    born = getattr(info, "st_birthtime", None)
    created = info.st_ctime_ns // 1000 if born is None else int(born * 1_000_000)
    return Stat(path, info.st_size, info.st_mtime_ns // 1000, created)


def aside(folder: int) -> tuple[str, int]:
    """A new empty file under a name that no vault shows, open for writing."""
    name = f"{PREFIX}{ids.new_id()}"
    opened = os.open(name, _MAKE, 0o666, dir_fd=folder)
    os.fchmod(opened, filesystem.inherited_mode(folder, 0o666))
    return name, opened


def copy_mode(folder: int, name: str, opened: int) -> None:
    """Give an open file the mode of the one that it is to replace."""
    with contextlib.suppress(FileNotFoundError):
        os.fchmod(opened, stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode))


def write_all(opened: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(opened, left) :]


def put(folder: int, aside: str, name: str, path: str, expected: str) -> bytes | None:
    """The temporary file under the name, and what was there before. Raises NoteChanged and leaves it as it was."""
    while True:
        present = _present(folder, name)
        if not expects(expected, present):
            raise NoteChanged(path, "" if present is None else model.content_hash(present))
        try:
            if present is None:
                if not swap.place(folder, aside, name):
                    os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
                return None
            if not swap.exchange(folder, aside, name):
                os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
                return present
        except (FileExistsError, FileNotFoundError):
            continue  # somebody was faster: look again
        before = content(folder, aside)
        if before == present or expects(expected, before):
            return before
        swap.exchange(folder, aside, name)


def _present(folder: int, name: str) -> bytes | None:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return content(folder, name)


def remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def free(folder: int, name: str) -> str:
    """A name in the trash that nothing has: `a.md`, `a 2.md`, `a 3.md`."""
    stem, dot, suffix = name.rpartition(".")
    taken = set(os.listdir(folder))
    choices = (f"{stem} {n}{dot}{suffix}" if stem else f"{name} {n}" for n in range(2, 1_000_000))
    return name if name not in taken else next(choice for choice in choices if choice not in taken)
