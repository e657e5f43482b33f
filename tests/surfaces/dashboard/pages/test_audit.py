"""The audit page, and that signing in is recorded."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import httpx
import pytest

from stentor.surfaces.dashboard.pages.access.audit import AuditLink, present
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


@requirement("audit.page", "audit.sign-ins")
async def test_a_sign_in_and_changes_are_on_the_page_with_who_did_it(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.world.do(agent)
    page = await site.read("/audit")
    assert "admin signed in to the dashboard." in page
    assert f'href="/agents/{agent}"' in page
    assert "Agent ann registered" in page
    only = await site.part("/audit", category="sign-ins")
    assert "signed in" in only
    assert "registered" not in only
    assert "Nothing found" in await site.read("/audit", key="OTHER", category="refusals")  # but a sign-in
    await site.read("/audit", 403, key="WRITER")
    event = re.search(r'href="(/provenance/[^"]+)"', page)
    assert event
    await site.read(event[1])


def rows_of(page: str) -> list[str]:
    """The text of each row, without marks."""
    rows = re.findall(r"<tr data-row>(.*?)</tr>", page, re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", row.replace("<wbr>", ""))).split()) for row in rows]


@requirement("audit.page")
async def test_each_row_names_who_did_it_and_what_it_was_about(site: Site) -> None:
    world = site.world
    agent = await world.register("ann")
    call = {"tool": "shell", "operation": "run", "path": "/etc/passwd"}
    await world.admin.post(f"/api/v1/registry/agents/{agent}/authorize", json=call)
    (refusal,) = rows_of(await site.part("/audit", category="refusals"))
    assert "ann" in refusal
    assert refusal.startswith("The tool 'shell'")
    assert "/etc/passwd" in refusal
    task = {"type": "paint", "title": "Paint the fence", "input": {}, "required_capabilities": ["paint"]}
    await world.admin.post("/api/v1/tasks", json=task)
    refusal, _ = rows_of(await site.part("/audit", category="refusals"))
    assert "Paint the fence" in refusal
    assert "admin" in refusal
    await world.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.46})
    assert rows_of(await site.part("/audit", category="changes"))[0].startswith("Trust of ann is 0.46. admin ")
    hook = {"url": "https://hooks.example.com/in", "events": ["task.*"]}
    made = (await world.admin.post("/api/v1/webhooks", json=hook)).json()
    await world.admin.post("/api/v1/keys", json={"name": "ci", "role": "viewer"})
    page = await site.part("/audit", category="changes")
    assert 'href="/keys/ci"' in page
    assert f'href="/webhooks/{made["id"]}" title="https://hooks.example.com/in"' in page
    assert rows_of(page)[1].startswith("Webhook to hooks.example.com subscribed.")
    await world.admin.delete(f"/api/v1/webhooks/{made['id']}")
    page = await site.part("/audit", category="changes")
    assert f"/webhooks/{made['id']}" not in page  # its page is gone
    assert "hooks.example.com deleted" in rows_of(page)[0]


@requirement("audit.page")
def test_what_is_for_everybody_is_named_in_words() -> None:
    event = {"event_type": "budget_changed", "by": "dana", "agent_id": None, "task_id": None, "message": "Set."}
    row = present(event | {"metadata": {"kind": "key", "subject": "*"}}, {}, {}, {}, ())
    assert row.about == AuditLink("each key", "/models/budgets")
    event |= {"event_type": "model_route_changed", "metadata": {"kind": "fallbacks", "name": "*"}}
    assert present(event, {}, {}, {}, ()).about == AuditLink("every model", "/models/providers")


@requirement("audit.page")
def test_ids_in_a_sentence_are_short_and_those_of_unknown_agents_too() -> None:
    one, other = "01a22ae8-529b-7198-a353-0cc7cb3dcb05", "01a22ae8-4e2c-7214-a051-4eb279f5167f"
    event = {"event_type": "update_deployed", "by": "dana", "agent_id": other, "task_id": None}
    event |= {"message": f"Update {one} of {other} applied.", "metadata": {"update_id": one}}
    row = present(event, {}, {}, {}, ())
    assert row.event["message"] == "Update 0cc7cb3dcb05 of 4eb279f5167f applied."
    assert row.about == AuditLink("update of 4eb279f5167f", f"/governance/updates/{one}")
    assert present(event, {other: "ann"}, {}, {}, ()).event["message"] == "Update 0cc7cb3dcb05 of ann applied."


@requirement("audit.page", "audit.filters")
async def test_the_page_is_searched_and_limited_to_days(site: Site) -> None:
    await site.world.register("ann")
    await site.world.register("ben", capabilities=["b"])
    assert len(rows_of(await site.part("/audit", q="ben"))) == 1
    nothing = await site.read("/audit", q="nothing of the kind", category="changes")
    assert "Nothing found" in nothing
    assert 'value="nothing of the kind"' in nothing
    tomorrow = (datetime.now(UTC) + timedelta(days=2)).date().isoformat()
    assert rows_of(await site.part("/audit", **{"from": tomorrow})) == []
    assert len(rows_of(await site.part("/audit", to=tomorrow, category="changes"))) == 2
    for path in ("/audit", "/models/calls"):
        assert "from: must be a day such as 2026-11-20." in await site.read(path, 400, **{"from": "2026-13-45"})
    last, first = "9999-12-31", "0001-01-01"  # of all days that a date can be
    assert len(rows_of(await site.part("/audit", to=last, category="changes", **{"from": first}))) == 2
    assert "No call" in await site.read("/models/calls", to=last)


@requirement("audit.page")
async def test_the_page_goes_on_where_it_ends(site: Site) -> None:
    for n in range(52):
        await site.world.register(f"a{n:02}", capabilities=[f"c{n}"])
    page = await site.part("/audit", category="changes")
    following = re.search(r'hx-get="/audit\?([^"]+)"', page)
    assert following
    params = httpx.QueryParams(following[1].replace("&amp;", "&"))
    rest = await site.part("/audit", **dict(params))
    assert "Agent a01 registered" in rest  # not the name alone, which may be a part of an id
    assert "Agent a40 registered" not in rest


@requirement("audit.sign-ins")
async def test_a_sign_in_that_cannot_be_recorded_keeps_nobody_out(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.world.runlog.broken = True
    await site.read("/tasks", key="READER")
    assert "sign_in: not recorded" in caplog.text
