"""Live pages in a real browser: what only the script of the pages does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.requirements import requirement
from tests.surfaces.dashboard.test_service import QUIET, Start, until
from tests.system import need

playwright = pytest.importorskip("playwright.sync_api")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
HEAR = 'document.addEventListener("stentor:change", () => { window.heard = (window.heard || 0) + 1; })'
PLACE = "(query) => { const at = document.querySelector(query).getBoundingClientRect(); return [at.x + 4, at.y + 4]; }"


@pytest.fixture
def browser() -> Iterator[Any]:
    found = need("chromium")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=found, args=FLAGS)
        yield made
        made.close()


def press(page: Any, query: str) -> None:
    """Put the pointer on an element and keep it down."""
    page.mouse.move(*page.evaluate(PLACE, query))
    page.mouse.down()


@requirement("dashboard.live-pressed")
@pytest.mark.fault
def test_a_live_list_is_not_exchanged_under_a_pressed_pointer_but_right_after(serve: Start, browser: Any) -> None:
    service = serve(**QUIET)
    dashboard = service.ready["dashboard"]
    body = {"type": "summarize", "input": "It is late.", "required_capabilities": ["summarize"]}
    with service.client() as gateway:

        def submit() -> str:
            """The id of a task that is over."""
            task_id = str(gateway.post("/api/v1/tasks", json=body).json()["task_id"])
            until(lambda: gateway.get(f"/api/v1/tasks/{task_id}").json()["status"] == "completed")
            return task_id

        first = submit()
        page = browser.new_page()
        page.goto(f"{dashboard}/sign-in?next=/tasks")
        page.fill("input[name=key]", service.key)
        page.press("input[name=key]", "Enter")
        page.wait_for_url("**/tasks")
        until(lambda: page.text_content("#live") == "live")
        page.evaluate(HEAR)
        press(page, "#results .count")
        second = submit()
        until(lambda: page.evaluate("window.heard") is not None)
        assert second not in page.content()
        page.mouse.up()
        until(lambda: second in page.content())
        page.evaluate("window.heard = undefined")
        press(page, f'[data-row] a[title="{first}"]')
        submit()
        until(lambda: page.evaluate("window.heard") is not None)
        with page.expect_navigation():
            page.mouse.up()
        assert page.url.endswith(f"/tasks/{first}")
