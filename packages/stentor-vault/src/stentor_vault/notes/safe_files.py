"""Folders opened one name at a time beneath a root, without following a link anywhere.

So a link that somebody puts into the vault, even between the check and the use, leads nowhere.

Renames that exchange two names at once, where the kernel can: Linux since 3.15.

With an exchange nobody's bytes are ever overwritten unseen: what was under the name is afterwards
under the other one, and can be compared and put back.

Single files in an open folder: read, written aside, put under their name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stentor_vault import file_modes
from stentor_vault.notes import model, paths
from stentor_vault.notes.model import NameTaken, NoSuchNote, Note, NoteChanged, Stat, VaultUnavailable, matches_state
from stentor_vault.notes.paths import fold_path, is_hidden

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM}


@contextmanager
def open_root(path: Path) -> Iterator[int]:
    """The vault's own folder, which may be a link; an open descriptor."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        # Without the path, which is the machine's business: agents read this message too.
        raise VaultUnavailable(f"The vault's folder cannot be opened: {error.strerror}.") from error
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def open_folder(top: int, parts: list[str], *, make: bool = False) -> Iterator[int]:
    """The folder below `top`; `make` creates what is missing. Raises NoSuchNote."""
    opened = os.dup(top)
    try:
        for part in parts:
            deeper = _step(opened, part, make=make)
            os.close(opened)
            opened = deeper
        yield opened
    finally:
        os.close(opened)


def _step(above: int, part: str, *, make: bool) -> int:
    name = find_name(above, part)
    if name is None:
        if not make:
            raise NoSuchNote(f"The vault has no folder {part!r} there.")
        reject_case_collision(above, part)
        name = part
        try:
            os.mkdir(name, dir_fd=above)
        except FileExistsError:
            pass
        else:
            opened = _opened(above, name, part)
            # Added to what it has: a folder that gives its group to what is made in it goes on doing so.
            os.fchmod(opened, os.fstat(opened).st_mode & stat.S_ISGID | file_modes.inherited_mode(above, 0o777))
            os.fsync(above)
            return opened
    return _opened(above, name, part)


def _opened(above: int, name: str, part: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NoSuchNote(f"{part!r} is no folder of the vault.") from None
        raise


def find_name(above: int, name: str) -> str | None:
    """The name as the folder spells it: composed or decomposed letters are the same. None when it has none."""
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        if name.isascii():
            return None
        return next((n for n in os.listdir(above) if unicodedata.normalize("NFC", n) == name), None)
    return name


def reject_case_collision(above: int, name: str) -> None:
    """Raises NameTaken when the folder has the name in other letters."""
    for taken in find_case_collisions(above, [name]).values():
        raise taken


def find_case_collisions(above: int, names: Iterable[str]) -> dict[str, NameTaken]:
    """Those of the names that the folder has in other letters, with what to say of each."""
    wanted = {fold_path(name): name for name in names}
    # A folder may have thousands: names of plain letters and other lengths are out without a closer look.
    lengths = {len(name) for name in wanted.values()}
    plain = all(name.isascii() for name in wanted.values())
    found: dict[str, NameTaken] = {}
    for known in os.listdir(above):
        if plain and known.isascii() and len(known) not in lengths:
            continue
        name = wanted.get(fold_path(known))
        if name is not None and name != known:
            found[name] = NameTaken(
                f"{name!r} and {known!r} are the same name on some systems; use the one that is there."
            )
    return found


def scan_folder(above: int) -> Iterator[tuple[str, os.stat_result]]:
    """The vault's files and folders in an open folder: nothing hidden, no link, no device."""
    with os.scandir(above) as found:
        for entry in found:
            if is_hidden(entry.name) or not _text(entry.name):
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # gone since
            if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
                yield entry.name, info


def _text(name: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in name)


@contextmanager
def translate_os_errors(what: str) -> Iterator[None]:
    """Failures of the file system as VaultUnavailable, with the reason and what it was about."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise VaultUnavailable(f"{what}: {error.strerror}.") from error
        raise


_NOREPLACE, _EXCHANGE = 1, 2


def exchange_names(folder: int, one: str, other: str) -> bool:
    """Exchange two names in an open folder; False when this system cannot. Raises OSError, FileNotFoundError."""
    return _rename(folder, one, other, _EXCHANGE)


def rename_noreplace(folder: int, one: str, other: str) -> bool:
    """Rename where nothing is; False when this system cannot be sure. Raises FileExistsError, OSError."""
    return _rename(folder, one, other, _NOREPLACE)


def _rename(folder: int, one: str, other: str, flags: int) -> bool:
    if _renameat2 is None:
        return False
    if _renameat2(folder, os.fsencode(one), folder, os.fsencode(other), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False  # this file system has no such rename
    raise OSError(number, os.strerror(number), one, None, other)


def _load_renameat2() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function


_renameat2 = _load_renameat2()


TEMP_PREFIX = ".stentor-"
"""Of the names of temporary files, which no vault shows."""
_NO_FILE = {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR}
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def require_file_name(folder: int, name: str, path: str) -> str:
    """The name of a regular file as its folder spells it. Raises NoSuchNote."""
    spelled = find_name(folder, name)
    if spelled is None or not stat.S_ISREG(os.stat(spelled, dir_fd=folder, follow_symlinks=False).st_mode):
        raise NoSuchNote(f"The vault has no file {paths.display_path(path)}.")
    return spelled


def read_note(folder: int, name: str, path: str) -> Note:
    return Note(stat_file(folder, name, path), read_content(folder, name))


def read_content(folder: int, name: str) -> bytes:
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


def stat_file(folder: int, name: str, path: str) -> Stat:
    return to_stat(os.stat(name, dir_fd=folder, follow_symlinks=False), path)


def to_stat(info: os.stat_result, path: str) -> Stat:
    born = getattr(info, "st_birthtime", None)
    created = info.st_ctime_ns // 1000 if born is None else int(born * 1_000_000)
    return Stat(path, info.st_size, info.st_mtime_ns // 1000, created)


def create_temp_file(folder: int) -> tuple[str, int]:
    """A new empty file under a name that no vault shows, open for writing."""
    name = f"{TEMP_PREFIX}{secrets.token_hex(12)}"
    opened = os.open(name, _MAKE, 0o666, dir_fd=folder)
    os.fchmod(opened, file_modes.inherited_mode(folder, 0o666))
    return name, opened


def copy_mode(folder: int, name: str, opened: int) -> None:
    """Give an open file the mode of the one that it is to replace."""
    with contextlib.suppress(FileNotFoundError):
        os.fchmod(opened, stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode))


def write_all(opened: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(opened, left) :]


def replace_if_expected(folder: int, aside: str, name: str, path: str, expected: str) -> bytes | None:
    """The temporary file under the name, and what was there before. Raises NoteChanged and leaves it as it was."""
    while True:
        present = _read_if_exists(folder, name)
        if not matches_state(expected, present):
            raise NoteChanged(path, "" if present is None else model.content_hash(present))
        try:
            if present is None:
                if not rename_noreplace(folder, aside, name):
                    os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
                return None
            if not exchange_names(folder, aside, name):
                os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
                return present
        except (FileExistsError, FileNotFoundError):
            continue  # somebody was faster: look again
        before = read_content(folder, aside)
        if before == present or matches_state(expected, before):
            return before
        exchange_names(folder, aside, name)


def _read_if_exists(folder: int, name: str) -> bytes | None:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return read_content(folder, name)


def unlink_if_exists(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def find_unused_name(folder: int, name: str) -> str:
    """A name in the trash that nothing has: `a.md`, `a 2.md`, `a 3.md`."""
    stem, dot, suffix = name.rpartition(".")
    taken = set(os.listdir(folder))
    choices = (f"{stem} {n}{dot}{suffix}" if stem else f"{name} {n}" for n in range(2, 1_000_000))
    return name if name not in taken else next(choice for choice in choices if choice not in taken)
