"""What people do with the pages, from end to end, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Browser, Dialog, Route, expect

from tests.browser.conftest import Installation, Tab
from tests.conftest import KEYS
from tests.requirements import requirement

pytestmark = [pytest.mark.slow, pytest.mark.together("browser")]
WORDS = ["The ", "sea ", "is ", "salty."]


@requirement("dashboard.flows")
def test_one_signs_in_where_one_wanted_to_go_and_out_again(chromium: Browser, installation: Installation) -> None:
    context = chromium.new_context()
    page = Tab(context.new_page(), installation.board).page
    page.goto(f"{installation.board}/tasks?status=failed")
    expect(page).to_have_url(f"{installation.board}/sign-in?next=%2Ftasks%3Fstatus%3Dfailed")
    page.get_by_label("Key").fill("not-a-key")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Invalid API key")
    page.goto(f"{installation.board}/tasks?status=failed")
    page.get_by_label("Key").fill("admin-key-7c1e")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{installation.board}/tasks?status=failed")
    cookies = context.cookies()
    assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
    assert page.evaluate("document.cookie") == ""
    page.locator(".who summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(f"{installation.board}/tasks")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    context.close()


@requirement("dashboard.flows")
def test_an_instruction_becomes_tokens_as_they_come_and_then_an_answer(tab: Tab, installation: Installation) -> None:
    seed, page = installation.seed, tab.open("/console").page
    agent = seed.post("/registry/agents", {"name": "sailor", "capabilities": ["explain"], "trust_tier": "auto"})
    page.get_by_label("Instruction").fill("Why is the sea salty?")
    page.get_by_label("Capability").fill("explain")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/console/*")
    expect(page.locator(".why")).to_contain_text("sailor was chosen")
    (task,) = seed.post(f"/agents/{agent['agent_id']}/claims", {"wait_seconds": 60})["tasks"]
    address = f"/tasks/{task['task_id']}"
    tokens = page.locator(".tokens")
    for n, word in enumerate(WORDS):
        seed.post(f"{address}/tokens", {"epoch": task["epoch"], "tokens": [word]})
        expect(tokens).to_have_text("".join(WORDS[: n + 1]).strip())
    page.reload()
    expect(page.locator(".tokens")).to_have_text("".join(WORDS))
    seed.post(f"{address}/complete", {"epoch": task["epoch"], "result": "Because **rivers** bring salt."})
    expect(page.locator(".tokens-done strong")).to_have_text("rivers")
    expect(page.locator(".status.completed").first).to_be_visible()


@requirement("dashboard.flows")
def test_an_update_of_somebody_else_is_read_and_approved(tab: Tab, installation: Installation) -> None:
    seed = installation.seed
    patch = {"capabilities": ["write", "review", "measure"]}
    seed.propose("Let the critic measure", installation.made.agents["critic"], patch)
    page = tab.open("/governance").page
    page.get_by_role("link", name="Let the critic measure").click()
    expect(page.locator(".diff .add")).to_contain_text("measure")
    page.get_by_label("Reason", exact=True).fill("It was measured.")
    for box in page.locator(".decide input[type=checkbox]").all():
        box.check()
    page.get_by_role("button", name="Approve and deploy").click()
    expect(page.locator(".status.deployed").first).to_be_visible()


@requirement("dashboard.keyboard")
def test_enter_in_a_text_beside_two_decisions_makes_none(tab: Tab, installation: Installation) -> None:
    page = tab.page
    seed = installation.seed
    update = seed.propose("Let it draw", installation.made.agents["critic"], {"capabilities": ["write", "draw"]})
    for path, label in (("/decisions", "How you know"), (f"/governance/updates/{update}", "What to change")):
        tab.open(path)
        expect(page.locator("main button[disabled]").first).to_be_hidden()
        page.evaluate("addEventListener('submit', (event) => { event.preventDefault(); window.sent = true; })")
        page.locator("details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
        for box in page.locator("textarea[required]").all():
            box.fill("Because.")
        page.get_by_label(label).first.fill("I looked it up.")
        page.keyboard.press("Enter")
        assert not page.evaluate("window.sent"), label
        page.locator("form", has=page.get_by_label(label)).first.locator(".primary").click()
        assert page.evaluate("window.sent"), label


@requirement("dashboard.flows")
def test_a_quarantine_appears_without_a_reload(tab: Tab, installation: Installation) -> None:
    seed = installation.seed
    made = seed.post("/registry/agents", {"name": "prowler", "capabilities": ["prowl"], "trust_tier": "auto"})
    page = tab.open("/agents").live().page
    row = page.locator("tr", has=page.get_by_role("link", name="prowler"))
    expect(row.locator(".status.active")).to_be_visible()
    for _ in range(3):
        seed.api.post(
            f"/api/v1/registry/agents/{made['agent_id']}/authorize", json={"tool": "shell", "operation": "run"}
        )
    expect(row.locator(".status.quarantined")).to_be_visible()
    tab.open("/")
    expect(page.get_by_role("link", name="quarantined agent")).to_be_visible()
    tab.open(f"/agents/{made['agent_id']}")
    page.locator("summary", has_text="Clear violations").click()
    page.get_by_role("textbox", name="Why").fill("It was a test.")
    asked: list[str] = []

    def accept(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    page.once("dialog", accept)
    page.locator("form[action$=clear-violations] button").click()
    expect(page.locator(".status.active").first).to_be_visible()
    assert len(asked) == 1


@requirement("dashboard.flows")
def test_a_note_is_found_while_one_types_and_opened(tab: Tab) -> None:
    page = tab.open("/memory").page
    page.get_by_label("Search for").press_sequentially("backups", delay=20)
    page.get_by_role("link", name="Backups").first.click()
    expect(page.locator("main")).to_contain_text("tried out once a month")
    tab.open("/memory/note?path=Projects%2Flaunch.md")
    page.locator(".prose").get_by_role("link", name="plan").click()
    expect(page.locator("main")).to_contain_text("Deploying happens every night")


@requirement("dashboard.flows")
def test_a_search_that_takes_long_gives_way_to_the_next(tab: Tab) -> None:
    page = tab.open("/memory").page
    page.route(re.compile(r"/memory\?.*q=back(&|$)"), lambda route: None)  # this one is never answered
    with page.expect_request(re.compile("q=back")):
        page.get_by_label("Search for").fill("back")
    page.get_by_label("Search for").fill("backups")
    expect(page.get_by_role("link", name="Backups").first).to_be_visible()


ASKED = """window.asked = 0; document.addEventListener("htmx:beforeRequest", ({ detail }) => {
  if (!detail.requestConfig.headers["X-Live"]) window.asked += 1;
});"""


@requirement("dashboard.live-kept")
@pytest.mark.parametrize(("path", "words"), [("/tasks", "topic"), ("/agents", "cri")])
def test_a_tick_in_the_rows_that_were_searched_stays(tab: Tab, path: str, words: str) -> None:
    page = tab.open(path).page
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.wait_for_url(re.compile(f"q={words}(&|$)"))
    page.evaluate(ASKED)
    # The field is left, so the browser says that it has changed; the rows are not to be exchanged under the pointer.
    page.locator("[data-select]").first.check()
    assert page.evaluate("window.asked") == 0
    expect(page.locator("[data-select]").first).to_be_checked()


@requirement("dashboard.live-pressed")
@pytest.mark.parametrize("path", ["/audit", "/models/calls"])
def test_a_text_that_was_typed_waits_for_the_click_that_leaves_it(tab: Tab, path: str) -> None:
    page = tab.open(path).page
    page.evaluate(ASKED)
    field = page.locator("form.filters input:is([type=search], :not([type]))").first
    field.fill("nothing has this")
    box = page.locator("main h1").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    assert page.evaluate("window.asked") == 0
    page.mouse.up()
    page.wait_for_url(re.compile("nothing"))


@requirement("dashboard.back")
@pytest.mark.parametrize("path", ["/tasks", "/audit"])
def test_back_leads_to_the_list_as_long_as_it_was(tab: Tab, installation: Installation, path: str) -> None:
    for _ in range(55):  # of which 50 are on the first page
        if path == "/tasks":
            body = {"type": "write", "input": "x", "required_capabilities": ["review"]}
            installation.seed.post("/tasks", body | {"agent_preference": installation.made.agents["archivist"]})
        else:
            httpx.post(f"{tab.board}/sign-in", data={"key": KEYS["READER"].split(":")[0]}, timeout=200)
    page, rows = tab.page, tab.page.locator("[data-row]")
    # Live changes are never answered: one would exchange the link between the focus and the key.
    page.route("**/*", lambda route: None if route.request.headers.get("x-live") else route.continue_())
    tab.open(path)
    page.get_by_role("link", name="Show more").press("Enter")
    expect(rows.nth(50).locator("a").first).to_be_focused()
    link = rows.nth(50).locator(".title a").first
    opened = link.get_attribute("href")
    link.click()
    page.wait_for_url(f"**{opened}")
    page.go_back()
    at = page.locator("[data-row].at a").first
    expect(at).to_have_attribute("href", opened or "")
    expect(at).to_be_in_viewport()


@requirement("dashboard.live", "dashboard.page-tasks")
def test_the_list_of_tasks_grows_and_a_question_comes_before_a_cancel(tab: Tab, installation: Installation) -> None:
    page = tab.open("/tasks").live().page
    body = {"type": "write", "input": "x", "required_capabilities": ["review"]}
    wanted = {"agent_preference": installation.made.agents["archivist"]}
    task_id = installation.seed.post("/tasks", body | wanted)["task_id"]
    link = page.locator(f'a[href="/tasks/{task_id}"]')
    expect(link).to_be_visible()
    link.click()
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".head .status")).to_have_text("queued")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".head .status")).to_have_text("cancelled")
    expect(page.get_by_role("status").filter(has_text="Task cancelled.")).to_be_visible()


@requirement("dashboard.saved-views")
def test_a_view_of_the_list_is_saved_under_a_name_and_removed(tab: Tab) -> None:
    page = tab.open("/tasks").page
    views = page.locator("[data-views]")
    expect(views).to_be_hidden()
    page.get_by_label("Status").select_option("failed")
    page.once("dialog", lambda dialog: dialog.accept("Broken ones"))
    views.get_by_role("button", name="Save this view").click()
    expect(views.get_by_role("link", name="Broken ones")).to_have_attribute("aria-current", "true")
    tab.open("/tasks")
    views.get_by_role("link", name="Broken ones").click()
    expect(page).to_have_url(re.compile(r"/tasks\?status=failed$"))
    expect(page.get_by_label("Status")).to_have_value("failed")
    views.get_by_role("button", name="Remove the view Broken ones").click()
    expect(views.get_by_role("link")).to_have_count(0)
    tab.open("/tasks")
    expect(views).to_be_hidden()


@requirement("dashboard.saved-views")
def test_a_view_gets_another_name(tab: Tab) -> None:
    page = tab.open("/tasks?status=failed").page
    shown, answers = page.locator("[data-views] a"), ["Mine", "Broken ones"]
    page.on("dialog", lambda dialog: dialog.accept(answers.pop(0)))
    page.get_by_role("button", name="Save this view").click()
    page.get_by_role("button", name="Rename the view Mine").click()
    expect(shown).to_have_text(["Broken ones"])
    expect(shown).to_have_attribute("href", "/tasks?status=failed")
    page.get_by_role("button", name="Remove the view Broken ones").click()


@requirement("dashboard.saved-views")
def test_a_view_is_replaced_after_a_question_alone(tab: Tab) -> None:
    page, asked = tab.open("/tasks?status=failed").page, list[str]()
    answers: list[str | None] = ["Mine", "Mine", None, "Mine", ""]
    shown, save = page.locator("[data-views] a"), page.get_by_role("button", name="Save this view")

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        text = answers.pop(0)
        dialog.dismiss() if text is None else dialog.accept(text)

    page.on("dialog", answer)
    save.click()
    expect(shown).to_have_attribute("href", "/tasks?status=failed")
    page.get_by_label("Status").select_option("queued")
    save.click()
    expect(shown).to_have_attribute("href", "/tasks?status=failed")
    save.click()
    expect(shown).to_have_attribute("href", "/tasks?status=queued")
    assert asked == ["Name of the view"] * 2 + ["Replace the view Mine?", "Name of the view", "Replace the view Mine?"]
    page.get_by_role("button", name="Remove the view Mine").click()


@requirement("dashboard.saved-views")
def test_views_that_were_saved_in_another_tab_stay(tab: Tab) -> None:
    page = tab.open("/tasks?status=failed").page
    other = Tab(page.context.new_page(), tab.board).open("/tasks?status=queued").page
    # Of a tab in the background the browser may tell late: it is not to rely on that.
    page.evaluate("addEventListener('storage', (event) => event.stopImmediatePropagation(), true)")
    for name, shown in (("Queued ones", other), ("Broken ones", page)):
        shown.once("dialog", lambda dialog, name=name: dialog.accept(name))
        shown.get_by_role("button", name="Save this view").click()
    expect(page.locator("[data-views] a")).to_have_text(["Queued ones", "Broken ones"])
    expect(other.locator("[data-views] a")).to_have_text(["Queued ones", "Broken ones"])
    page.get_by_role("button", name="Remove the view Broken ones").click()
    expect(other.locator("[data-views] a")).to_have_text(["Queued ones"])


@requirement("dashboard.refresh")
def test_parts_are_asked_for_every_thirty_seconds_though_nothing_is_heard(tab: Tab) -> None:
    page = tab.page
    page.clock.install()
    tab.open("/tasks").live()
    with page.expect_request(lambda request: request.headers.get("x-live") == "1"):
        page.clock.fast_forward(30_500)


@requirement("dashboard.page-matching")
def test_all_tasks_that_match_are_cancelled_while_a_page_shows_how_far_it_is(
    installation: Installation, tab: Tab
) -> None:
    archivist = installation.made.agents["archivist"]
    for _ in range(51):
        body = {"type": "flood", "input": "x", "required_capabilities": ["write"], "agent_preference": archivist}
        installation.seed.post("/tasks", body)
    page = tab.open("/tasks?type=flood").page
    page.get_by_label("All 51 that match").check()
    expect(page.get_by_text("All selected")).to_be_visible()
    expect(page.locator("[data-select]").first).to_be_disabled()
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("heading", name="Cancel all 51 tasks?")).to_be_visible()
    page.get_by_role("button", name="Cancel all 51").click()
    expect(page.get_by_role("heading", name="51 tasks cancelled")).to_be_visible()


@requirement("dashboard.flows")
def test_the_keyboard_begins_at_the_link_to_the_content_and_returns_from_a_dialog(tab: Tab) -> None:
    page = tab.open("/tasks").live().page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    menu = page.locator(".who > summary")
    menu.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Keyboard shortcuts").press("Enter")
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()


@requirement("dashboard.page-selection")
def test_the_buttons_for_several_tasks_or_agents_need_a_selection(tab: Tab) -> None:
    page = tab.open("/tasks").page
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    expect(cancel).to_be_disabled()
    expect(page.locator("form.selected")).to_have_attribute("data-most", "500")
    page.locator("[data-select]").first.check()
    expect(cancel).to_be_enabled()
    expect(page.get_by_text("1 selected")).to_be_visible()
    page.locator("form.selected").evaluate("form => { form.dataset.most = 1; }")
    page.get_by_label("Select all shown tasks").check()
    expect(page.get_by_text("1 selected, at most 1", exact=True)).to_be_visible()
    expect(cancel).to_be_enabled()
    page.locator("[data-select]").nth(1).check()
    expect(page.get_by_text("2 selected, at most 1", exact=True)).to_be_visible()
    expect(cancel).to_be_disabled()
    page.get_by_label("Select all shown tasks").uncheck()
    expect(page.get_by_text("0 selected")).to_be_visible()
    expect(cancel).to_be_disabled()
    tab.open("/agents")
    compare, boxes = page.get_by_role("button", name="Compare"), page.locator("input[name=agent]")
    boxes.nth(0).check()
    expect(compare).to_be_disabled()
    boxes.nth(1).check()
    expect(compare).to_be_enabled()
    page.keyboard.press("j")
    expect(page.locator("tr.at")).to_have_count(1)


@requirement("dashboard.unsent-texts")
def test_a_text_is_not_sent_to_a_service_that_does_not_answer(tab: Tab) -> None:
    page = tab.open("/memory/edit?path=Notes/kept.md").page
    text, save = page.get_by_label("Text"), page.get_by_role("button", name="Save")
    text.fill("An hour's work.")
    page.evaluate("timeout = AbortSignal.timeout; AbortSignal.timeout = () => timeout.call(AbortSignal, 100)")
    refused: list[Callable[[Route], None]] = [
        lambda route: route.abort("connectionrefused"),
        lambda route: route.fulfill(status=503),  # a proxy without the service
        lambda route: None,
    ]
    for refuse in refused:
        page.route("**/*", refuse)
        save.click()
        expect(page.get_by_role("alert")).to_contain_text("The service does not answer, so nothing was sent.")
        expect(text).to_have_value("An hour's work.")
        page.unroute("**/*")
    page.evaluate("AbortSignal.timeout = timeout")
    save.click()
    page.wait_for_url(re.compile("/memory/note"))
    expect(page.get_by_text("An hour's work.").first).to_be_visible()
    tab.errors.clear()  # of the requests that were refused


@requirement("dashboard.unsent-texts")
def test_the_service_is_asked_again_if_a_form_became_invalid_meanwhile(tab: Tab) -> None:
    page, held = tab.open("/memory/edit").page, list[Route]()
    path, text, save = page.get_by_label("Path"), page.get_by_label("Text"), page.get_by_role("button", name="Save")
    path.fill("Notes/new.md")
    text.fill("An hour's work.")
    page.route("**/health", lambda route: held.append(route))
    with page.expect_request("**/health"):
        save.click()
    path.clear()
    text.focus()
    held.pop().fulfill(status=200)
    expect(path).to_be_focused()  # it is required
    path.fill("Notes/new.md")
    page.route("**/*", lambda route: route.abort("connectionrefused"))
    save.click()
    expect(page.get_by_role("alert")).to_contain_text("The service does not answer, so nothing was sent.")
    tab.errors.clear()  # of the request that was refused


@requirement("dashboard.flows")
def test_what_waits_for_a_slow_service_shows_it(tab: Tab) -> None:
    page, held = tab.open("/memory/edit?path=Notes/slow.md").page, list[Route]()
    save = page.get_by_role("button", name="Save")
    page.get_by_label("Text").fill("An hour's work.")
    page.route("**/health", lambda route: held.append(route))
    with page.expect_request("**/health"):
        save.dblclick()
    expect(save).to_have_attribute("aria-busy", "true")
    expect(save).to_have_css("opacity", "0.6")
    expect(save).to_be_focused()
    assert len(held) == 1
    held.pop().fulfill(status=503)
    expect(page.get_by_role("alert")).to_contain_text("The service does not answer, so nothing was sent.")
    expect(save).to_have_css("opacity", "1")
    tab.open("/tasks")
    results = page.locator("#results")
    page.route("**/tasks?*", lambda route: held.append(route))
    page.get_by_label("Status").select_option("failed")
    expect(results).to_have_css("opacity", "0.6")
    held.pop().continue_()
    expect(results).to_have_css("opacity", "1")
    page.wait_for_url("**/tasks?*status=failed*")
    tab.errors.clear()  # that an answer was 503


@requirement("dashboard.page-selection")
def test_back_after_an_action_on_several_tasks_leads_to_the_list(tab: Tab) -> None:
    page = tab.open("/tasks?status=queued").page
    page.locator("[data-select]").first.check()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("heading", name="Cancel 1 task?").wait_for()
    page.get_by_role("button", name="Cancel 1 task").click()
    page.get_by_role("heading", name="1 task cancelled").wait_for()
    page.go_back()
    page.get_by_text("None of the selected tasks can be cancelled.").wait_for()
    page.go_back()
    page.wait_for_url("**/tasks?status=queued")


@requirement("dashboard.keyboard")
def test_the_pages_are_used_by_keyboard(tab: Tab) -> None:
    page = tab.open("/").live().page
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/tasks")
    tab.live()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    first = page.locator("tr[data-row]").first
    expect(first).to_have_class("at")
    address = first.locator("a").first.get_attribute("href")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{address}")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("deploy")
    page.keyboard.press("Escape")
    expect(page.locator("#search")).not_to_be_focused()
    expect(page.locator("#search")).to_have_value("deploy")  # the browser itself would clear it
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


@requirement("dashboard.keyboard")
def test_selected_tasks_are_cancelled_by_keyboard(tab: Tab) -> None:
    page = tab.open("/tasks?status=queued").page
    for key in "jjjxb":
        page.keyboard.press(key)
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Cancel 1 task?")).to_be_visible()


@requirement("dashboard.keyboard")
def test_escape_closes_what_was_unfolded_and_keeps_what_was_typed(tab: Tab, installation: Installation) -> None:
    page = tab.open(f"/agents/{installation.made.agents['scribe']}").live().page
    suspend = page.get_by_text("Suspend …")
    suspend.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("It answers without sources")
    page.keyboard.press("Escape")
    expect(suspend).to_be_focused()
    expect(page.get_by_label("Why")).to_have_count(2)
    expect(page.locator("details.drop[open]")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Why").first).to_have_value("It answers without sources")
    account = page.locator(".who summary")
    account.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(account).to_be_focused()
    expect(page.locator(".who[open]")).to_have_count(0)


def test_the_colours_that_were_chosen_are_kept(tab: Tab) -> None:
    page = tab.open("/tasks").page
    before = page.evaluate("document.documentElement.dataset.theme")
    page.locator(".who summary").click()
    page.get_by_role("button", name="Light or dark theme").click()
    after = page.evaluate("document.documentElement.dataset.theme")
    assert {before, after} == {"light", "dark"}
    tab.open("/agents")
    assert page.evaluate("document.documentElement.dataset.theme") == after


@requirement("dashboard.live")
def test_pages_that_nobody_looks_at_hold_no_connection(tab: Tab, installation: Installation) -> None:
    """A browser opens six connections to a service; a page of which each keeps one would keep the next out."""
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    turn = f"(hidden) => {{ {hide % 'hidden'}; document.dispatchEvent(new Event('visibilitychange')); }}"
    context = tab.page.context
    for _ in range(7):
        page = Tab(context.new_page(), installation.board).open("/models").live().page
        page.evaluate(turn, True)
    page.evaluate(turn, False)
    tab.open("/agents").live()
    name = "latecomer"
    installation.seed.post("/registry/agents", {"name": name, "capabilities": ["wait"], "trust_tier": "auto"})
    expect(tab.page.get_by_role("link", name=name)).to_be_visible()


@requirement("dashboard.page-keys")
def test_a_key_that_is_shown_is_copied_with_a_button(chromium: Browser, installation: Installation) -> None:
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = Tab(context.new_page(), installation.board).sign_in().open("/keys").page
    page.get_by_role("link", name="Create a key").click()
    page.get_by_label("Name", exact=True).fill("copied")
    page.get_by_role("button", name="Create the key").click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    is_same = page.evaluate(
        "async () => await navigator.clipboard.readText() === document.querySelector('.secret .code').textContent"
    )
    assert is_same
    context.close()
