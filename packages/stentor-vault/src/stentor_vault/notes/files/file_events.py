"""The file events of a vault's folder: from inotify on Linux, from `watchfiles` on other systems and for polling."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

import watchfiles

from stentor_vault.notes.files.inotify import FolderEvents

COLLECT_MS = 40
"""The time for which the events of a change are collected; for `watchfiles` also the interval between its polls."""
DEBOUNCE_MS = 100
"""The longest time that `watchfiles` collects the events of continuous changes."""
LOOK_MS = 2_000
"""After so long without events it is checked that the watched folder is still the one at its path."""


async def watch_changes(root: Path, *, poll: bool = False) -> AsyncIterator[set[str]]:
    """Yield sets of changed paths, each collected for a moment; empty ones from time to time.

    Ends if the folder is replaced: the system would continue to report events of the old folder. `poll` checks the
    files themselves instead of these events. Raises OSError, RuntimeError if the folder is missing or cannot be
    watched, or if events were lost; folders below it that may not be read are left out.
    """
    with os.scandir(root):
        pass  # only to raise the error: polling would ignore that the root may not be read either
    watched = _identify(root)
    is_inotify = sys.platform == "linux" and not (poll or _must_poll())
    changes = _receive_changes(root) if is_inotify else _poll_changes(root, poll=poll)
    async with aclosing(changes):
        async for names in changes:
            yield names
            if await asyncio.to_thread(_identify, root) != watched:
                return


def _must_poll() -> bool:
    """Return whether `watchfiles` would poll: if told to, and on WSL, where a change by Windows sends no event."""
    if forced := os.environ.get("WATCHFILES_FORCE_POLLING"):
        return forced.lower() not in {"false", "disable", "disabled"}
    return "microsoft-standard" in platform.release().lower()


async def _receive_changes(root: Path) -> AsyncGenerator[set[str], None]:
    # Without a thread: a caller that then reads the folder must not miss what changes in the meantime.
    events = FolderEvents(root)
    try:
        while True:
            if await _is_readable(events.descriptor):
                await asyncio.sleep(COLLECT_MS / 1000)
            # In a thread, because a new folder is searched for its subfolders.
            yield await asyncio.to_thread(events.read)
    finally:
        events.close()


async def _is_readable(descriptor: int) -> bool:
    """Wait until there are events; False if none came for a while."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(readable.wait(), LOOK_MS / 1000)
    finally:
        loop.remove_reader(descriptor)
    return readable.is_set()


async def _poll_changes(root: Path, *, poll: bool) -> AsyncGenerator[set[str], None]:
    events = watchfiles.awatch(
        root,
        step=COLLECT_MS,
        debounce=DEBOUNCE_MS,
        force_polling=poll or None,
        rust_timeout=LOOK_MS,
        yield_on_timeout=True,
        watch_filter=None,  # the default one hides folders that a vault may have
        ignore_permission_denied=True,
    )
    try:
        async with aclosing(events):
            async for changes in events:
                yield {path for _, path in changes}
    except ExceptionGroup as group:
        # It waits in a task group.
        raise group.exceptions[0] from None


def _identify(folder: Path) -> tuple[int, int]:
    """Return the device and inode of a folder. Raises OSError."""
    info = folder.stat()
    return info.st_dev, info.st_ino
