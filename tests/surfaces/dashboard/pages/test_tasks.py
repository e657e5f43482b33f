"""The pages of tasks, as somebody without JavaScript sees them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from stentor.core import jsontext
from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.core.runlog import EventDraft
from stentor.domains.llm import store as llm_store
from stentor.domains.llm.store import CallRow
from stentor.surfaces.dashboard.pages.tasks import task_list, tasks
from stentor.surfaces.dashboard.presenters.filters import render_sentence
from tests.domains.retention.archives import archive
from tests.domains.tasks.search.test_task_search import index
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


@requirement("dashboard.page-tasks")
async def test_the_list_shows_tasks_with_their_agents_and_filters_them(site: Site) -> None:
    agent = await site.world.register("ann")
    done = await site.world.do(agent)
    waiting = await site.world.submit()
    page = await site.read("/tasks")
    assert page.index(waiting) < page.index(done)
    assert "2 tasks" in page
    only = await site.part("/tasks", status="queued")
    assert waiting in only
    assert done not in only
    assert "<html" not in only
    assert done in await site.part("/tasks", q=done[:30])
    assert "No task matches" in await site.part("/tasks", status="failed")
    assert "No task matches" in await site.part("/tasks", q="\0%_")


@requirement("dashboard.page-tasks")
async def test_a_filter_without_a_match_is_shown_as_chosen(site: Site) -> None:
    agent = await site.world.register("ann")
    chosen = {"agent": agent, "status": "failed", "type": "rare", "by": "nobody"}
    page = await site.read("/tasks", key="READER", **chosen)
    assert "No task matches" in page
    for value, label in ((agent, "ann"), ("rare", "rare"), ("nobody", "nobody")):
        assert f'<option value="{value}" selected>{label}</option>' in page
    assert '<option value="unknown" selected>' in await site.read("/tasks", key="READER", agent="unknown")


@requirement("dashboard.page-tasks", "tasks.search")
async def test_a_search_whose_index_is_behind_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.world.register("ann")
    pear = await site.world.submit(input="a pear")
    part = await site.part("/tasks", q="pear", type="echo")
    assert "No task matches so far" in part
    assert re.search(r"does not cover the latest \d+ events of the run log yet", part)
    assert 'hx-get="/tasks?type=echo&amp;q=pear"' in part
    again = {"HX-Request": "true", "X-Live": "1", "X-Again": "1"}
    part = (await (await site.browser()).get("/tasks?q=plum", headers=again)).text
    assert "No task matches<" in part
    assert "hx-trigger" not in part, "later events are those of later tasks, which the page hears of"
    await index(site.world)
    await site.world.submit(input="an apple")
    assert "does not cover" not in await site.part("/tasks", q="pear")
    monkeypatch.setattr(task_list, "EVENTS_PER_BATCH", 0)
    part = await site.part("/tasks", q="pear")
    assert pear in part
    assert "does not cover the latest" in part


@requirement("dashboard.page-tasks", "tasks.search")
async def test_tasks_are_found_by_their_words_type_and_submitter_and_show_their_cost(site: Site) -> None:
    world = site.world
    agent = await world.register("ann")
    pear, apple = await world.submit(input="a ripe pear", type="fruit"), await world.submit(input="an apple")
    body = {"type": "fruit", "input": "a plum", "required_capabilities": ["echo"]}
    plum = (await world.clients["WRITER"].post("/api/v1/tasks", json=body)).json()["task_id"]
    call = CallRow("c", "default", "admin", agent, pear, "chat", "openai", "m", "ok", 1, 1, 0, 2_500_000_000, 1)
    await world.kernel.infra.db.write(lambda tx: llm_store.insert_call(tx, call))
    await index(world)
    searches: list[tuple[dict[str, Any], set[str]]] = [
        ({"q": "pear"}, {pear}),
        ({"q": "ripe pear", "type": "fruit"}, {pear}),
        ({"q": "pear", "type": "other"}, set()),
        ({"q": "!"}, set()),
        ({"type": "fruit"}, {pear, plum}),
        ({"by": "writer"}, {plum}),
    ]
    for params, expected in searches:
        part = await site.part("/tasks", **params)
        assert {task_id for task_id in (pear, apple, plum) if task_id in part} == expected, params
    assert "$2.50" in await site.part("/tasks", q="pear")
    await index(world)  # the sign-in as well
    assert "No task matches</p>" in await site.part("/tasks", q="nowhere")
    page = await site.read("/tasks")
    for option in ("fruit", "writer"):
        assert f'<option value="{option}">' in page
        assert f'<option value="{option}">' not in await site.read("/tasks", key="OTHER")


@requirement("dashboard.page-tasks", "tasks.search")
async def test_a_short_number_is_a_word_and_an_id_is_found_only_without_filters(site: Site) -> None:
    await site.world.register("ann")
    other = await site.world.submit()
    while not re.search(r"\d", other[-3:]):
        other = await site.world.submit()
    meant = await site.world.submit(input=f"It answered {other[-3:]} again.")
    await index(site.world)
    page = await site.part("/tasks", q=other[-3:])
    assert (meant in page, other in page) == (True, False)
    answer = await (await site.browser()).get("/find", params={"q": other[-3:]})
    assert answer.headers["location"] == f"/tasks?q={other[-3:]}"
    assert other in await site.part("/tasks", q=other[-12:])
    assert other not in await site.part("/tasks", q=other[-12:], status="failed")


@requirement("dashboard.page-tasks", "tasks.search")
async def test_a_short_id_of_ones_own_is_found_before_tasks_that_mention_it(site: Site) -> None:
    await site.world.register("ann")
    await site.world.submit(id="job-42")
    other = await site.world.submit(input="Do what job-42 did.")
    await index(site.world)
    page = await site.part("/tasks", q="job-42")
    assert ('href="/tasks/job-42"' in page, other in page) == (True, False)
    answer = await (await site.browser()).get("/find", params={"q": "job-42"})
    assert answer.headers["location"] == "/tasks/job-42"
    assert other in await site.part("/tasks", q="job-42", status="queued")


@requirement("dashboard.page-tasks")
async def test_the_list_is_limited_to_the_tasks_of_the_last_hours_or_days(site: Site) -> None:
    await site.world.register("ann")
    old = await site.world.submit()
    site.world.clock.advance(seconds=2 * 3600)
    recent = [await site.world.submit() for _ in range(51)]
    hour = await site.part("/tasks", since="1h")
    assert "51 tasks" in hour
    assert old not in hour
    following = re.search(r'hx-get="(/tasks[^"]*)"', hour)
    assert following, "there is a second page"
    query: dict[str, Any] = dict(parse_qsl(urlsplit(html.unescape(following[1])).query))
    rest = await site.part("/tasks", **query)
    assert recent[0] in rest
    assert old not in rest
    assert "52 tasks" in await site.part("/tasks", since="24h")
    site.world.clock.advance(days=8)
    assert "No task matches" in await site.part("/tasks", since="7d")


@requirement("dashboard.page-tasks")
async def test_a_result_with_a_text_shows_it_before_the_json(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id = await site.world.do(agent, result={"answer": "It is **done**.", "score": 7})
    page = await site.read(f"/tasks/{task_id}")
    assert "<p>It is <strong>done</strong>.</p>" in page
    assert (
        page.index("<strong>done</strong>") < page.index("Complete result as JSON") < page.index("&#34;score&#34;: 7")
    )


@requirement("dashboard.page-tasks")
async def test_a_task_shows_its_decision_its_trail_and_its_result_as_markdown(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id = await site.world.do(agent, result="# Found\n\n<script>alert(1)</script> [x](javascript:alert(1))")
    page = await site.read(f"/tasks/{task_id}")
    assert "<h1>Found</h1>" in page
    assert "&lt;script&gt;alert(1)" in page
    assert 'href="javascript:' not in page
    assert "ann was chosen as the only eligible agent." in page
    assert "Score = expected + uncertainty − time − cost." in page
    terms = ("Score", "Declared", "Other task types", "Outcomes", "Expected", "Uncertainty", "Time penalty")
    for term in (*terms, "Cost penalty", "Trust"):
        assert f'<th class="num">{term}</th>' in page
    assert "the first one counts 20%" in page
    assert "routing decision" in page
    lost = await site.read("/tasks/none", 404)
    assert '<a class="button" href="/tasks">Tasks</a>' in lost
    refused = await site.read("/keys", 403, key="READER")
    assert "does not have. Ask an admin of this service for it." in html.unescape(refused)


@requirement("dashboard.page-tasks")
async def test_actions_go_through_the_gateway_with_the_key_that_signed_in(site: Site) -> None:
    await site.world.register("ann")
    task_id = await site.world.submit()
    assert (await site.send(f"/tasks/{task_id}/cancel", 403, key="READER")).status_code == 403
    assert (await site.world.task(task_id))["status"] == "queued"
    answer = await site.send(f"/tasks/{task_id}/cancel")
    assert answer.headers["location"] == f"/tasks/{task_id}?notice=cancelled"
    assert (await site.world.task(task_id))["status"] == "cancelled"


@requirement("dashboard.page-tasks")
async def test_the_terms_of_several_candidates_are_shown_with_what_they_are_made_of(site: Site) -> None:
    ann = await site.world.register("ann", accuracy_score=0.9)
    await site.world.register("bob")
    for _ in range(3):
        await site.world.do(ann)
    task_id = await site.world.submit(metadata={"prefer": "cheap"})
    page = await site.read(f"/tasks/{task_id}")
    assert "ann was chosen among 2 candidates with the highest score" in page
    assert '3.0 <span class="faint">of 3.0</span>' in page
    assert "Preference: cheap." in page


@requirement("dashboard.page-tasks")
async def test_the_share_of_degraded_results_stands_in_the_formula_where_there_is_one(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.world.do(ann, degraded=True)
    page = await site.read(f"/tasks/{await site.world.submit()}")
    assert "Score = (expected + uncertainty) × (1 − failing) − time − cost." in page
    assert '<th class="num">Failing</th>' in page
    assert "Overload" not in page


@requirement("dashboard.page-tasks")
async def test_trust_stands_in_the_formula_where_it_counts(make_board: Any, make_world: Any) -> None:
    site = Site(await make_board(await make_world(SERVICE_HEBBIAN_ROUTING_BETA="0.25")))
    await site.world.register("ann")
    page = await site.read(f"/tasks/{await site.world.submit()}")
    assert "Score = 0.75 × (expected + uncertainty − time − cost) + 0.25 × trust." in page
    for browser in site.browsers.values():
        await browser.aclose()


async def change_decision(site: Site, task_id: str, change: Callable[[dict[str, Any]], None]) -> None:
    def work(tx: Tx) -> None:
        where = "task_id = :task and event_type = 'routing_decision'"
        row = tx.row(Sql(f"select metadata from events where {where}"), task=task_id)
        assert row
        metadata = jsontext.load(row[0])
        change(metadata["routing"])
        tx.run(Sql(f"update events set metadata = :new where {where}"), new=jsontext.dump(metadata), task=task_id)

    await site.world.kernel.infra.db.write(work)


@requirement("routing.own-outage")
async def test_a_decision_shows_that_the_results_of_an_agent_are_from_before_its_failures(site: Site) -> None:
    await site.world.register("ann")
    task_id = await site.world.submit()
    await change_decision(
        site, task_id, lambda routing: routing["candidates"][0].update(rewards=9.0, outcomes=9.0, retry=True)
    )
    assert "of 9.0, before its failures" in await site.read(f"/tasks/{task_id}")
    # As before `retry` was recorded.
    await change_decision(site, task_id, lambda routing: routing["candidates"][0].pop("retry"))
    assert '<td class="num">9.0 <span class="faint">of 9.0</span>' in await site.read(f"/tasks/{task_id}")


@requirement("dashboard.page-tasks")
async def test_a_task_that_waits_for_a_worker_says_so(site: Site) -> None:
    agent = await site.world.register("ann")
    site.world.clock.advance(seconds=61)
    task_id = await site.world.submit()
    page = await site.read(f"/tasks/{task_id}")
    link = f'<a dir="auto" href="/agents/{agent}">ann</a>'
    told = f"No worker online: the task waits until the program of {link} connects."
    assert told in page
    assert told in await site.read(f"/console/{task_id}")
    assert '<span class="presence offline">offline</span>' in page
    await site.world.claim(agent)
    assert "No worker online" not in await site.read(f"/tasks/{task_id}")


@requirement("dashboard.page-tasks")
async def test_a_task_whose_endpoint_does_not_answer_is_not_said_to_wait_for_a_worker(site: Site) -> None:
    runtime = {"kind": "http", "endpoint": "https://example.com/do"}
    agent = await site.world.register("Lea", capabilities=["think"], runtime=runtime)
    for _ in range(5):
        site.world.kernel.agents.presence.record_failed_delivery(agent)
    page = await site.read(f"/tasks/{await site.world.submit(type='think', required_capabilities=['think'])}")
    assert "The endpoint of Lea does not answer; it is tried again" in page
    assert "waits until one is" not in page


@requirement("dashboard.page-tasks", "dashboard.page-grade")
async def test_a_completed_task_is_graded_on_its_page_once(site: Site) -> None:
    agent = await site.world.register("ann")
    waiting = await site.world.submit()
    path = f"/tasks/{waiting}"
    assert f'action="{path}/grade"' not in await site.read(path)
    claim = await site.world.claim(agent)
    await site.world.admin.post(f"/api/v1{path}/complete", json={"epoch": claim["epoch"], "result": "x"})
    assert f'action="{path}/grade"' in await site.read(path)
    assert f'action="{path}/grade"' not in await site.read(path, key="READER")
    await site.send(f"{path}/grade", 403, key="READER", grade="0.8")
    await site.send(f"{path}/grade", 400, grade="1.5")
    await site.send(f"{path}/grade", 400, grade="much")
    await site.send(f"{path}/grade", 400, grade="")
    answer = await site.send(f"{path}/grade", grade="0.8", comment="Right, <b>but</b> slow.")
    assert answer.headers["location"] == f"{path}?notice=graded"
    page = await site.read(path)
    assert '<b class="n">0.80</b> by admin' in page
    assert "Right, &lt;b&gt;but&lt;/b&gt; slow." in page
    assert f'action="{path}/grade"' not in page
    assert "Right, " not in await site.read(path, 404, key="OTHER")
    assert "graded" in await site.read(path, notice="graded")
    await site.send(f"{path}/grade", 409, grade="0.1")


async def test_a_grade_without_the_token_of_the_session_is_refused(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id = await site.world.do(agent)
    answer = await (await site.browser()).post(f"/tasks/{task_id}/grade", data={"grade": "0.8"})
    assert answer.status_code == 403
    assert (await site.world.admin.get(f"/api/v1/tasks/{task_id}/grade")).status_code == 404


@requirement("dashboard.page-tasks", "dashboard.task-waterfall")
async def test_task_page_shows_its_title_its_input_and_where_the_time_went(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id = await site.world.submit(title="The report of May", input={"text": "Sum it up"})
    await site.world.claim(agent)
    subtask = await site.world.submit(title="One chapter", metadata={"parent_task_id": task_id})
    page = await site.read(f"/tasks/{task_id}")
    assert "<title>The report of May · Stentor</title>" in page
    assert '<h1 dir="auto">The report of May</h1>' in page
    assert page.index("Sum it up") < page.index("Why this agent")
    assert "In the queue" in page
    assert "Attempt 1" in page
    assert f'<a href="/tasks/{subtask}"><span class="label">One chapter</span>' in page


@requirement("dashboard.page-tasks", "dashboard.task-waterfall")
async def test_task_that_waits_for_approval_says_what_an_approval_does(site: Site) -> None:
    await site.world.register("boss", capabilities=["judge"], trust_tier="human")
    task_id = await site.world.submit(type="payment", input="Pay 100", required_capabilities=["judge"])
    page = await site.read(f"/tasks/{task_id}")
    assert "Waits for your decision" in page
    assert "runs this payment task (judge)" in page
    assert page.index("Pay 100") < page.index("Why this agent")


@requirement("dashboard.page-tasks")
@pytest.mark.parametrize("task_input", ["Pay \u202e001", {"pay": "\u202e001"}])
async def test_an_input_cannot_change_the_direction_of_what_an_approver_reads(site: Site, task_input: object) -> None:
    await site.world.register("boss", capabilities=["judge"], trust_tier="human")
    task_id = await site.world.submit(title="Pay", input=task_input, required_capabilities=["judge"])
    page = await site.read(f"/tasks/{task_id}")
    assert "\\u202e001" in page
    assert "\u202e" not in page


@requirement("dashboard.page-tasks")
async def test_search_field_finds_a_task_by_part_of_its_id_and_an_agent_by_name(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id, other = await site.world.submit(), await site.world.submit()

    async def find(text: str) -> str:
        response = await (await site.browser()).get("/find", params={"q": text})
        return str(response.headers["location"])

    assert await find(task_id) == f"/tasks/{task_id}"
    assert await find(task_id[-12:]) == f"/tasks/{task_id}"
    assert await find("ann") == f"/agents/{agent}"
    assert await find(agent[-12:]) == f"/agents/{agent}"
    assert await find("0") != f"/tasks/{other}"
    assert await find("nothing like it") == "/tasks?q=nothing%20like%20it"
    assert await find("\0\n") == "/tasks?q="


@requirement("dashboard.task-unrouted")
async def test_a_task_that_no_agent_got_says_why_in_words(site: Site) -> None:
    ann = await site.world.register("ann", capabilities=["dig"])
    await site.world.admin.post(f"/api/v1/registry/agents/{ann}/suspend", json={"reason": "tried"})
    for body, expected in (
        (
            {"required_capabilities": ["dig"]},
            ["Why no agent", "ann is suspended: stentor agent activate ann", ">ann</a> is suspended,"],
        ),
        ({"required_capabilities": ["fly"]}, ["None has &#39;fly&#39;", "Known capabilities: dig."]),
        (
            {"required_capabilities": ["dig"], "agent_preference": ann},
            ["The requested agent is suspended, quarantined or archived."],
        ),
    ):
        answer = await site.world.admin.post("/api/v1/tasks", json={"type": "t", "input": "x", **body})
        page = await site.read(f"/tasks/{answer.json()['error']['details']['task_id']}")
        for text in expected:
            assert text in page, (body, text)
        assert page.index("<summary>Details</summary>") < page.index("Run again"), "the JSON is folded"


@requirement("dashboard.task-unrouted")
async def test_an_error_is_a_sentence_and_a_rejection_asks_for_a_reason(site: Site) -> None:
    ann = await site.world.register("ann", trust_tier="human")
    task_id = await site.world.submit(agent_preference=ann)
    assert re.search(r'<input name="reason"[^>]* required', await site.read(f"/tasks/{task_id}"))
    await site.send(f"/tasks/{task_id}/reject", reason="It would write outside.")
    assert "It would write outside." in await site.read(f"/tasks/{task_id}")


@requirement("retention.archived-task-is-gone")
async def test_the_page_of_an_archived_task_says_where_it_is(site: Site) -> None:
    agent = await site.world.register("ann")
    task = await site.world.do(agent)
    provenance_id = (await site.world.events(task))[0]["event_id"]
    await archive(site.world)
    for path in (f"/tasks/{task}", f"/provenance/{provenance_id}"):
        page = await site.read(path, 410)
        assert "Archived" in page, path
        assert "of the archive" in page, path
    assert task not in await site.read("/tasks")
    for path in ("/audit", "/provenance", "/"):
        await site.read(path)


@requirement("dashboard.page-tasks", "dashboard.page-calls")
async def test_only_those_who_may_read_a_model_call_are_led_to_it(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id = await site.world.submit()
    await site.world.claim(agent)
    infra = site.world.kernel.infra
    metadata = {"call_id": "c1", "model": "sea", "outcome": "ok", "key": "writer"}
    drafts = [EventDraft("llm_called", "llm", "Called sea: ok.", metadata, agent)]
    call = CallRow("c1", "default", "writer", agent, task_id, "chat", "openai", "sea", "ok", 1, 1, 0, 0, 1)

    def record(tx: Tx) -> None:
        infra.runlog.append(tx, "default", drafts, task_id=task_id)
        llm_store.insert_call(tx, call)

    await infra.db.write(record)
    for key, may_read, may_list in (("ADMIN", True, True), ("WRITER", True, False), ("READER", False, False)):
        page = await site.read(f"/tasks/{task_id}", key=key)
        assert '<span class="label">sea</span>' in page, key
        assert ('hx-get="/models/calls/c1"' in page) == may_read, key
        assert (f'href="/models/calls?task_id={task_id}"' in page) == may_list, key
        assert "<dt>Model calls</dt>" in page, key


@requirement("dashboard.task-chain")
async def test_the_page_of_a_task_says_what_its_agent_may_do_what_it_cost_and_where_the_proof_is(site: Site) -> None:
    tools = [{"name": "read_file", "operations": ["read"], "paths": ["notes/**"]}]
    agent = await site.world.register("ann", trust_tier="auto", sandbox_whitelist={"tools": tools})
    task_id = await site.world.do(agent, cost=0.12)  # of calls that it made itself
    page = await site.read(f"/tasks/{task_id}")
    order = ["Why this agent", "What it may do", "Trust tier auto.", "read_file", "notes/**", "No network hosts."]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert "<dt>Model calls</dt><dd>none recorded</dd>" in page
    assert re.search(r'<dt>Proof</dt><dd><a href="/provenance/[^"]+">its events in the signed log</a>', page)
    assert "What it may do" not in await site.read(f"/tasks/{task_id}", key="READER"), "only admins may read agents"
    refused = await site.world.admin.post(
        "/api/v1/tasks", json={"type": "x", "input": 1, "required_capabilities": ["y"]}
    )
    assert "What it may do" not in await site.read(f"/tasks/{refused.json()['error']['details']['task_id']}")


@requirement("dashboard.task-chain")
async def test_a_damaged_record_of_its_agent_does_not_take_the_page_of_a_task_away(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id = await site.world.do(agent)
    sql = Sql("update agents set sandbox_whitelist = '[' where agent_id = :agent")
    await site.world.kernel.infra.db.write(lambda tx: tx.run(sql, agent=agent))
    page = await site.read(f"/tasks/{task_id}")
    assert "Why this agent" in page
    assert "What it may do" not in page


@requirement("dashboard.page-tasks")
async def test_a_task_with_many_events_shows_the_first_and_the_last_ones(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MAX_EVENTS", 4)
    monkeypatch.setattr(tasks, "MAX_SUBTASKS", 1)
    agent = await site.world.register("ann")
    task_id = await site.world.submit()
    claim = await site.world.claim(agent)
    infra = site.world.kernel.infra
    drafts = [EventDraft("agent_logged", "execution", f"line {n}") for n in range(9)]
    await infra.db.write(lambda tx: infra.runlog.append(tx, "default", drafts, task_id=task_id))
    for title in ("One", "Two"):
        await site.world.submit(title=title, metadata={"parent_task_id": task_id})
    site.world.clock.advance(seconds=5)
    await site.world.admin.post(f"/api/v1/tasks/{task_id}/complete", json={"epoch": claim["epoch"], "result": 1})
    page = await site.read(f"/tasks/{task_id}")
    assert "<b>task started</b>" in page
    assert "<b>task completed</b>" in page
    assert re.search('<span class="label">Attempt 1</span><svg[^\n]*</svg><span class="n">5.0 s</span>', page)
    assert "line 3" not in page
    assert page.count("Events between the first 4 and the last 4 are not shown.") == 2
    assert "Only the first 1 of 2 subtasks are shown." in page
    monkeypatch.setattr(tasks, "MAX_EVENTS", 500)
    monkeypatch.setattr(tasks, "MAX_SUBTASKS", 2)
    page = await site.read(f"/tasks/{task_id}")
    assert "line 3" in page
    assert "not shown" not in page
    assert "subtasks are shown" not in page


@requirement("dashboard.page-tasks")
async def test_without_a_script_a_list_goes_on_at_a_page_of_its_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_list, "PAGE_SIZE", 1)
    await site.world.register()
    first, second = [await site.world.submit() for _ in range(2)]
    link = re.search(r'<a class="button" href="([^"]+)"[^>]*>Show more<', await site.read("/tasks?status=queued"))
    assert link
    address = html.unescape(link[1])
    page = await site.read(address)
    assert (first in page, second in page, "<h1>Tasks</h1>" in page) == (True, False, True)
    headers = {"HX-Request": "true", "X-Live": "1"}
    part = (await (await site.browser()).get(address, headers=headers)).text
    assert (first in part, "<thead>" in part, "<h1>" in part) == (True, True, False)
    assert "<thead>" not in await site.part(address)
    await site.world.admin.post(f"/api/v1/tasks/{first}/cancel")
    page = await site.read(address)
    assert ("Nothing follows" in page, 'href="/tasks?status=queued"' in page) == (True, True)


@requirement("dashboard.page-tasks")
async def test_events_have_a_day_where_no_heading_says_it(site: Site) -> None:
    task_id = await site.world.do(await site.world.register())
    day = datetime.fromtimestamp(site.world.clock.now() / SECOND, UTC)
    page = await site.read(f"/tasks/{task_id}")
    assert f"on {day:%Y-%m-%d}, times in UTC" in page
    assert f">{day:%Y-%m-%d} " not in page
    site.world.clock.advance(days=3)
    await site.world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": 1})
    root = (await site.world.task(task_id))["provenance_id"]
    for address in (f"/tasks/{task_id}", f"/provenance/{root}"):
        page = await site.read(address)
        for moment in (day, day + timedelta(days=3)):
            assert f">{moment:%Y-%m-%d} " in page
    assert f"on {day:%Y-%m-%d}, times" not in page


@requirement("dashboard.page-tasks")
async def test_titles_and_names_have_the_direction_of_their_script(site: Site) -> None:
    agent = await site.world.register("\u05e2\u05d5\u05d6\u05e8")
    task_id = await site.world.submit(title="\u05d3\u05d5\u05d7 (Q3)")
    for address in ("/tasks", f"/agents/{agent}"):
        assert re.search(rf'<a dir="auto" href="/tasks/{task_id}"[^>]*>\u05d3', await site.read(address))
    assert '<h1 dir="auto">\u05d3' in await site.read(f"/tasks/{task_id}")
    assert f'<a dir="auto" href="/agents/{agent}"' in await site.read("/agents")
    words = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"  # with a joiner, without which the word is another one
    assert f'name="q" value="{words}"' in await site.read("/tasks", q=words)


@requirement("dashboard.page-tasks")
async def test_a_right_to_left_name_does_not_mix_with_the_sentence_around_it(site: Site) -> None:
    name = "\u05e2\u05d5\u05d6\u05e8 \u05e8\u05d0\u05e9\u05d9"
    task_id = await site.world.do(await site.world.register(name))
    page = await site.read(f"/tasks/{task_id}")
    sentence = page.partition("Why this agent</h2>")[2].partition("</p>")[0]
    assert f"<bdi>{name}</bdi>" in sentence
    assert name not in sentence.replace(f"<bdi>{name}</bdi>", "")
    run = await site.read(re.search('href="(/provenance/[^"]+)"', page)[1])  # type: ignore[index]
    for shown in (page.partition('class="trail')[2], run.partition('class="trail')[2], await site.read("/audit")):
        assert f"<bdi>{name}</bdi>" in shown
    assert "<b>" not in render_sentence(f"<b> {name}")


@requirement("dashboard.page-tasks")
async def test_an_error_keeps_the_line_breaks_of_whoever_wrote_it(site: Site) -> None:
    traceback = 'Traceback:\n  File "a.py", line 1\nValueError: no'
    task_id = await site.world.do(await site.world.register("ann"), ok=False, error={"message": traceback})
    page = await site.read(f"/tasks/{task_id}")
    assert f'<p class="written mono">{html.escape(traceback, quote=False).replace(chr(34), "&#34;")}' in page
