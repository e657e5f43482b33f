"""One owner per data folder: the process that serves holds a lock on it.

The operating system drops the lock when the process ends, however it ends; what the file says is for
people and for the CLI, which finds the running service through it.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from stentor.core.errors import StartRefused

LOCK_FILE = "stentor.lock"
ATTEMPTS = 5
PAUSE_SECONDS = 0.02


class Owner(msgspec.Struct):
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
        self.owner = Owner(pid=os.getpid(), since=since)
        if not self._acquire():
            os.close(self._fd)
            raise StartRefused(_who(folder))
        self._write()

    def _acquire(self) -> bool:
        """A reader of the owner holds the lock for a moment, so the first refusal is not the last word."""
        for _ in range(ATTEMPTS):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(PAUSE_SECONDS)
            else:
                return True
        return False

    def announce(self, **addresses: Any) -> None:
        """Tell where the service answers."""
        self.owner = msgspec.structs.replace(self.owner, **addresses)
        self._write()

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)

    def _write(self) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(self.owner), 0)


def read_owner(folder: Path) -> Owner | None:
    """The process that holds the folder now, or None."""
    path = folder / LOCK_FILE
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return msgspec.json.decode(file.read(), type=Owner)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return None


def _who(folder: Path) -> str:
    owner = read_owner(folder)
    holder = f"process {owner.pid}, since {owner.since}" if owner else "another process"
    return f"The data folder {folder} is in use by {holder}. Stop it first, or choose another --data-dir."
