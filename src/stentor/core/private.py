"""Files of the service are for its user alone; files in a person's folders are as open as those folders are."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

OTHERS = 0o077
"""Bits of a mode that let others in."""
_GIVEN = os.umask(OTHERS)
os.umask(_GIVEN)  # the one way to read it, and only safe while no other thread makes files: at the import
log = logging.getLogger(__name__)


def only_for_owner() -> None:
    """From now on files and folders that this process and its children make are closed to other users."""
    os.umask(OTHERS)


def mode_within(folder: int, wanted: int) -> int:
    """The mode of something new in an open folder: as open as the folder is, within the umask that the process got.

    So a vault that others may read stays one, although the process makes its own files for itself alone.
    """
    return wanted & stat.S_IMODE(os.fstat(folder).st_mode) & ~_GIVEN


def open_places(data_dir: Path) -> Iterator[tuple[Path, int]]:
    """What of a data folder is open to other users, with the mode that it should have.

    Root starts cages as another user, who has to pass the data folder and the folder of the cages, but not to list it.
    Notes that are there are left as they are: the folder over them is closed.
    """
    closed = 0o066 if os.geteuid() == 0 else OTHERS
    inside = [path for path in data_dir.iterdir() if not path.is_symlink()] if data_dir.is_dir() else []
    for path in [data_dir, *sorted(inside)]:
        mode = stat.S_IMODE(path.stat().st_mode)
        passable = path == data_dir or path.name == "cage"
        extra = mode & (closed if passable else OTHERS)
        if extra and (path.is_dir() or path.is_file()):
            yield path, mode & ~extra


def tighten(data_dir: Path) -> None:
    """Close what is open to other users. What cannot be closed is told, and `stentor doctor` says how to mend it."""
    for path, mode in open_places(data_dir):
        try:
            path.chmod(mode)
        except OSError as error:
            log.warning("%s is open to other users and cannot be closed: %s", path, error.strerror)
        else:
            log.warning("%s was open to other users and is closed now", path)
