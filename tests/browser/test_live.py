"""What only the script of a live page does."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Installation, Tab
from tests.requirements import requirement

pytestmark = pytest.mark.xdist_group("browser")
HEAR = 'document.addEventListener("stentor:change", () => { window.heard = (window.heard || 0) + 1; })'
PLACE = "(query) => { const at = document.querySelector(query).getBoundingClientRect(); return [at.x + 4, at.y + 4]; }"


def press(page: Page, query: str) -> None:
    """Put the pointer on an element and keep it down."""
    page.mouse.move(*page.evaluate(PLACE, query))
    page.mouse.down()


def hear(page: Page) -> None:
    page.wait_for_function("() => window.heard > 0")
    page.evaluate("window.heard = 0")


@requirement("dashboard.live-pressed")
def test_a_live_list_is_not_exchanged_under_a_pressed_pointer_but_right_after(
    tab: Tab, installation: Installation
) -> None:
    def submit() -> str:
        body = {"type": "write", "input": "x", "required_capabilities": ["review"]}
        wanted = {"agent_preference": installation.made.agents["archivist"]}
        return str(installation.seed.post("/tasks", body | wanted)["task_id"])

    first = submit()
    page = tab.open("/tasks").live().page
    expect(page.locator(f'a[title="{first}"]')).to_be_visible()
    page.evaluate(HEAR)
    press(page, "#results .count")
    second = submit()
    hear(page)
    expect(page.locator(f'a[title="{second}"]')).to_have_count(0)
    page.mouse.up()
    expect(page.locator(f'a[title="{second}"]')).to_be_visible()
    press(page, f'[data-row] a[title="{first}"]')
    submit()
    hear(page)
    page.mouse.up()
    page.wait_for_url(f"**/tasks/{first}")
