"""Keeps an index up to date while the service runs: by file events, and by periodic reconciliation.

Reconciliation is needed even with events, because systems drop some, and vaults that are not folders send none. What to
index is decided by `indexer`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from stentor.core.errors import ServiceUnavailable
from stentor.domains.memory.index.indexer import Indexer
from stentor_vault.notes.files.file_events import watch_changes
from stentor_vault.notes.paths import compose_path, fold_path, is_valid_path

RETRY_SECONDS = 1.0
NANOSECONDS = 1_000_000_000
POLL_SECONDS = 5.0
"""Interval of the checks whether another process has rebuilt a shared index."""
log = logging.getLogger(__name__)


class VaultWatcher:
    """Watches one vault.

    `root` is None for a vault that is not a local folder. `poll` is for network file systems, which send no events.
    `on_change` is called with the paths of changed files and folders.
    """

    def __init__(self, root: Path | None, indexer: Indexer, *, reconcile_seconds: float, poll: bool = False) -> None:
        self._root = root.absolute() if root else None
        self._indexer = indexer
        self._reconcile_seconds = reconcile_seconds
        self._poll = poll
        self._is_failing = False
        self._reconcile_now = asyncio.Event()
        self.on_change: Callable[[set[str]], None] = lambda paths: None

    async def run(self) -> None:
        """Watch until cancelled; wait for a folder that does not exist."""
        if self._root is None:
            await self._reconcile_forever()
        else:
            await asyncio.gather(self._watch_events(self._root), self._reconcile_forever())

    async def _watch_events(self, root: Path) -> None:
        """Watch; start again after a failure, and when the folder was replaced by another one."""
        is_again = False
        while True:
            try:
                async for names in watch_changes(root, poll=self._poll):
                    if is_again:
                        # Changes before this watch began have no event.
                        self._reconcile_now.set()
                        is_again = False
                    if names:
                        await self._check_changes(root, names)
            except (OSError, RuntimeError, ServiceUnavailable) as error:
                self._report(error)
            except Exception:
                # Fails open: one change that cannot be checked must not end the watching of all later ones.
                log.exception("watcher: check failed")
            is_again = True
            await asyncio.sleep(RETRY_SECONDS)

    async def _check_changes(self, root: Path, names: Iterable[str]) -> None:
        # First, because the lag of a change counts from the moment when its event arrived.
        window = self._indexer.start_window()
        prefix = f"{root}{os.sep}"
        paths = {
            path
            for name in names
            if (path := _vault_path(prefix, name)) is not None
            # In this order, because most events are of the notes of tasks, which are excluded.
            and not self._indexer.is_excluded(path)
            and is_valid_path(path)
        }
        self.on_change(paths)
        if not paths:
            return
        # If a name changed only in letter case, some disks find the file under the old name too.
        spellings = Counter(map(fold_path, paths))
        files: list[str] = []
        others: list[str] = []
        for path, info in await asyncio.to_thread(_stat_all, prefix, paths):
            # A created, moved or deleted folder may send a single event for all files in it. A deleted path may have
            # been a file or a folder, so it is checked as both.
            if info is None or not stat.S_ISREG(info.st_mode):
                others.append(path)
            if info is None or spellings[fold_path(path)] > 1 or self._needs_check(path, info):
                files.append(path)
        await self._indexer.check_files(files, window)
        for path in sorted(others):
            await self._indexer.check_folder(path, window)

    def _needs_check(self, path: str, info: os.stat_result) -> bool:
        """Return whether a file may differ from what was just indexed: most events echo the service's own writes."""
        if stat.S_ISDIR(info.st_mode):
            return False
        # Programs that sync keep times in whole seconds: two edits of a second may have the same time and size.
        is_rounded = info.st_mtime_ns % NANOSECONDS == 0
        return is_rounded or not self._indexer.was_just_indexed(path, info.st_size, info.st_mtime_ns // 1000)

    async def _reconcile_forever(self) -> None:
        while True:
            try:
                self._reconcile_now.clear()
                if count := await self._indexer.reconcile():
                    log.info("reconcile: notes updated count=%d", count)
                self._is_failing = False
                await self._wait_until_due()
            except (OSError, ServiceUnavailable) as error:
                self._report(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Exception:
                # Fails open: one reconciliation that fails must not end all later ones.
                log.exception("reconcile: failed")
                await asyncio.sleep(self._reconcile_seconds)

    async def _wait_until_due(self) -> None:
        """Wait for the next interval, or until the index was rebuilt or a new watch begins. Raises StoreUnavailable."""
        ends_at = time.monotonic() + self._reconcile_seconds
        while (left := ends_at - time.monotonic()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reconcile_now.wait(), min(left, POLL_SECONDS))
            if self._reconcile_now.is_set() or not await self._indexer.was_reconciled():
                return

    def _report(self, error: Exception) -> None:
        """Log the first error only, until a reconciliation succeeds: the retries would repeat it each second."""
        if not self._is_failing:
            log.error("watcher: watch failed error=%s", error)
            self._is_failing = True


def _stat_all(prefix: str, paths: Iterable[str]) -> list[tuple[str, os.stat_result | None]]:
    """Stat all files in one thread call: one call per file would switch threads for each."""
    return [(path, _stat(prefix + path)) for path in paths]


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)  # noqa: PTH116 - called for every event
    except OSError:
        return None


def _vault_path(prefix: str, name: str) -> str | None:
    """Return the path of a file below the root, which a vault need not accept; None for a hidden one or one outside.

    `prefix` is the root with its slash.
    """
    # Without pathlib, because every write sends several events, most of them for a hidden temporary file.
    path = name[len(prefix) :].replace(os.sep, "/")
    if not path or not name.startswith(prefix) or "/." in f"/{path}":
        return None
    return compose_path(path)
