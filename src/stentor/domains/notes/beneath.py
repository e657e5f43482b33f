"""Folders opened one name at a time beneath a root, without following a link anywhere.

So a link that somebody puts into the vault, even between the check and the use, leads nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stentor.core import filesystem
from stentor.domains.notes.model import NameTaken, NoSuchNote, VaultUnavailable
from stentor.domains.notes.paths import folded, hidden

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM}


@contextmanager
def root(path: Path) -> Iterator[int]:
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
def folder(top: int, parts: list[str], *, make: bool = False) -> Iterator[int]:
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
    name = spelled(above, part)
    if name is None:
        if not make:
            raise NoSuchNote(f"The vault has no folder {part!r} there.")
        refuse_twin(above, part)
        name = part
        try:
            os.mkdir(name, dir_fd=above)
        except FileExistsError:
            pass
        else:
            opened = _opened(above, name, part)
            # Added to what it has: a folder that gives its group to what is made in it goes on doing so.
            os.fchmod(opened, os.fstat(opened).st_mode & stat.S_ISGID | filesystem.inherited_mode(above, 0o777))
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


def spelled(above: int, name: str) -> str | None:
    """The name as the folder spells it: composed or decomposed letters are the same. None when it has none."""
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        if name.isascii():
            return None
        return next((n for n in os.listdir(above) if unicodedata.normalize("NFC", n) == name), None)
    return name


def refuse_twin(above: int, name: str) -> None:
    """Raises NameTaken when the folder has the name in other letters."""
    for taken in twins(above, [name]).values():
        raise taken


def twins(above: int, names: Iterable[str]) -> dict[str, NameTaken]:
    """Those of the names that the folder has in other letters, with what to say of each."""
    wanted = {folded(name): name for name in names}
    # A folder may have thousands: names of plain letters and other lengths are out without a closer look.
    lengths = {len(name) for name in wanted.values()}
    plain = all(name.isascii() for name in wanted.values())
    found: dict[str, NameTaken] = {}
    for known in os.listdir(above):
        if plain and known.isascii() and len(known) not in lengths:
            continue
        name = wanted.get(folded(known))
        if name is not None and name != known:
            found[name] = NameTaken(
                f"{name!r} and {known!r} are the same name on some systems; use the one that is there."
            )
    return found


def entries(above: int) -> Iterator[tuple[str, os.stat_result]]:
    """The vault's files and folders in an open folder: nothing hidden, no link, no device."""
    with os.scandir(above) as found:
        for entry in found:
            if hidden(entry.name) or not _text(entry.name):
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
def faults(what: str) -> Iterator[None]:
    """Failures of the file system as VaultUnavailable, with the reason and what it was about."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise VaultUnavailable(f"{what}: {error.strerror}.") from error
        raise
