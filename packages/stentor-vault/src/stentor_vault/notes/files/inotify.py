"""File events of a folder and its subfolders from Linux's inotify.

The package `watchfiles` is not used: it follows symbolic links (a folder has only one watch, so its events would have
the path of a link to it), stops at a name that is not UTF-8, and does not report that the system dropped events.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x4000, 0x8000
_ONLYDIR, _DONT_FOLLOW, _ISDIR = 0x1000000, 0x2000000, 0x40000000
_CHANGES = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 20
"""About the size of the system's queue. Reading more would not end while files change continuously."""
_NO_FOLDER_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENAMETOOLONG}


class FolderEvents:
    """Collects the changes of a folder from now on; hidden folders, and those that may not be read, are left out.

    Raises OSError if the folder is missing, or the system has no more watches (`fs.inotify.max_user_watches`).
    """

    def __init__(self, root: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._lock = threading.Lock()
        self._folders: dict[int, bytes] = {}
        """Watched folders by the number of their watch."""
        self._watches: dict[bytes, dict[bytes, int]] = {}
        """Watches by folder and name of the subfolder."""
        self.descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise _last_error(root)
        path = os.fsencode(root)
        try:
            # The root may be a link, and without permission for it there is nothing to watch.
            self._keep(self._watch(path, _CHANGES | _ONLYDIR), path)
            for folder in _list_subfolders(path):
                self._add(folder)
        except BaseException:
            self.close()
            raise

    def read(self) -> set[str]:
        """Return the paths that have changed, without hidden names. Raises OSError if events were lost."""
        with self._lock:
            return {os.fsdecode(path) for path in self._read_paths()}

    def close(self) -> None:
        # A cancelled caller's thread may still read: the number of a closed descriptor could be another file's.
        with self._lock:
            if self.descriptor >= 0:
                os.close(self.descriptor)
                self.descriptor = -1

    def _read_paths(self) -> Iterator[bytes]:
        for watch, mask, name in self._read_events():
            if mask & _OVERFLOW:
                raise OSError(errno.EOVERFLOW, "The system dropped file events: fs.inotify.max_queued_events")
            if mask & _IGNORED:
                self._drop(watch)
            folder = self._folders.get(watch)
            if folder is None or not name or name.startswith(b"."):
                continue
            path = folder + b"/" + name
            if mask & _ISDIR:
                self._follow(mask, path)
            yield path

    def _read_events(self) -> Iterator[tuple[int, int, bytes]]:
        if self.descriptor < 0:
            return
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        start = 0
        while start < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, start)
            start += _EVENT.size + length
            yield watch, mask, data[start - length : start].rstrip(b"\0")

    def _follow(self, mask: int, path: bytes) -> None:
        """Watch the folder that is now at this path, which may not be the one that the event is about."""
        if mask & (_MOVED_FROM | _MOVED_TO | _DELETE):
            self._forget(path)
        # A new folder may already have been found together with its parent.
        if not mask & _CREATE or self._find(path) is None:
            self._add(path)

    def _add(self, folder: bytes) -> None:
        """Watch a folder with its subfolders."""
        folders = [folder]
        while folders:
            path = folders.pop()
            try:
                self._keep(self._watch(path, _CHANGES | _ONLYDIR | _DONT_FOLLOW), path)
                # Only after the folder is watched: files created from then on have events.
                folders += _list_subfolders(path)
            except OSError as error:
                # Deleted or replaced since, or no permission.
                if error.errno not in _NO_FOLDER_ERRNOS:
                    raise

    def _watch(self, path: bytes, mask: int) -> int:
        watch = int(self._libc.inotify_add_watch(self.descriptor, path, mask))
        if watch < 0:
            raise _last_error(path)
        return watch

    def _keep(self, watch: int, path: bytes) -> None:
        # A folder has one watch, even after it was moved.
        self._drop(watch)
        self._folders[watch] = path
        parent, _, name = path.rpartition(b"/")
        self._watches.setdefault(parent, {})[name] = watch

    def _find(self, path: bytes) -> int | None:
        parent, _, name = path.rpartition(b"/")
        return self._watches.get(parent, {}).get(name)

    def _forget(self, path: bytes) -> None:
        """Remove the watches of a folder that was moved or deleted. Another event reports its new path."""
        paths = [path]
        while paths:
            path = paths.pop()
            paths += [path + b"/" + name for name in self._watches.get(path, ())]
            if (watch := self._find(path)) is not None:
                self._libc.inotify_rm_watch(self.descriptor, watch)
                self._drop(watch)

    def _drop(self, watch: int) -> None:
        if (path := self._folders.pop(watch, None)) is None:
            return
        parent, _, name = path.rpartition(b"/")
        siblings = self._watches.get(parent, {})
        if siblings.get(name) == watch:
            del siblings[name]
            if not siblings:
                del self._watches[parent]


def _list_subfolders(folder: bytes) -> list[bytes]:
    with os.scandir(folder) as entries:
        return [
            folder + b"/" + entry.name
            for entry in entries
            if not entry.name.startswith(b".") and entry.is_dir(follow_symlinks=False)
        ]


def _last_error(path: bytes | Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), os.fsdecode(path))
