"""The steps of a task on its page, its questions and held effects, and the list of both."""

from __future__ import annotations

import html
import re
import shlex

import pytest

from stentor.surfaces.dashboard.pages.tasks import tasks
from stentor.surfaces.dashboard.pages.tasks import tasks as task_pages
from tests.domains.steps.test_steps import Attempt, begin_attempt, retry
from tests.domains.steps.test_waits import suspend, wait
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


async def ask(site: Site, *options: str) -> Attempt:
    attempt = await begin_attempt(site.world)
    await attempt.step("plan", {"hotel": "<b>Sol</b>"})
    await wait(attempt, "question", question="Book <i>Sol</i>?", **({"options": list(options)} if options else {}))
    await suspend(attempt, "question")
    return attempt


@requirement("steps.pages")
async def test_a_page_shows_the_steps_and_answers_the_question(site: Site) -> None:
    attempt = await ask(site, "yes", "no")
    path = f"/tasks/{attempt.task_id}"
    page = await site.read(path)
    assert "Book &lt;i&gt;Sol&lt;/i&gt;?" in page
    assert "&lt;b&gt;Sol" in page
    assert "<b>Sol" not in page
    assert 'value="&#34;yes&#34;"' in page
    assert "1</b> question to answer" in await site.read("/")
    assert "Book &lt;i&gt;Sol&lt;/i&gt;?" in await site.read("/decisions")
    reader = await site.read(path, key="READER")
    assert "Book &lt;i&gt;Sol&lt;/i&gt;?" in reader
    assert f'action="{path}/answer"' not in reader
    await site.send(f"{path}/answer", 403, key="WRITER", value="yes")
    await site.send(f"{path}/answer", 400, step="question", value="perhaps")
    answered = await site.send(f"{path}/answer", step="question", value="yes")
    assert answered.headers["location"].endswith("notice=answered")
    assert (await site.world.task(attempt.task_id))["status"] == "queued"
    assert "Nothing waits for an answer." in await site.read("/decisions")


@requirement("steps.pages")
async def test_a_long_list_of_questions_has_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.surfaces.dashboard.pages.tasks.decisions.MAX_LISTED", 1)
    attempt = await begin_attempt(site.world)
    await wait(attempt, "question", question="Book it?")
    await attempt.begin("pay")
    await suspend(attempt, "question")
    page = await site.read("/decisions")
    assert ("Book it?" in page, "happen?" in page) == (True, False)
    address = re.search(r'href="(/decisions[?]cursor=[^"]+)">Later questions', page)
    assert address is not None
    page = await site.read(address[1])
    assert ("Book it?" in page, "happen?" in page, "Later questions" in page) == (False, True, False)
    assert f'data-src="{address[1]}"' in page
    path = f"/tasks/{attempt.task_id}/resolve"
    refused = await site.send(path, 400, step="pay", happened="yes", value="{5", reason="seen in the bank")
    assert "seen in the bank" in refused.text
    await site.send(path, step="pay", happened="yes", value="5", reason="seen in the bank")
    page = await site.read(address[1])
    assert "Nothing waits" not in page, "the first question still does"
    assert '<a href="/decisions">See the first ones' in page


@requirement("steps.pages")
async def test_an_answer_of_spaces_is_refused(site: Site) -> None:
    attempt = await ask(site)
    refused = await site.send(f"/tasks/{attempt.task_id}/answer", 400, step="question", value="  ")
    assert "The answer is empty." in refused.text
    assert (await site.world.task(attempt.task_id))["status"] == "waiting"


@requirement("steps.pages")
async def test_an_agents_key_with_admin_sees_its_own_questions_without_a_form(site: Site) -> None:
    attempt = await begin_attempt(site.world, key_name="boss")
    await wait(attempt, "question", question="Book it?")
    await suspend(attempt, "question")
    for address in (f"/tasks/{attempt.task_id}", "/decisions"):
        form = f'action="/tasks/{attempt.task_id}/answer"'
        assert form in await site.read(address)
        page = await site.read(address, key="BOSS")
        assert ("Book it?" in page, form in page) == (True, False)
    await site.send(f"/tasks/{attempt.task_id}/answer", 403, key="BOSS", step="question", value="yes")


@requirement("steps.pages")
async def test_an_option_and_a_key_are_sent_with_each_space_and_line_break(site: Site) -> None:
    attempt = await begin_attempt(site.world)
    await wait(attempt, "question", key=" which ", question="Which?", options=["a ", "b\nc"])
    await suspend(attempt, " which ")
    path = f"/tasks/{attempt.task_id}"
    offered = re.findall(r'name="option" value="([^"]*)"', await site.read(path))
    assert all(option.isprintable() for option in offered), "a browser sends a line break as two characters"
    await site.send(f"{path}/answer", step=" which ", option=html.unescape(offered[1]))
    step = (await site.world.admin.get(f"/api/v1/tasks/{attempt.task_id}/steps/%20which%20")).json()
    assert step["value"] == "b\nc"


@requirement("steps.pages")
async def test_a_command_for_a_step_is_quoted_for_a_shell(site: Site) -> None:
    attempt = await begin_attempt(site.world)
    key = "don't; x " + "y" * 300
    await attempt.step("big", "x" * 100_000, key=key)
    page = html.unescape(await site.read(f"/tasks/{attempt.task_id}"))
    command = re.search(r"<code>(stentor task steps [^<]*--step [^<]*)</code>", page)
    assert command
    assert shlex.split(command[1])[-1] == key


@requirement("steps.pages")
@requirement("dashboard.page-console")
async def test_the_console_of_a_task_that_asks_leads_to_the_page_that_answers(site: Site) -> None:
    attempt = await ask(site)
    page = await site.read(f"/console/{attempt.task_id}")
    assert f'It waits: <a href="/tasks/{attempt.task_id}">' in page
    assert "is working on it" not in page


@requirement("steps.pages")
async def test_a_question_and_a_held_effect_are_shown_after_more_steps_than_the_page_has(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MAX_STEPS", 1)
    monkeypatch.setattr(task_pages, "MAX_EVENTS", 1)
    attempt = await begin_attempt(site.world)
    for name in ("plan", "choose", "reserve"):
        await attempt.step(name, f"value of {name}")
    await wait(attempt, "question", question="Book Sol?")
    await suspend(attempt, "question")
    path = f"/tasks/{attempt.task_id}"
    page = await site.read(path)
    assert "The first 1 and the last 1." in page
    assert re.findall('<details><summary><span class="label">(.*?)<', page)[-2:] == ["plan", "question"]
    assert f'action="{path}/answer"' in page
    monkeypatch.setattr(tasks, "PAGE_STEPS", 3)
    listed = await site.read(f"{path}/steps")
    assert re.findall('<span class="label">(.*?)<', listed) == ["plan", "choose", "reserve"]
    following = re.search('href="([^"]*cursor=[^"]*)"', listed)
    assert following
    assert re.findall('<span class="label">(.*?)<', await site.read(html.unescape(following[1]))) == ["question"]
    await site.read("/tasks/unknown/steps", 404)
    for query in ("", "?key=plan"):
        await site.read(f"{path}/steps{query}", 404, key="OTHER")
        assert "value of plan" in await site.read(f"{path}/steps{query}", key="READER")
    held = await begin_attempt(site.world, name="ben", capabilities=["pay"], task={"required_capabilities": ["pay"]})
    await held.step("plan")
    await held.begin("pay")
    await held.fail()
    assert f'action="/tasks/{held.task_id}/resolve"' in await site.read(f"/tasks/{held.task_id}")


@requirement("steps.pages")
async def test_a_page_of_many_long_values_is_short_and_leads_to_each_of_them(site: Site) -> None:
    attempt = await begin_attempt(site.world)
    for n in range(120):
        await attempt.step(f"step {n}", f"value {n}: " + "x" * 3_000)
    path = f"/tasks/{attempt.task_id}"
    page = await site.read(path)
    assert len(page) < 300_000
    assert "value 119: " in page
    assert "value 7: " not in page
    address = re.search('href="([^"]*/steps[?]key=step%207)"', page)
    assert address
    assert "value 7: " in await site.read(html.unescape(address[1]))
    events = re.findall('<li class="step_completed">\\s*<(?:a href="/provenance/|details)', page)
    assert len(events) >= 100
    assert any("provenance" in event for event in events)


@requirement("steps.pages")
async def test_a_question_without_options_takes_any_text(site: Site) -> None:
    attempt = await ask(site)
    await site.send(f"/tasks/{attempt.task_id}/answer", step="question", value="the blue one")
    step = await site.world.admin.get(f"/api/v1/tasks/{attempt.task_id}/steps/question")
    assert step.json()["value"] == "the blue one"


@requirement("steps.pages")
@pytest.mark.parametrize(("happened", "state"), [("yes", "completed"), ("no", "failed")])
async def test_a_held_effect_is_decided_on_its_page(site: Site, happened: str, state: str) -> None:
    attempt = await begin_attempt(site.world)
    key = (await attempt.begin("pay")).json()["idempotency_key"]
    path = f"/tasks/{attempt.task_id}"
    assert "Did the effect &#39;pay&#39; happen?" not in await site.read(path)
    await attempt.fail()
    page = await site.read(path)
    assert "Did the effect &#39;pay&#39; happen?" in page
    assert key in page
    fields = {"step": "pay", "happened": happened, "reason": "seen in the bank"}
    refused = await site.send(f"{path}/resolve", 400, **{**fields, "happened": "yes", "value": '{"eur": 5'})
    assert "The result looks like JSON but is not valid: Input data was truncated." in refused.text
    assert 'name="reason" value="seen in the bank"' in refused.text
    assert 'name="value" value="{&#34;eur&#34;: 5"' in refused.text
    await site.send(f"{path}/resolve", **{**fields, "value": '{"eur": 5}' if happened == "yes" else ""})
    step = (await site.world.admin.get(f"/api/v1/tasks/{attempt.task_id}/steps/pay")).json()
    assert (step["state"], step["value"]) == (state, {"eur": 5} if happened == "yes" else None)


@requirement("steps.pages")
async def test_the_value_of_an_effect_may_be_typed_as_text(site: Site) -> None:
    attempt = await begin_attempt(site.world)
    await attempt.begin("pay")
    await attempt.fail()
    fields = {"step": "pay", "happened": "yes", "reason": "seen in the bank", "value": "A-17"}
    await site.send(f"/tasks/{attempt.task_id}/resolve", **fields)
    step = (await site.world.admin.get(f"/api/v1/tasks/{attempt.task_id}/steps/pay")).json()
    assert step["value"] == "A-17"


@requirement("steps.pages")
async def test_a_page_says_what_a_task_waits_for(site: Site) -> None:
    attempt = await begin_attempt(site.world)
    await wait(attempt, "sleep", seconds=3600)
    await wait(attempt, "signal", signal="paid")
    await suspend(attempt, "sleep", "signal")
    page = await site.read(f"/tasks/{attempt.task_id}")
    assert "Waits for the signal &#39;paid&#39;." in page
    assert "Sleeps; the wait ends <time" in page
    assert "No agent is occupied while it waits." in page
    assert f'action="/tasks/{attempt.task_id}/cancel"' in page
    assert attempt.task_id in await site.read("/tasks", status="waiting")


@requirement("tasks.silence", "tasks.total-duration")
async def test_a_page_says_that_a_worker_is_silent_and_how_long_all_attempts_took(site: Site) -> None:
    attempt = await begin_attempt(site.world)
    site.world.clock.advance(seconds=17)
    path = f"/tasks/{attempt.task_id}"
    assert "No heartbeat for 17 s. Without one, the task goes back to the queue at" in await site.read(path)
    attempt = await retry(attempt)
    site.world.clock.advance(seconds=3)
    assert "No heartbeat" not in await site.read(path)
    await attempt.post("complete", result=1)
    page = await site.read(path)
    assert '<dt>Duration</dt><dd class="n">20.0 s</dd>' in page
    assert "the last one took 3.0 s" in page
    assert 'title="2 attempts, the last one took 3.0 s">×2' in await site.read("/tasks")


async def test_a_task_without_steps_has_no_card_of_them(site: Site) -> None:
    await site.world.register()
    task_id = await site.world.submit()
    assert "<h2>Steps" not in await site.read(f"/tasks/{task_id}")


@requirement("dashboard.task-waterfall")
async def test_the_bar_of_a_step_has_the_beginning_of_its_value_and_its_error_once(site: Site) -> None:
    attempt = await begin_attempt(site.world)
    await attempt.step("long", "begins " + "y" * 3000)
    await attempt.step("bad", None, error={"type": "OSError", "message": "unreadable"})
    page = await site.read(f"/tasks/{attempt.task_id}")
    waterfall = page.partition("<h2>Time</h2>")[2].partition("</ol>")[0]
    assert ("begins yyy" in waterfall, waterfall.count("y" * 500)) == (True, 1)
    assert waterfall.count("unreadable") == 1


@requirement("steps.pages")
async def test_a_question_cannot_change_the_direction_of_what_a_person_reads(site: Site) -> None:
    attempt = await begin_attempt(site.world)
    await wait(attempt, "question", question="Pay \u202e001?", options=["yes\u202e"])
    await suspend(attempt, "question")
    for path in (f"/tasks/{attempt.task_id}", "/decisions"):
        page = await site.read(path)
        assert "Pay \\u202e001?" in page
        assert "\u202e" not in re.sub(r'value="[^"]*"', "", page)
