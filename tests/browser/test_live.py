"""What only the script of a live page does."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Installation, Tab
from tests.conftest import KEYS
from tests.patience import until
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
    zone = page.evaluate("new Date().toLocaleTimeString('en-GB', {timeZoneName: 'short'}).split(' ').pop()")
    expect(page.locator("[data-zone]")).to_have_text(zone)
    value = chart.locator(".u-legend .u-value")
    expect(value.last).to_be_hidden()
    chart.locator(".u-over").hover()
    expect(value.first).to_be_visible()
    page.mouse.move(0, 0)
    expect(value.last).to_be_hidden()


HELD = """
window.told = {}; window.held = [];
window.EventSource = class extends EventTarget {
  constructor(url) { super(); told[url.split("?")[0]] = this; }
  close() { this.closed = true; }
};
const send = XMLHttpRequest.prototype.send;
XMLHttpRequest.prototype.send = function (...body) { held.push(() => send.apply(this, body)); };
"""
"""What the page hears is said by the test, and what it asks for waits until the test lets it go."""
CHANGE = """told["/live"].dispatchEvent(new MessageEvent("change", { data: '{"topics": ["tasks", "agents"]}' }))"""


@requirement("dashboard.live")
def test_no_part_of_a_page_is_left_behind_when_answers_take_longer_than_changes_come(
    tab: Tab, installation: Installation
) -> None:
    """Two parts of the console hear of every task; what each was asked for last is what it shows."""
    seed, page = installation.seed, tab.page
    agent = seed.post("/registry/agents", {"name": "slow", "capabilities": ["wait"], "trust_tier": "auto"})
    body = {"type": "wait", "input": "Why?", "required_capabilities": ["wait"]}
    task_id = seed.post("/tasks", body)["task_id"]
    (task,) = seed.post(f"/agents/{agent['agent_id']}/claims", {"wait_seconds": 60})["tasks"]
    page.add_init_script(HELD)
    tab.open(f"/console/{task_id}")
    page.evaluate(CHANGE)
    with page.expect_response(lambda answer: "x-live" in answer.request.headers):
        page.evaluate("held.shift()()")
    page.wait_for_function("() => held.length == 1")
    seed.post(f"/tasks/{task_id}/complete", {"epoch": task["epoch"], "result": "Because."})
    page.evaluate(CHANGE)
    page.evaluate("setInterval(() => held.shift()?.(), 20)")
    expect(page.locator(".tokens-done")).to_have_text("Because.")


@requirement("dashboard.live")
def test_the_row_and_the_details_that_a_reader_chose_stay_when_the_list_is_exchanged(tab: Tab) -> None:
    page = tab.page
    page.add_init_script(HELD)
    tab.open("/tasks")
    page.evaluate("window.old = document.querySelector('#results table')")
    page.evaluate(CHANGE)
    page.wait_for_function("() => held.length == 1")
    # While the answer is on its way, which may take long.
    page.keyboard.press("j")
    page.keyboard.press("j")
    chosen = page.locator("tr.at .title a").get_attribute("href")
    page.evaluate("held.shift()()")
    page.wait_for_function("() => !old.isConnected")
    expect(page.locator("tr.at .title a")).to_have_attribute("href", str(chosen))
    page.keyboard.press("x")
    expect(page.locator("tr.at [data-select]")).to_be_checked()


LET_GO = """
new Promise((done) => {
  document.addEventListener("htmx:afterRequest", done, { once: true });
  held.shift()();
})
"""


def answer(page: Page) -> None:
    """Let the page have what it asked for, and wait until it has put it in its place."""
    page.wait_for_function("() => held.length > 0")
    page.evaluate(LET_GO)


def asks(page: Page) -> bool:
    """Whether a part is asked for at once when something changed."""
    page.evaluate(CHANGE)
    return bool(page.evaluate("held.length > 0"))


@requirement("dashboard.live-kept")
def test_a_live_change_leaves_what_the_reader_has_done(tab: Tab, installation: Installation) -> None:
    page = tab.page
    page.add_init_script(HELD)
    tab.open("/decisions")
    known = page.get_by_label("How you know").first
    known.fill("I looked it up.")
    page.locator("h1").first.click()
    assert not asks(page), "a field has a text that is not sent"
    known.fill("")
    page.locator("h1").first.click()
    page.evaluate(CHANGE)
    page.wait_for_function("() => held.length > 0")  # at once, or when the pointer is up
    known.fill("It came while this was typed.")
    page.locator("h1").first.click()
    answer(page)
    expect(known).to_have_value("It came while this was typed.")
    tab.open(f"/tasks/{installation.made.done}")
    page.get_by_label("Grade").select_option("0.5")
    page.locator("h1").first.click()
    assert not asks(page)
    tab.open("/agents")
    page.locator("input[name=agent]").first.check()
    page.locator("h1").first.click()
    assert not asks(page)
    page.locator("input[name=agent]").first.uncheck()
    link = page.locator("tr[data-row] a").nth(1)
    link.focus()
    page.evaluate(CHANGE)
    answer(page)
    expect(link).to_be_focused()


@requirement("dashboard.live-kept")
def test_a_page_that_does_not_show_a_change_says_so_until_it_does(tab: Tab, installation: Installation) -> None:
    seed, page = installation.seed, tab.page
    agent = seed.post("/registry/agents", {"name": "warden", "capabilities": ["guard"], "trust_tier": "human"})
    task = seed.post("/tasks", {"type": "guard", "input": "Open?", "agent_preference": agent["agent_id"]})
    tab.open(f"/tasks/{task['task_id']}").live()
    page.get_by_label("Reason").fill("It is late.")
    seed.post(f"/tasks/{task['task_id']}/approve")
    expect(page.locator("#live")).to_have_text("paused")
    expect(page.get_by_label("Reason")).to_have_value("It is late.")
    page.get_by_label("Reason").fill("")
    page.locator("h1").first.click()
    expect(page.locator("main .status").first).to_have_text("queued")
    expect(page.locator("#live")).to_have_text("live")


@requirement("dashboard.live-kept")
def test_details_stay_open_when_the_row_before_them_goes(tab: Tab, installation: Installation) -> None:
    page = tab.page
    page.add_init_script(HELD)
    tab.open(f"/tasks/{installation.made.done}")
    gone = "<li><details><summary>A row that is gone</summary></details></li>"
    page.evaluate("row => document.querySelector('.trail').insertAdjacentHTML('afterbegin', row)", gone)
    page.locator(".trail summary").nth(1).click()
    page.evaluate(CHANGE)
    answer(page)
    expect(page.locator(".trail")).not_to_contain_text("A row that is gone")
    expect(page.locator(".trail details").first).to_have_attribute("open", "")
    expect(page.locator(".trail details[open]")).to_have_count(1)


@requirement("dashboard.live-kept")
@requirement("dashboard.sign-in")
def test_a_page_whose_session_has_ended_keeps_what_was_typed_and_leads_to_the_door(tab: Tab) -> None:
    page = tab.page
    page.add_init_script(HELD)
    tab.open("/console")
    instruction = page.get_by_label("Instruction")
    instruction.fill("Why is the sea salty?")
    page.context.clear_cookies()
    page.evaluate(CHANGE)
    answer(page)
    expect(page.get_by_role("link", name="sign in")).to_have_attribute("href", "/sign-in?next=%2Fconsole")
    expect(instruction).to_have_value("Why is the sea salty?")
    with page.expect_popup() as door:
        page.get_by_role("button", name="Submit").click()
        page.get_by_label("Key").fill(KEYS["ADMIN"].split(":")[0])
        expect(page.get_by_label("What you wrote")).to_have_value("Why is the sea salty?")
        page.get_by_role("button", name="Sign in").click()
    expect(door.value).to_have_url(f"{tab.board}/console")
    page.go_back()
    expect(page.get_by_label("Instruction")).to_have_value("Why is the sea salty?")
    tab.errors.clear()  # that an answer was 401


@requirement("dashboard.sign-in")
def test_a_page_without_live_parts_says_that_its_session_has_ended(tab: Tab) -> None:
    tab.page.route(re.compile("/live"), lambda route: route.fulfill(status=401, body="Sign in again."))
    tab.open("/memory/edit")
    expect(tab.page.get_by_role("link", name="sign in")).to_be_visible()
    tab.errors.clear()  # that an answer was 401


@requirement("dashboard.live")
def test_a_page_is_live_again_after_a_proxy_had_no_service(tab: Tab) -> None:
    page = tab.page
    page.clock.install()
    page.route(re.compile("/live"), lambda route: route.fulfill(status=502))
    tab.open("/tasks")
    expect(page.locator("#live")).to_have_text("not live")
    page.unroute(re.compile("/live"))
    page.clock.fast_forward(5_500)
    tab.live()
    tab.errors.clear()  # that answers were 502


@requirement("dashboard.live-kept")
def test_a_list_that_was_made_longer_stays_so_until_it_is_filtered(tab: Tab, installation: Installation) -> None:
    seed, page = installation.seed, tab.page
    agent = installation.made.agents["archivist"]
    body = {"type": "write", "input": "x", "required_capabilities": ["review"], "agent_preference": agent}
    for _ in range(10):
        seed.post("/tasks", body)
    page.add_init_script(HELD)
    tab.open("/tasks")
    page.get_by_role("link", name="Show more").click()
    answer(page)
    rows = page.locator("tr[data-row]").count()
    assert rows > 50
    assert not asks(page)
    page.get_by_label("Status").select_option("queued")
    answer(page)
    page.locator("h1").first.click()
    page.evaluate(CHANGE)
    page.wait_for_function("() => held.length > 0")


@requirement("dashboard.live-streams")
def test_the_page_of_a_task_reads_one_stream_until_its_end(tab: Tab, installation: Installation) -> None:
    seed, page = installation.seed, tab.page
    agent = seed.post("/registry/agents", {"name": "asker", "capabilities": ["ask"], "trust_tier": "auto"})
    task_id = seed.post("/tasks", {"type": "ask", "input": "Why?", "required_capabilities": ["ask"]})["task_id"]
    (task,) = seed.post(f"/agents/{agent['agent_id']}/claims", {"wait_seconds": 60})["tasks"]
    address, epoch = f"/tasks/{task_id}", {"epoch": task["epoch"]}
    page.add_init_script(HELD)
    tab.open(address)
    page.evaluate("(path) => { window.first = told[path]; }", f"{address}/stream")
    wait = {"key": "question", "name": "question", "kind": "question", "question": "How?"}
    seed.post(f"{address}/waits", epoch | wait)
    seed.post(f"{address}/suspend", epoch | {"keys": ["question"]})
    page.evaluate(CHANGE)
    answer(page)
    expect(page.get_by_text("How?").first).to_be_visible()
    expect(page.locator("#tokens")).to_have_count(1)
    assert page.evaluate("(path) => told[path] === first && !first.closed", f"{address}/stream")
    seed.post(f"{address}/cancel")
    page.evaluate(CHANGE)
    answer(page)
    expect(page.locator("#tokens")).to_have_count(0)
    page.wait_for_function("() => first.closed")


@requirement("dashboard.live-unchanged")
def test_what_a_page_already_shows_is_not_sent_again_and_what_changed_is(tab: Tab, installation: Installation) -> None:
    """The list of failed tasks hears of every task, and another filter shows its own rows in the same place."""
    seed, page = installation.seed, tab.page

    def heard() -> int:
        with page.expect_response(lambda answer: "x-live" in answer.request.headers) as answer:
            page.evaluate(CHANGE)
        return answer.value.status

    page.add_init_script(HELD.partition("const send")[0])
    tab.open("/tasks?status=failed")
    rows = page.locator("#results [data-row]")
    expect(rows.first).to_be_visible()
    first = rows.count()
    assert heard() == 200
    until(lambda: heard() == 304)  # in its first minute the age of a row grows each second
    expect(rows).to_have_count(first)
    page.get_by_label("Status").select_option("cancelled")
    expect(rows).not_to_have_count(first)
    assert heard() == 200
    page.get_by_label("Status").select_option("failed")
    expect(rows).to_have_count(first)
    body = {"type": "write", "input": "x", "required_capabilities": ["nobody-can"]}
    assert seed.api.post("/api/v1/tasks", json=body).status_code == 422
    page.evaluate(CHANGE)
    expect(rows).to_have_count(first + 1)
