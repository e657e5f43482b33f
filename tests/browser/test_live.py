"""What only the script of a live page does."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Installation, Tab
from tests.requirements import requirement

pytestmark = [pytest.mark.slow, pytest.mark.together("browser")]
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
    expect(page.locator(f'a[href="/tasks/{first}"]')).to_be_visible()
    page.evaluate(HEAR)
    press(page, "#results .count")
    second = submit()
    hear(page)
    expect(page.locator(f'a[href="/tasks/{second}"]')).to_have_count(0)
    page.mouse.up()
    expect(page.locator(f'a[href="/tasks/{second}"]')).to_be_visible()
    press(page, f'[data-row] a[href="/tasks/{first}"]')
    submit()
    hear(page)
    page.mouse.up()
    page.wait_for_url(f"**/tasks/{first}")


@requirement("dashboard.live")
def test_what_happens_while_a_page_loads_is_on_it_soon(tab: Tab, installation: Installation) -> None:
    page = tab.page
    waiting: list[Route] = []
    page.route(re.compile("/live"), lambda route: waiting.append(route))
    tab.open("/agents")
    expect(page.locator("#live")).to_have_text("connecting")
    while not waiting:
        page.wait_for_timeout(20)
    installation.seed.post("/registry/agents", {"name": "latecomer", "capabilities": ["knock"], "trust_tier": "auto"})
    page.wait_for_timeout(1_500)  # nobody reads: the service no longer looks for what is new
    waiting[0].continue_()
    expect(page.get_by_role("link", name="latecomer")).to_be_visible()


@requirement("dashboard.page-overview")
def test_the_legend_of_a_chart_has_values_only_under_the_pointer(tab: Tab) -> None:
    page = tab.open("/").page
    chart = page.locator("[data-chart=outcomes]")
    expect(chart.locator(".u-legend .u-label").last).to_be_visible()
    value = chart.locator(".u-legend .u-value")
    expect(value.last).to_be_hidden()
    chart.locator(".u-over").hover()
    expect(value.first).to_be_visible()
    page.mouse.move(0, 0)
    expect(value.last).to_be_hidden()
