"""Follows a vault: its folder by events of the system, and any by comparing all now and then, since events get lost."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

from stentor.core.errors import ServiceUnavailable
from stentor.domains.memory.index.indexer import Indexer
from stentor.domains.notes.folder_vault import watch_changes
from stentor.domains.notes.paths import is_hidden

RETRY_SECONDS = 1.0
POLL_SECONDS = 5.0
"""Between two looks whether the index is still the one that was compared."""
log = logging.getLogger(__name__)


class VaultWatcher:
    """`root` is None for a vault that is no folder here, `poll` for file systems of a network, which send no events.
    `every` are seconds between full comparisons.

    `on_change` is called with the paths of files and folders that changed.
    """

    def __init__(self, root: Path | None, indexer: Indexer, *, reconcile_seconds: float, poll: bool = False) -> None:
        self._root = root.absolute() if root else None
        self._indexer = indexer
        self._every = reconcile_seconds
        self._poll = poll
        self._told = False
        self.on_change: Callable[[set[str]], None] = lambda paths: None

    async def run(self) -> None:
        """For ever; a folder that is gone is waited for."""
        if self._root is None:
            await self._compare()
        else:
            await asyncio.gather(self._follow(self._root), self._compare())

    async def _follow(self, root: Path) -> None:
        while True:
            try:
                async for found in watch_changes(root, poll=self._poll):
                    await self._look(root, found)
            except (OSError, RuntimeError, ServiceUnavailable) as error:
                self._tell(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _look(self, root: Path, names: Iterable[str]) -> None:
        """A folder that came or went may send one event for all that is in it."""
        look = self._indexer.start_window()
        head = f"{root}{os.sep}"
        found = {
            path for name in names if (path := _path(head, name)) is not None and not self._indexer.is_excluded(path)
        }
        self.on_change(found)
        if not found:
            return
        files: list[str] = []
        others: list[str] = []
        for path, info in await asyncio.to_thread(_stats, head, found):
            if info is None or not stat.S_ISREG(info.st_mode):
                others.append(path)
            if info is None or self._unknown(path, info):
                files.append(path)
        await self._indexer.check_files(files, look)
        for path in sorted(others):
            await self._indexer.check_folder(path, look)

    def _unknown(self, path: str, info: os.stat_result) -> bool:
        """Whether a file is not as it was just indexed: most events are echoes of the service's own writes."""
        return not stat.S_ISDIR(info.st_mode) and not self._indexer.was_just_indexed(
            path, info.st_size, info.st_mtime_ns // 1000
        )

    async def _compare(self) -> None:
        while True:
            try:
                if found := await self._indexer.reconcile():
                    log.info("%d notes were not as indexed", found)
                self._told = False
                await self._rest()
            except (OSError, ServiceUnavailable) as error:
                self._tell(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Exception:
                # Fails open: a comparison that breaks must not end all later ones.
                log.exception("the vault could not be compared with the index")
                await asyncio.sleep(self._every)

    async def _rest(self) -> None:
        """Until the next comparison is due, or the index was made anew. Raises StoreUnavailable."""
        ends = time.monotonic() + self._every
        while (left := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(left, POLL_SECONDS))
            if not await self._indexer.was_reconciled():
                return

    def _tell(self, error: Exception) -> None:
        if not self._told:
            log.error("the vault cannot be followed: %s", error)
            self._told = True


def _stats(head: str, found: Iterable[str]) -> list[tuple[str, os.stat_result | None]]:
    """All in one call in a thread: each look at a file gives up the interpreter and waits for it again."""
    return [(path, _stat(head + path)) for path in found]


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)  # noqa: PTH116 - called for every event
    except OSError:
        return None


def _path(head: str, name: str) -> str | None:
    """The vault's path of a file, None for what is not the vault's. `head` is the vault's folder with its slash."""
    # By hand, because there are several events for every file written, and most name a temporary one.
    path = name[len(head) :].replace(os.sep, "/")
    if not path or not name.startswith(head) or any(is_hidden(part) for part in path.split("/")):
        return None
    return path if path.isascii() else unicodedata.normalize("NFC", path)
