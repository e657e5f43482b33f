"""Every page in a real browser: no error, nothing wider than the screen, no rule of accessibility broken."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser, Page, expect

from stentor.surfaces.dashboard.presenters.filters import render_markdown
from tests.browser.conftest import SIZES, Installation, Tab
from tests.browser.pages import pages
from tests.requirements import requirement

# One test opens 50 pages, each of which axe reads.
pytestmark = [pytest.mark.slow, pytest.mark.together("browser")]
WIDE_TABLE = render_markdown("| {name} |" + " c |" * 99 + "\n" + "|---" * 100)
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@requirement("dashboard.pages-in-a-browser")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_shown_without_an_error_and_breaks_no_rule_of_accessibility(
    chromium: Browser, installation: Installation, scheme: Any, size: str
) -> None:
    rules = AXE_FILE_PATH.read_text()
    context = chromium.new_context(viewport=SIZES[size], color_scheme=scheme)
    tab = Tab(context.new_page(), installation.board)
    found = [f"sign-in: {one}" for one in violations(tab.open("/sign-in").page, rules)]
    tab.sign_in()
    for name, path, sees in pages(installation.made):
        page = tab.open(path).live().page
        page.locator("main").get_by_text(sees).locator("visible=true").first.wait_for()
        found += [f"{name}: {one}" for one in violations(page, rules)]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"{name}: wider than the screen")
    context.close()
    assert [*found, *tab.errors] == []


def violations(page: Page, rules: str) -> list[str]:
    """What axe finds, with the element. By evaluate, because the page's policy forbids a script of others."""
    page.evaluate(rules + "\n;undefined")
    found = page.evaluate("options => axe.run(document, options)", RULES)["violations"]
    return [
        f"{one['id']}: {node['html'][:120]} {node['failureSummary'][:200]}" for one in found for node in one["nodes"]
    ]


@requirement("dashboard.page-weight")
@pytest.mark.parametrize("path", ["/", "/tasks", "/agents", "/memory"])
def test_a_page_with_all_that_it_loads_weighs_less_than_300_kilobytes(tab: Tab, path: str) -> None:
    tab.open(path).live()
    tab.page.wait_for_timeout(500)
    sizes = tab.page.evaluate(
        """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
            .map(one => one.decodedBodySize)"""
    )
    assert len(sizes) >= 5
    assert 20_000 < sum(sizes) < 300_000


@requirement("dashboard.clipped-tables")
def test_a_table_that_is_wider_than_a_phone_says_so_until_its_end_is_seen(
    chromium: Browser, installation: Installation
) -> None:
    context = chromium.new_context(viewport=SIZES["narrow"])
    wide = next(path for name, path, _ in pages(installation.made) if name == "agents-compared")
    page = Tab(context.new_page(), installation.board).sign_in().open(wide).live().page
    page.locator(".scroll.clipped").wait_for()
    page.evaluate("document.querySelector('.scroll').scrollLeft = 9999")
    page.locator(".scroll:not(.clipped)").wait_for()
    here = page.locator("nav.side [aria-current]").bounding_box()
    assert here is not None
    assert 0 <= here["x"] <= SIZES["narrow"]["width"] - here["width"], "the menu shows where one is"
    context.close()


@requirement("dashboard.clipped-tables")
def test_a_status_is_whole_at_320_pixels(chromium: Browser, installation: Installation) -> None:
    context = chromium.new_context(viewport={"width": 320, "height": 640})
    page = Tab(context.new_page(), installation.board).sign_in().open("/tasks").page
    cut = page.evaluate(
        """() => [...document.querySelectorAll('td > .status')].filter(one =>
            one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right
        ).map(one => one.textContent)"""
    )
    shown = page.locator("td > .status").count()
    context.close()
    assert shown > 5
    assert cut == []


@requirement("dashboard.clipped-tables")
@pytest.mark.parametrize("path", ["/tasks", "/provenance"])
def test_a_status_is_on_one_line_on_a_phone_and_the_title_has_most_of_the_room(
    chromium: Browser, installation: Installation, path: str
) -> None:
    context = chromium.new_context(viewport=SIZES["narrow"])
    page = Tab(context.new_page(), installation.board).sign_in().open(path).page
    high, widths = page.evaluate(
        """() => {
            const statuses = [...document.querySelectorAll('td > .status')];
            const cells = [...document.querySelectorAll('table.list tbody tr[data-row]')].map(row =>
                [...row.cells].filter(cell => cell.offsetWidth).map(cell => cell.offsetWidth));
            return [Math.max(...statuses.map(one => one.offsetHeight)), cells];
        }"""
    )
    context.close()
    assert 0 < high < 26
    assert widths
    assert all(title > status for title, status in widths)


@requirement("dashboard.clipped-tables")
def test_details_have_exact_times_where_no_pointer_asks_for_them(chromium: Browser, installation: Installation) -> None:
    context = chromium.new_context(viewport=SIZES["narrow"])
    page = Tab(context.new_page(), installation.board).sign_in().open(f"/tasks/{installation.made.done}").page
    # Of what is on the page at this moment: the list may just be exchanged, and what is gone has no style.
    page.wait_for_function(
        """() => {
            const time = document.querySelector('.fields time');
            return time && /UTC|title/.test(getComputedStyle(time, '::after').content);
        }"""
    )
    context.close()


@requirement("dashboard.clipped-tables")
def test_the_summary_of_an_agent_fits_a_phone(chromium: Browser, installation: Installation) -> None:
    context = chromium.new_context(viewport=SIZES["narrow"])
    tab = Tab(context.new_page(), installation.board).sign_in()
    page = tab.open(f"/agents/{installation.made.agents['scribe']}/card").page
    assert page.locator("pre.code").evaluate("box => box.scrollWidth <= box.clientWidth")
    context.close()


@requirement("dashboard.page-agents")
def test_the_status_of_an_agent_is_above_its_buttons_on_a_phone(chromium: Browser, installation: Installation) -> None:
    context = chromium.new_context(viewport=SIZES["narrow"])
    path = f"/agents/{installation.made.agents['scribe']}"
    page = Tab(context.new_page(), installation.board).sign_in().open(path).page
    boxes = page.evaluate(
        """() => ["h1", ".standing .status", ".actions > *", ".columns"].map(part => {
            const box = document.querySelector(`main ${part}`).getBoundingClientRect();
            return [box.top, box.bottom, box.width];
        })"""
    )
    context.close()
    for above, below in itertools.pairwise(boxes):
        assert above[1] <= below[0]
    assert boxes[-1][2] > 350


@requirement("dashboard.page-tasks", "dashboard.page-calls")
@pytest.mark.parametrize("path", ["/tasks", "/models/calls"])
def test_all_filters_are_on_one_row_on_a_laptop(chromium: Browser, installation: Installation, path: str) -> None:
    context = chromium.new_context(viewport=SIZES["wide"])
    page = Tab(context.new_page(), installation.board).sign_in().open(path).page
    page.evaluate(
        "document.querySelectorAll('.foldable > select').forEach(choice => choice.add(new Option('x'.repeat(60))))"
    )
    tops = page.evaluate(
        "[...document.querySelectorAll('.filters > label')].map(one => one.getBoundingClientRect().bottom)"
    )
    context.close()
    assert len(tops) >= 6
    assert len(set(tops)) == 1


@requirement("dashboard.task-waterfall")
def test_a_bar_is_nearer_to_its_own_text_than_to_the_next_one_on_a_phone(
    chromium: Browser, installation: Installation
) -> None:
    context = chromium.new_context(viewport=SIZES["narrow"])
    page = Tab(context.new_page(), installation.board).sign_in().open(f"/tasks/{installation.made.done}").page
    # All at one moment, and not of a list that has just been exchanged for another one.
    boxes = page.wait_for_function(
        """() => {
          const [first, second] = document.querySelectorAll(".waterfall > li");
          const parts = second && [".label", "svg"].map(part => first.querySelector(part));
          const boxes = parts?.concat(second.querySelector(".label")).map(part => part.getBoundingClientRect());
          return boxes?.map(box => [box.top, box.bottom]);
        }"""
    )
    text, bar, following = boxes.json_value()
    context.close()
    assert bar[0] - text[1] < following[0] - bar[1]


@requirement("dashboard.print")
def test_a_task_is_printed_in_dark_ink_with_its_times_and_without_the_menu(
    chromium: Browser, installation: Installation
) -> None:
    context = chromium.new_context(viewport=SIZES["wide"], color_scheme="dark")
    tab = Tab(context.new_page(), installation.board).sign_in()
    page = tab.open(f"/tasks/{installation.made.done}").live().page
    page.emulate_media(media="print")
    headings = [page.locator("h2", has_text=text) for text in ("Grade", "Run again")]
    for hidden in (page.locator("nav.side"), page.locator(".top"), *headings):
        expect(hidden).to_be_hidden()
    expect(page.get_by_text("Why this agent")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(26, 31, 43)"
    shown = page.locator(".fields time").first.evaluate("time => getComputedStyle(time, '::after').content")
    assert "UTC" in shown
    tab.open("/tasks")
    for hidden in (page.locator(".filters"), page.locator(".selected"), page.get_by_label("Select all shown tasks")):
        expect(hidden).to_be_hidden()
    context.close()
    assert tab.errors == []


@requirement("dashboard.page-tasks", "dashboard.page-webhooks")
@pytest.mark.parametrize(
    ("path", "cells", "longest"),
    [
        ("/tasks", ".tasks .num:not(:last-child)", ["59 min 59 s", "59 min 59 s <span>×3</span>", "$12,345.50"]),
        ("/webhooks", ".hooks .num:not(:last-child)", ["10,000+<span><br>from <time>16 min ago</time></span>"]),
        ("/tasks/{asking}", ".waterfall .n", ["59 min 59 s so far", "23 h 59 min so far"]),
    ],
)
def test_no_number_is_cut(tab: Tab, installation: Installation, path: str, cells: str, longest: list[str]) -> None:
    page = tab.open(path.format_map(vars(installation.made))).live().page
    # The seed's tasks take no minutes and cost nothing, and its deliveries do not wait for long.
    cut = page.evaluate(
        """([cells, texts]) => {
            const shown = [...document.querySelectorAll(cells)].filter(cell => cell.tagName !== 'TH');
            return texts.filter(text => {
                shown.forEach(cell => cell.innerHTML = text);
                return !shown.length || shown.some(cell => cell.scrollWidth > cell.clientWidth);
            });
        }""",
        [cells, longest],
    )
    assert cut == []


@requirement("dashboard.pages-in-a-browser")
@pytest.mark.parametrize(
    "row",
    [
        '<ul class="plain alerts"><li><a href="/">{name} failed</a></li></ul>',
        '<ul class="plain runs"><li><span class="about"><span class="faint">{name}</span></span></li></ul>',
        '<section class="card wrong"><p>{name}</p></section>',
        '<ol class="trail"><li><details><summary><time>1</time> <span>{name}</span></summary></details></li></ol>',
        '<ul class="plain changes"><li><span>Key</span> <a href="/">{name}</a></li></ul>',
        '<details open><summary>1</summary><ul class="plain"><li><a href="/">{name}</a></li></ul></details>',
        '<form class="filters answer"><button>{name} {name}</button></form>',
        pytest.param(f'<div class="prose">{WIDE_TABLE}</div>', id="a table of Markdown"),
    ],
)
def test_a_long_name_makes_no_page_wider_than_the_screen(tab: Tab, row: str) -> None:
    page = tab.open("/console").live().page
    # Put into the page, because whether an alert is open depends on when they were checked.
    add = "row => document.querySelector('main .card').insertAdjacentHTML('beforeend', row)"
    page.evaluate(add, row.format(name="W" * 200))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
