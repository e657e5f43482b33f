"""Pictures of every page, light and dark, 1280 and 390 pixels wide: `python -m tests.browser.screenshots FOLDER`.

Two of them stand in the README; these are written to docs/images.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser

from tests.browser.chromium import browser
from tests.browser.conftest import SIZES, Tab
from tests.browser.pages import pages
from tests.browser.seed import Seed, Seeded
from tests.conftest import KEYS, Service, serving

IN_README = {"overview-light-wide": "overview.png", "task-dark-wide": "task.png"}
IMAGES = Path("docs/images")
SETTLED = 900
"""Milliseconds until charts are drawn."""


def main(folder: Path) -> None:
    path = shutil.which("chromium")
    if path is None:
        sys.exit("chromium is not installed; on Debian: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, serving(Path(data)) as start, browser(path) as opened:
        service = start(SERVICE_EMBEDDING_MODEL="none")
        made = _seeded(service)
        for scheme in ("light", "dark"):
            for size in SIZES:
                _take(opened, service, made, folder, scheme, size)
    IMAGES.mkdir(exist_ok=True)
    for name, kept in IN_README.items():
        shutil.copyfile(folder / f"{name}.png", IMAGES / kept)


def _seeded(service: Service) -> Seeded:
    keys = (KEYS["ADMIN"].split(":")[0], KEYS["SECOND"].split(":")[0])
    clients = [httpx.Client(base_url=service.address, headers={"X-API-Key": key}, timeout=30) for key in keys]
    try:
        return Seed(*clients).all(tasks=120)
    finally:
        for client in clients:
            client.close()


def _take(opened: Browser, service: Service, made: Seeded, folder: Path, scheme: Any, size: str) -> None:
    context = opened.new_context(viewport=SIZES[size], color_scheme=scheme)  # type: ignore[arg-type]
    tab = Tab(context.new_page(), service.ready["dashboard"]).sign_in()
    for name, path, _ in pages(made):
        tab.open(path).live()
        tab.page.wait_for_timeout(SETTLED)
        tab.page.screenshot(path=folder / f"{name}-{scheme}-{size}.png")
        print(f"{name}-{scheme}-{size}")  # noqa: T201 - what takes minutes tells how far it is
    context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots"))
