"""The console, as somebody without JavaScript sees it."""

from __future__ import annotations

import re

import pytest

from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

TEXT = "Agents do tasks. Stentor routes each."


async def submit(site: Site, **fields: str) -> str:
    """The id of the task that an instruction became."""
    answer = await site.send("/console", 303, **{"instruction": TEXT, **fields})
    found = answer.headers["location"].removeprefix("/console/")
    assert found, answer.headers
    return str(found)


@requirement("dashboard.page-console")
async def test_an_instruction_becomes_a_task_of_the_key_that_signed_in(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id = await submit(site, capability="echo", agent=agent, priority="high", timeout="42")
    task = await site.world.task(task_id)
    assert (task["type"], task["required_capabilities"], task["agent_preference"]) == ("echo", ["echo"], agent)
    assert task["metadata"]["priority"] == "high"
    received = (await site.world.events(task_id))[0]
    assert received["metadata"]["by"] == "admin"
    claim = await site.world.claim(agent)
    assert (claim["input"], claim["timeout_seconds"]) == (TEXT, 42)


@requirement("dashboard.page-console")
async def test_a_run_shows_who_was_chosen_and_streams_until_its_result_is_there(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.world.register("bob", alignment_score=0.1)
    task_id = await submit(site, capability="echo")
    page = await site.read(f"/console/{task_id}")
    assert f'data-stream="/tasks/{task_id}/stream"' in page
    assert "the best of 2 eligible agents" in page
    assert page.count(TEXT) >= 3  # the run, the form for the next one, the newest tasks
    claim = await site.world.claim(agent)
    body = {"epoch": claim["epoch"], "result": {"text": "**Done** <script>alert(1)</script>"}}
    await site.world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=body)
    part = await site.part(f"/console/{task_id}")
    assert "<strong>Done</strong> &lt;script&gt;" in part
    assert "data-stream" not in part
    assert "<form" not in part
    assert f"/tasks/{task_id}" in part


@requirement("dashboard.page-console")
async def test_a_refused_routing_says_its_code_its_sentence_and_what_to_do(site: Site) -> None:
    task_id = await submit(site, capability="fly")
    page = await site.read(f"/console/{task_id}")
    assert "No eligible agent" in page
    assert "<code>ROUTING_CAPABILITY_UNAVAILABLE</code>" in page
    assert "register an agent with this one" in page
    assert (await site.world.task(task_id))["outcome_class"] == "routing_failed"


@requirement("dashboard.page-console")
async def test_a_failure_is_told_in_a_sentence(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.world.submit()
    claim = await site.world.claim(ann)
    error = {"code": "PAPER_JAM", "message": "The paper jammed."}
    body = {"epoch": claim["epoch"], "error": error}
    await site.world.admin.post(f"/api/v1/tasks/{claim['task_id']}/fail", json=body)
    page = await site.read(f"/console/{claim['task_id']}")
    assert re.findall(r"<h3>(.+)</h3>\s*<p>(.+?) <code>", page) == [("The task failed", "The paper jammed.")]


@requirement("dashboard.page-console")
async def test_no_text_of_a_task_can_change_the_direction_of_what_is_read(site: Site) -> None:
    ann = await site.world.register("ann")
    for task_input in ("Pay \u202e001", {"pay": "\u202e001"}):
        await site.world.submit(input=task_input)
        claim = await site.world.claim(ann)
        error = {"code": "PAPER_JAM", "message": "Paid \u202e002."}
        body = {"epoch": claim["epoch"], "error": error}
        await site.world.admin.post(f"/api/v1/tasks/{claim['task_id']}/fail", json=body)
        for path in ("console", "tasks"):
            page = re.sub(r"<textarea.*?</textarea>", "", await site.read(f"/{path}/{claim['task_id']}"), flags=re.S)
            assert "\\u202e001" in page, path
            assert "Paid \\u202e002." in page, path
            assert "\u202e" not in page, path


@requirement("dashboard.page-console")
async def test_the_newest_tasks_are_listed_with_what_they_were_asked_escaped(site: Site) -> None:
    await site.world.register("ann")
    await site.world.submit(input={"text": "<b>bold</b>"})
    page = await site.read("/console")
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<b>bold" not in page
    part = await site.part("/console")
    assert "<textarea" not in part
    assert "queued" in part


@requirement("dashboard.page-console")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"instruction": ""}, "instruction: "),
        ({"agent": "nobody"}, "agent: no agent has this name"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": "0"}, "timeout"),
        ({"priority": "urgent"}, "priority"),
        ({"capability": "a,b"}, "capability: not allowed in an envelope"),
        ({"instruction": "x\0y"}, "NUL"),
    ],
)
async def test_what_the_gateway_would_refuse_keeps_the_form_filled(
    site: Site, fields: dict[str, str], said: str
) -> None:
    answer = await site.send("/console", 400, **{"instruction": TEXT, **fields})
    assert 'role="alert"' in answer.text
    assert said in answer.text
    assert fields.get("instruction") is not None or f">{TEXT}</textarea>" in answer.text


@requirement("dashboard.page-console")
async def test_an_agent_may_be_named_by_whoever_cannot_list_agents(site: Site) -> None:
    agent = await site.world.register("ann")
    page = await site.read("/console", key="WRITER")
    assert '<input name="agent"' in page
    assert "<select" in page  # of priorities
    answer = await site.send("/console", key="WRITER", instruction=TEXT, agent="ann")
    task = await site.world.task(answer.headers["location"].removeprefix("/console/"))
    assert task["assigned_agent"] == agent
    assert f'<option value="{agent}">ann</option>' in await site.read("/console")


@requirement("dashboard.page-console")
async def test_a_reader_sees_runs_and_no_form(site: Site) -> None:
    await site.world.register("ann")
    task_id = await submit(site)
    for path in ("/console", f"/console/{task_id}"):
        assert "<textarea" not in await site.read(path, key="READER")
    await site.send("/console", 403, key="READER", instruction=TEXT)


@requirement("dashboard.page-console")
async def test_a_run_of_another_tenant_is_not_found(site: Site) -> None:
    await site.world.register("ann")
    task_id = await submit(site)
    for path in (f"/console/{task_id}", "/console/none", "/console/a%2Fb", "/console/%00", f"/console/{'x' * 300}"):
        page = await site.read(path, 404, key="OTHER")
        assert TEXT not in page
    assert TEXT not in await site.read("/console", key="OTHER")
