"""Many notes of one folder written at once, for a projection that can be made again.

Each is whole under its name or not there, but nothing is flushed to the disk, and what stood there is not kept.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from stentor.core import filesystem
from stentor.domains.notes import beneath, files, paths
from stentor.domains.notes.model import NoSuchNote

_MAKE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OURS = {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST}
log = logging.getLogger(__name__)


def write(root: Path, folder: str, notes: Iterable[tuple[str, bytes]], *, aside: str, compare: bool = False) -> int:
    """Write names with their bytes into a folder, which is made; answers how many were not as they should be.

    `aside` is the temporary name, one for each writer. `compare` leaves alone what has the bytes already.
    Raises VaultUnavailable, NameTaken, NoSuchNote when a file stands where a folder should.
    """
    parts = paths.segments(folder)
    with (
        beneath.faults(f"{folder!r} cannot be written"),
        beneath.root(root) as top,
        beneath.folder(top, parts, make=True) as opened,
    ):
        return sum(_put(opened, name, content, aside, compare=compare) for name, content in notes)


def differing(root: Path, folder: str, notes: Iterable[tuple[str, bytes]]) -> list[tuple[str, bool]]:
    """The names whose files do not have these bytes, each with whether there is a file."""
    parts = paths.segments(folder)
    wanted = list(notes)
    with beneath.faults(f"{folder!r} cannot be read"), beneath.root(root) as top:
        try:
            with beneath.folder(top, parts) as opened:
                present = [(name, content, _present(opened, name)) for name, content in wanted]
        except NoSuchNote:
            return [(name, False) for name, _ in wanted]
    return [(name, there is not None) for name, content, there in present if there != content]


def _put(folder: int, name: str, content: bytes, aside: str, *, compare: bool) -> bool:
    if compare and _present(folder, name) == content:
        return False
    opened = os.open(aside, _MAKE, 0o666, dir_fd=folder)
    try:
        os.fchmod(opened, filesystem.inherited_mode(folder, 0o666))
        files.write_all(opened, content)
    finally:
        os.close(opened)
    try:
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        files.remove(folder, aside)
        log.error("the note %s cannot be written, because a folder has its name", name)
    return True


def _present(folder: int, name: str) -> bytes | None:
    try:
        return files.content(folder, name)
    except NoSuchNote:
        return None
