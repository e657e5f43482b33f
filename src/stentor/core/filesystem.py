"""File permissions, atomic writes, and the lock of the data folder.

The service's own files are for its user only; files in a user's folders, such as a vault, are as open as the folder.
One process holds the lock of a data folder. The operating system releases it when the process ends, however it ends;
the content of the lock file is for people and for the CLI, which finds the running service through it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from stentor.core.errors import StartRefused
from stentor_vault import file_modes

GROUP_OTHER_BITS = 0o077
"""The permission bits of group and others."""
GROUP_OTHER_WRITE_BITS = 0o022
LOCK_FILE = "stentor.lock"
OWN_ENTRIES = frozenset({"keys", "vault", "index", "archive", "cage", "clock.json", "clock.new", LOCK_FILE})
"""What the service makes in a data folder, beside the files of the database."""
LOCK_ATTEMPTS = 5
LOCK_RETRY_SECONDS = 0.02
log = logging.getLogger(__name__)


def set_private_umask() -> None:
    """Make new files and folders of this process and its children private; those in a vault are as open as it."""
    # `file_modes` has read the umask of the start when it was imported; after this it could not.
    os.umask(file_modes.STARTUP_UMASK | GROUP_OTHER_BITS)


def find_open_paths(data_dir: Path) -> Iterator[tuple[Path, int]]:
    """Yield paths of the service that are open to other users, each with the mode that it should have.

    A folder that has other content too, such as a home folder, can be read as before, and that content keeps its mode:
    other users may need it.
    As root the service starts sandboxes as another user, who must be able to enter the data folder and the folder of
    the sandboxes, but not to list them. Notes below are not checked, because their folder is closed.
    """
    entered = 0o066 if os.geteuid() == 0 else GROUP_OTHER_BITS
    children = sorted(data_dir.iterdir()) if data_dir.is_dir() else []
    own = [path for path in children if path.name in OWN_ENTRIES or path.name.startswith(("stentor.db", ".stentor.db"))]
    is_shared = any(path not in own and path.name != "lost+found" for path in children)
    for path in [data_dir, *(path for path in own if not path.is_symlink())]:
        mode = stat.S_IMODE(path.stat().st_mode)
        if path == data_dir and is_shared:
            # Whoever may rename the keys can put others in their place; in a sticky folder only their owner may.
            forbidden = 0 if mode & stat.S_ISVTX else GROUP_OTHER_WRITE_BITS
        else:
            forbidden = entered if path == data_dir or path.name == "cage" else GROUP_OTHER_BITS
        extra = mode & forbidden
        if extra and (path.is_dir() or path.is_file()):
            yield path, mode & ~extra


def restrict_permissions(data_dir: Path) -> None:
    """Remove other users' access to the service's own data; logs what was changed and what could not be.

    `stentor doctor` explains how to repair the rest.
    """
    for path, mode in find_open_paths(data_dir):
        try:
            path.chmod(mode)
        except OSError as error:
            log.warning("filesystem: cannot restrict permissions path=%s error=%s", path, error.strerror)
        else:
            log.warning("filesystem: restricted permissions path=%s", path)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically and durably: even after a power cut it has the old or the new text. Raises OSError."""
    with _synced_copy(path, text) as temporary:
        temporary.replace(path)
    fsync_path(path.parent)


def create_once(path: Path, text: str, mode: int = 0o600) -> None:
    """Create a file with a line of text, such as a key, unless there is one. Raises OSError.

    Another process sees either no file or a complete one, and of two that create it one wins: its file stays.
    """
    # A link, not a rename, which would replace the file of another process that was first.
    with _synced_copy(path, f"{text}\n", mode) as temporary, suppress(FileExistsError):
        os.link(temporary, path)


@contextmanager
def _synced_copy(path: Path, text: str, mode: int = 0o600) -> Iterator[Path]:
    """Write the text to a new file beside `path`, which is deleted in the end unless it was renamed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if mode & GROUP_OTHER_BITS:
                os.fchmod(file.fileno(), mode)  # other users must be able to read a public key, whatever the umask is
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def fsync_path(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk; without it a power cut may undo a rename."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LockHolder(msgspec.Struct):
    """The process that holds the lock. The addresses are None until the service listens on them.

    `certificate` is the one that it serves over TLS, in PEM, for the clients of `core.security.pinning`.
    """

    pid: int
    since: str
    gateway: str | None = None
    mcp: str | None = None
    certificate: str | None = None


class DataFolderLock:
    """The lock of a data folder, held from construction to `release`.

    The constructor raises StartRefused, which names the holder, if another process has the lock.
    """

    def __init__(self, folder: Path, since: str) -> None:
        self._path = folder / LOCK_FILE
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        self.holder = LockHolder(pid=os.getpid(), since=since)
        if not self._acquire():
            os.close(self._fd)
            raise StartRefused(in_use_message(folder))
        self._write_holder()

    def _acquire(self) -> bool:
        # Retries, because `read_lock_holder` of another process takes the lock for a moment.
        for _ in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_RETRY_SECONDS)
            else:
                return True
        return False

    def publish(self, **fields: Any) -> None:
        """Write how the service is reached into the lock file."""
        self.holder = msgspec.structs.replace(self.holder, **fields)
        self._write_holder()

    def release(self) -> None:
        """Empty the lock file and release the lock."""
        # Emptied before the lock is released: after it, the content may already be the next holder's.
        os.ftruncate(self._fd, 0)
        os.close(self._fd)

    def _write_holder(self) -> None:
        # Not by a rename, as in `write_atomically`: the lock is on this file and not on its name.
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(self.holder), 0)


def read_lock_holder(folder: Path) -> LockHolder | None:
    """Return the process that holds the lock of the folder, or None."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            for _ in range(LOCK_ATTEMPTS):
                # The content proves nothing: it may be of a process that was killed. Only a held lock means a holder.
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.seek(0)
                else:
                    return None
                try:
                    return msgspec.json.decode(file.read(), type=LockHolder)
                except msgspec.DecodeError:
                    # The holder is just writing it. A client that concluded that there is no holder would trust any
                    # server.
                    time.sleep(LOCK_RETRY_SECONDS)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return None


def in_use_message(folder: Path) -> str:
    """Say which process holds the lock of the folder, and what to do."""
    owner = read_lock_holder(folder)
    holder = f"process {owner.pid}, since {owner.since}" if owner else "another process"
    return f"The data folder {folder} is in use by {holder}. Stop it first, or choose another --data-dir."
