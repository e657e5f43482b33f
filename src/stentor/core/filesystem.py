"""Files of the service are for its user alone; files in a person's folders are as open as those folders are.

Small files that must be whole and must survive a power cut: written aside, flushed, put in place.

One owner per data folder: the process that serves holds a lock on it.

The operating system drops the lock when the process ends, however it ends; what the file says is for
people and for the CLI, which finds the running service through it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stentor.core.errors import StartRefused

GROUP_OTHER_BITS = 0o077
"""Bits of a mode that let others in."""
_GIVEN = os.umask(GROUP_OTHER_BITS)
os.umask(_GIVEN)  # the one way to read it, and only safe while no other thread makes files: at the import
log = logging.getLogger(__name__)


def set_private_umask() -> None:
    """From now on files and folders that this process and its children make are closed to other users."""
    os.umask(GROUP_OTHER_BITS)


def inherited_mode(folder: int, wanted: int) -> int:
    """The mode of something new in an open folder: as open as the folder is, within the umask that the process got.

    So a vault that others may read stays one, although the process makes its own files for itself alone.
    """
    return wanted & stat.S_IMODE(os.fstat(folder).st_mode) & ~_GIVEN


def find_open_paths(data_dir: Path) -> Iterator[tuple[Path, int]]:
    """What of a data folder is open to other users, with the mode that it should have.

    Root starts cages as another user, who has to pass the data folder and the folder of the cages, but not to list it.
    Notes that are there are left as they are: the folder over them is closed.
    """
    closed = 0o066 if os.geteuid() == 0 else GROUP_OTHER_BITS
    inside = [path for path in data_dir.iterdir() if not path.is_symlink()] if data_dir.is_dir() else []
    for path in [data_dir, *sorted(inside)]:
        mode = stat.S_IMODE(path.stat().st_mode)
        passable = path == data_dir or path.name == "cage"
        extra = mode & (closed if passable else GROUP_OTHER_BITS)
        if extra and (path.is_dir() or path.is_file()):
            yield path, mode & ~extra


def restrict_permissions(data_dir: Path) -> None:
    """Close what is open to other users. What cannot be closed is told, and `stentor doctor` says how to mend it."""
    for path, mode in find_open_paths(data_dir):
        try:
            path.chmod(mode)
        except OSError as error:
            log.warning("%s is open to other users and cannot be closed: %s", path, error.strerror)
        else:
            log.warning("%s was open to other users and is closed now", path)


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Put the text under this name, whole or not at all, and flush it and its folder. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


def fsync_path(path: Path) -> None:
    """Make a file durable, or the names in a folder: without it a rename may be undone by a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LOCK_FILE = "stentor.lock"
LOCK_ATTEMPTS = 5
LOCK_RETRY_SECONDS = 0.02


class LockHolder(msgspec.Struct):
    """Who holds the folder. Addresses are None until the service answers there."""

    pid: int
    since: str
    gateway: str | None = None
    mcp: str | None = None


class DataFolderLock:
    """Held from construction to `release`. Raises StartRefused, naming the holder."""

    def __init__(self, folder: Path, since: str) -> None:
        self._path = folder / LOCK_FILE
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        self.holder = LockHolder(pid=os.getpid(), since=since)
        if not self._acquire():
            os.close(self._fd)
            raise StartRefused(_who(folder))
        self._write()

    def _acquire(self) -> bool:
        """A reader of the owner holds the lock for a moment, so the first refusal is not the last word."""
        for _ in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_RETRY_SECONDS)
            else:
                return True
        return False

    def publish_addresses(self, **addresses: Any) -> None:
        """Tell where the service answers."""
        self.holder = msgspec.structs.replace(self.holder, **addresses)
        self._write()

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)

    def _write(self) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(self.holder), 0)


def read_lock_holder(folder: Path) -> LockHolder | None:
    """The process that holds the folder now, or None."""
    path = folder / LOCK_FILE
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return msgspec.json.decode(file.read(), type=LockHolder)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return None


def _who(folder: Path) -> str:
    owner = read_lock_holder(folder)
    holder = f"process {owner.pid}, since {owner.since}" if owner else "another process"
    return f"The data folder {folder} is in use by {holder}. Stop it first, or choose another --data-dir."
