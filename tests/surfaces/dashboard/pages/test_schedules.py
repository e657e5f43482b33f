"""The pages of schedules: what is made, changed and run there, and what a key may not do is not offered."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site, shown

PATH = "/api/v1/schedules"
FORM = {"name": "morning", "cron": "30 6 * * MON-FRI", "timezone": "Europe/Rome", "missed": "one", "overlap": "allow"}
FORM |= {"type": "echo", "capability": "echo", "title": "", "input": "hello"}


async def stored(site: Site, name: str = "morning") -> dict[str, Any]:
    answer = await site.world.admin.get(f"{PATH}/{name}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def change(site: Site, status: int = 303, /, **fields: str) -> httpx.Response:
    """Send the form that changes a schedule, as the browser has it now."""
    opened = shown(await site.read("/schedules/morning"), "/schedules/morning")
    return await site.send("/schedules/morning", status, **opened, **fields)


@requirement("dashboard.page-schedules")
async def test_a_schedule_is_made_and_shown(site: Site) -> None:
    assert "No schedules yet" in await site.read("/schedules")
    made = await site.send("/schedules", **FORM | {"input": '{"text": "<b>hi</b>"}', "capability": "echo, write"})
    assert made.headers["location"] == "/schedules/morning?notice=saved"
    task = (await stored(site))["task"]
    assert (task["input"], task["required_capabilities"]) == ({"text": "<b>hi</b>"}, ["echo", "write"])
    page = await site.read("/schedules/morning")
    for text in ("At 06:30 on Monday through Friday", "Europe/Rome", "one run for all that were missed", "Run now"):
        assert text in page
    assert "<b>hi</b>" not in page
    assert page.count(" 06:30 Europe/Rome</span>") == 5  # not in UTC, where it is another hour
    assert "At 06:30 on Monday through Friday" in await site.read("/schedules")


@requirement("dashboard.page-schedules")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cron": "every day"}, "cron: must have five fields"),
        ({"timezone": "Rome"}, "timezone: &#39;Rome&#39; is not a time zone"),
        ({"name": "Morning"}, "name: must be 1 to 63 characters"),
        ({"type": ""}, "type: "),
        ({"input": '{"text": '}, "The input looks like JSON but is not valid"),
        ({"missed": "some"}, "missed: "),
    ],
)
async def test_what_is_wrong_is_shown_above_the_form(site: Site, fields: dict[str, str], message: str) -> None:
    answer = await site.send("/schedules", 400, **FORM | fields)
    assert message in answer.text
    assert f'name="cron" value="{(FORM | fields)["cron"]}"' in answer.text
    assert (await site.world.admin.get(PATH)).json()["total"] == 0


@requirement("dashboard.page-schedules")
async def test_a_schedule_is_run_paused_resumed_changed_and_deleted(site: Site) -> None:
    await site.world.register()
    await site.send("/schedules", **FORM)
    run = await site.send("/schedules/morning/run")
    assert run.headers["location"] == "/schedules/morning?notice=run"
    (listed,) = (await site.world.admin.get(f"{PATH}/morning/runs")).json()["runs"]
    assert f'href="/tasks/{listed["task_id"]}"' in await site.read("/schedules/morning")
    assert 'href="/schedules/morning"' in await site.read(f"/tasks/{listed['task_id']}")
    await site.send("/schedules/morning/pause")
    assert "None while it is paused" in await site.read("/schedules/morning")
    await site.send("/schedules/morning/resume")
    await change(site, **FORM | {"cron": "@daily", "title": "The day"})
    changed = await stored(site)
    assert (changed["cron"], changed["task"]["title"], changed["paused"]) == ("@daily", "The day", False)
    wrong = await change(site, 400, **FORM | {"cron": "61 * * * *"})
    assert "is not a cron expression: bad minute" in wrong.text
    assert (await site.send("/schedules/morning/delete")).headers["location"] == "/schedules?notice=schedule-deleted"
    await site.read("/schedules/morning", 404)


@requirement("dashboard.page-schedules", "schedules.key")
async def test_a_changed_time_leaves_the_task_to_its_owner_and_a_changed_task_does_not(site: Site) -> None:
    body: dict[str, Any] = {
        "name": "morning",
        "cron": "@daily",
        "task": {"type": "echo", "input": "hello", "timeout_seconds": 7},
    }
    body["task"] |= {"metadata": {"priority": "high"}, "required_capabilities": ["echo"]}
    assert (await site.world.clients["WRITER"].post(PATH, json=body)).status_code == 201
    await change(site, **FORM)
    first = await stored(site)
    assert (first["cron"], first["runs_as"]) == (FORM["cron"], "writer")
    await change(site, **FORM | {"input": "other"})
    second = await stored(site)
    assert (second["runs_as"], second["task"]["input"], second["task"]["timeout_seconds"]) == ("admin", "other", 7)
    assert second["task"]["metadata"] == {"priority": "high"}


@requirement("dashboard.page-schedules")
async def test_a_changed_task_keeps_its_limit_and_its_session(site: Site) -> None:
    beside: dict[str, Any] = {"limit": {"key": "customer-42", "max": 2}, "session": "chat-1"}
    body = {"name": "morning", "cron": "@daily", "task": {"type": "echo", "input": "hello", **beside}}
    assert (await site.world.admin.post(PATH, json=body)).status_code == 201
    before = (await stored(site))["task"]
    await change(site, **FORM | {"input": "other"})
    after = (await stored(site))["task"]
    assert (after["input"], after["metadata"]) == ("other", before["metadata"])
    assert "customer-42" in str(after)
    assert "chat-1" in str(after)


@requirement("dashboard.page-schedules")
async def test_a_run_that_no_agent_may_have_says_so(site: Site) -> None:
    await site.send("/schedules", **FORM)
    denied = await site.send("/schedules/morning/run")
    assert denied.headers["location"] == "/schedules/morning?notice=run-denied"
    assert 'class="status denied"' in await site.read("/schedules/morning")


@requirement("dashboard.page-schedules")
async def test_who_only_reads_is_offered_no_action(site: Site) -> None:
    await site.send("/schedules", **FORM)
    for path in ("/schedules", "/schedules/morning"):
        page = await site.read(path, key="READER")
        assert '<form method="post" action="/schedules' not in page
    for path in ("/schedules/morning/pause", "/schedules/morning/run", "/schedules/morning/delete"):
        await site.send(path, 403, key="READER")


@requirement("dashboard.page-schedules", "schedules.key")
async def test_an_input_that_stays_is_sent_as_it_is_stored(site: Site) -> None:
    for text in ("line one\nline two", '{"a": 1}', " 5"):
        task = {"type": "echo", "input": text, "required_capabilities": ["a,b"]}
        body: dict[str, Any] = {"name": "morning", "cron": "@daily", "task": task}
        assert (await site.world.clients["WRITER"].post(PATH, json=body)).status_code == 201
        sent = {"type": "echo", "capability": "a,b", "title": "", "input": text.strip().replace("\n", "\r\n")}
        await change(site, **FORM | sent)
        kept = await stored(site)
        assert (kept["cron"], kept["task"]["input"], kept["runs_as"]) == (FORM["cron"], text, "writer")
        await site.world.admin.delete(f"{PATH}/morning")


@requirement("dashboard.page-schedules")
async def test_a_form_that_is_older_than_the_schedule_changes_nothing(site: Site) -> None:
    await site.send("/schedules", **FORM)
    opened = shown(await site.read("/schedules/morning"), "/schedules/morning")
    site.world.clock.advance(seconds=1)
    assert (await site.world.admin.patch(f"{PATH}/morning", json={"overlap": "skip"})).status_code == 200
    late = await site.send("/schedules/morning", 409, **opened, **FORM | {"cron": "@daily"})
    assert "Someone else changed this schedule" in late.text
    assert (await stored(site))["cron"] == FORM["cron"]
    assert 'name="cron" value="@daily"' in late.text, "what was typed"
    assert '<option value="skip" selected>skip the next run' in late.text, "what somebody else changed"
    merged = shown(late.text, "/schedules/morning") | FORM | {"cron": "@daily", "overlap": "skip"}
    await site.send("/schedules/morning", **merged)
    assert (await stored(site))["cron"] == "@daily"


@requirement("dashboard.page-schedules")
@pytest.mark.parametrize("wrong", [{"timezone": "Mars/X"}, {"input": '{"a":x'}])
async def test_a_refused_change_keeps_what_was_typed(site: Site, wrong: dict[str, str]) -> None:
    await site.send("/schedules", **FORM)
    page = (await change(site, 400, **FORM | {"cron": "@daily", "title": "The day"} | wrong)).text
    assert 'name="cron" value="@daily"' in page
    assert 'name="title" value="The day"' in page
    await site.send("/schedules/morning", **shown(page, "/schedules/morning"), **FORM | {"cron": "@daily"})
    assert (await stored(site))["cron"] == "@daily"


@requirement("dashboard.page-schedules")
async def test_no_page_links_a_schedule_that_was_deleted(site: Site) -> None:
    await site.world.register(capabilities=["echo"])
    await site.send("/schedules", **FORM)
    await site.send("/schedules/morning/run")
    (run,) = (await site.world.admin.get(f"{PATH}/morning/runs")).json()["runs"]
    link, pages = 'href="/schedules/morning"', ("/", "/audit", f"/tasks/{run['task_id']}")
    assert [link in await site.read(path) for path in pages] == [True] * 3
    await site.send("/schedules/morning/delete")
    assert [link in await site.read(path) for path in pages] == [False] * 3
    assert "morning was deleted by admin" in await site.read("/")
