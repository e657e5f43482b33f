"""Folders below a vault's root: opened one name at a time without following links, listed, and asked for a name.

A symbolic link in the vault is never followed, even if it appears between the check and the use. Which paths are
valid is decided in `paths`.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stentor_vault import file_modes
from stentor_vault.notes.model import NameTaken, NoSuchNote, VaultUnavailable
from stentor_vault.notes.paths import fold_path, is_hidden

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_root(path: Path) -> Iterator[int]:
    """Open the vault's root folder, which may be a symbolic link; yield the descriptor. Raises VaultUnavailable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        # Without the path, which agents must not learn: they read this message too.
        raise VaultUnavailable(
            f"The vault's folder cannot be opened: {error.strerror}. The operator has to check that it exists."
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_folder(top: int, parts: list[str], *, make: bool = False) -> Iterator[int]:
    """Open the folder below `top` and yield its descriptor; `make` creates missing folders. Raises NoSuchNote."""
    descriptor = os.dup(top)
    try:
        for part in parts:
            child = _open_child(descriptor, part, make=make)
            os.close(descriptor)
            descriptor = child
        yield descriptor
    finally:
        os.close(descriptor)


def find_name(parent: int, name: str) -> str | None:
    """Return the name as stored in the folder, composed or decomposed; None if there is no such entry.

    An entry whose name differs in letter case is another one, also where the disk takes it for the same.
    """
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        if name.isascii():
            return None
    else:
        if not _has_other_case(parent, name, info):
            return name
    names = os.listdir(parent)
    # macOS and some syncs store names decomposed.
    return name if name in names else next((n for n in names if unicodedata.normalize("NFC", n) == name), None)


def _has_other_case(parent: int, name: str, info: os.stat_result) -> bool:
    """Return whether the disk finds the same entry by the name in another case."""
    # ASCII only: other letters may change their number.
    other = "".join(char.swapcase() if char.isascii() else char for char in name)
    try:
        return other != name and os.path.samestat(info, os.stat(other, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False


def reject_case_collision(parent: int, name: str) -> None:
    """Raise NameTaken if the folder has a name that differs only in case or Unicode form."""
    for error in find_case_collisions(parent, [name]).values():
        raise error


def find_case_collisions(parent: int, names: Iterable[str]) -> dict[str, NameTaken]:
    """Return those of the names that collide with an entry of the folder, each with the error to raise."""
    name_by_folded = {fold_path(name): name for name in names}
    # A folder may have thousands of entries: among ASCII names, another length excludes a collision without folding.
    lengths = {len(name) for name in name_by_folded.values()}
    all_ascii = all(name.isascii() for name in name_by_folded.values())
    collisions: dict[str, NameTaken] = {}
    for entry in os.listdir(parent):
        if all_ascii and entry.isascii() and len(entry) not in lengths:
            continue
        name = name_by_folded.get(fold_path(entry))
        if name is not None and name != entry:
            collisions[name] = NameTaken(
                f"{name!r} and the existing {entry!r} are the same name on some systems. Use {entry!r}."
            )
    return collisions


def scan_folder(
    parent: int, on_hidden: Callable[[str], object] = lambda name: None
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files and folders of an open folder that belong to the vault: nothing hidden, no links or devices.

    `on_hidden` is called with the names of what is hidden.
    """
    with os.scandir(parent) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                on_hidden(entry.name)
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted since the scan
            if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
                yield entry.name, info


def _open_child(parent: int, part: str, *, make: bool) -> int:
    name = find_name(parent, part)
    if name is None:
        if not make:
            raise NoSuchNote(f"The vault has no folder {part!r} there.")
        reject_case_collision(parent, part)
        name = part
        try:
            os.mkdir(name, dir_fd=parent)
        except FileExistsError:
            pass  # another writer created it
        else:
            descriptor = _open_child_folder(parent, name, part)
            # Keep the setgid bit that mkdir inherited: files created in the folder go on belonging to its group.
            mode = os.fstat(descriptor).st_mode & stat.S_ISGID | file_modes.inherited_mode(parent, 0o777)
            os.fchmod(descriptor, mode)
            os.fsync(parent)
            return descriptor
    return _open_child_folder(parent, name, part)


def _open_child_folder(parent: int, name: str, part: str) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except OSError as error:
        # ENOENT: another program moved or deleted it since its name was found.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT):
            raise NoSuchNote(f"{part!r} is not a folder of the vault.") from None
        raise
