"""Pictures of every page, light and dark, 1280 and 390 pixels wide: `python -m tests.browser.screenshots FOLDER`.

A picture has its whole page. Two stand in the README and the docs, without the end of their page; these are written to
docs/images.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, FloatRect

from stentor.core.clock import SECOND
from tests.browser.chromium import browser
from tests.browser.conftest import SIZES, Tab
from tests.browser.pages import pages
from tests.browser.seed import Seed, Seeded
from tests.conftest import KEYS, Service, serving

IN_README = {"overview-light-wide": ("overview.png", 860), "task-dark-wide": ("task.png", 1110)}
"""File and height in pixels: of a task as much as shows what its agent may do."""
IMAGES = Path("docs/images")
MINUTE = 60 * SECOND
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
        _spread(service.data_dir / "stentor.db", {made.done, made.failed, made.talking})
        for scheme in ("light", "dark"):
            for size in SIZES:
                _take(opened, service, made, folder, scheme, size)
    IMAGES.mkdir(exist_ok=True)
    for name, (kept, _) in IN_README.items():
        shutil.copyfile(folder / f"{name}.png", IMAGES / kept)


def _seeded(service: Service) -> Seeded:
    keys = (KEYS["ADMIN"].split(":")[0], KEYS["SECOND"].split(":")[0])
    clients = [httpx.Client(base_url=service.address, headers={"X-API-Key": key}, timeout=30) for key in keys]
    try:
        seed = Seed(*clients)
        made = seed.all(tasks=120)
        seed.post(f"/tasks/{made.done}/grade", {"grade": 0.9})  # the last of the first steps, which then disappear
        return made
    finally:
        for client in clients:
            client.close()


def _spread(database: Path, kept: set[str]) -> None:
    """Give the hour before a history: what the seed did in a second, over its minutes; and calls of models.

    Tasks in `kept` have pages of their own, whose times must match their events.
    """
    chance = random.Random(3)
    with sqlite3.connect(database, timeout=10) as store:
        for task_id, created, agent_id in store.execute(
            "select task_id, created_at, assigned_agent from tasks where completion_time is not null"
        ).fetchall():
            if task_id in kept:
                continue
            moved = created - int(chance.triangular(0, 58, 12) * MINUTE)
            took = int(chance.lognormvariate(0.2, 0.9) * SECOND)
            started = moved + MINUTE // 600
            store.execute(
                """update tasks set created_at = ?, start_time = ?, first_started_at = ?, completion_time = ?
                where task_id = ?""",
                (moved, started, started, started + took, task_id),
            )
            cost = int(chance.lognormvariate(0, 0.6) * 4_000_000)
            outcome = "PROVIDER_TIMEOUT" if cost % 11 == 0 else "ok"
            about = (task_id, "admin", agent_id, task_id, "chat", "openai", "gpt-5-mini", outcome)
            row = (*about, 900, 240, cost, took // 1000, moved + took)
            store.execute(
                """insert into llm_calls (call_id, tenant, key_name, agent_id, task_id, operation, provider, model,
                outcome, input_tokens, output_tokens, estimated, cost, latency_ms, happened_at)
                values (?, 'default', ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)""",
                row,
            )
            for kind, subject in (("key", "admin"), ("agent", agent_id), ("team", "support")):
                store.execute(
                    """insert into llm_spent (tenant, kind, subject, day, tokens, cost)
                    values ('default', ?, ?, ?, 1140, ?)
                    on conflict do update set tokens = tokens + 1140, cost = cost + excluded.cost""",
                    (kind, subject, moved // (24 * 60 * MINUTE), cost),
                )


def _take(opened: Browser, service: Service, made: Seeded, folder: Path, scheme: Any, size: str) -> None:
    context = opened.new_context(viewport=SIZES[size], color_scheme=scheme)
    tab = Tab(context.new_page(), service.ready["dashboard"]).sign_in()
    for name, path, _ in pages(made):
        tab.open(path).live()
        tab.page.wait_for_timeout(SETTLED)
        picture = f"{name}-{scheme}-{size}"
        _, height = IN_README.get(picture, ("", None))
        clip = FloatRect(x=0, y=0, width=SIZES[size]["width"], height=height) if height else None
        tab.page.screenshot(path=folder / f"{picture}.png", full_page=True, clip=clip)
        print(picture)  # noqa: T201 - what takes minutes tells how far it is
    context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots"))
