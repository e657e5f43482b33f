"""A browser for the tests: Debian's Chromium, driven by Playwright, that asks nobody on the network for anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

QUIET = (
    "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --disable-default-apps --disable-dev-shm-usage"
).split()


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Without its own sandbox for root, which it refuses to be run by."""
    words = [*QUIET, "--no-sandbox"] if os.geteuid() == 0 else QUIET
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=words)
        try:
            yield opened
        finally:
            opened.close()
