"""The pages of provenance, as somebody without JavaScript sees them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stentor.core.db import Sql
from stentor.surfaces.dashboard.pages import provenance as provenance_pages
from stentor.surfaces.dashboard.presenters import provenance_view
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

ID = "01a1fe98-0433-77c0-b27e-{:012x}"
EDIT = Sql("update events set message = 'Nothing happened.' where event_id = :event_id")


async def ran(site: Site, **fields: Any) -> tuple[str, list[dict[str, Any]]]:
    """A task that was done, and its events."""
    task_id = await site.world.do(await site.world.register(), **fields)
    return task_id, await site.world.events(task_id)


async def sign(site: Site) -> dict[str, Any]:
    answer = await site.world.admin.post("/api/v1/provenance/checkpoint")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def edit(site: Site, sql: Sql, **values: Any) -> None:
    await site.world.kernel.infra.db.write(lambda tx: tx.run(sql, **values))


def text(html: str) -> str:
    """What is read, in one line."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@requirement("dashboard.page-provenance")
async def test_the_page_tells_what_is_numbered_what_waits_and_what_is_signed(site: Site) -> None:
    assert "No runs yet" in await site.read("/provenance")
    task_id, events = await ran(site)
    before = text(await site.read("/provenance"))
    assert "Events in the log 0" in before
    assert f"Being added {len(events) + 2}, the oldest from" in before, "of the agent, and of the sign-in"
    assert "Nothing is signed yet" in before
    signed = await sign(site)
    page = await site.read("/provenance")
    after = text(page)
    assert f"Events in the log {signed['size']} Signed all" in after
    assert "Being added" not in after
    assert f'class="copy">{signed["root"].replace("+", "&#43;")}<' in page or f'class="copy">{signed["root"]}<' in page
    assert f"Key id {signed['key'].split('+')[1]}" in after
    assert "stentor provenance verify" in after
    assert f'href="/provenance/{task_id}"' in page
    await site.world.submit()
    part = await site.part("/provenance", part="log")
    assert "Signed all" in text(part)
    assert "Being added 3" in text(part)
    assert "<html" not in part
    assert "<html" not in await site.part("/provenance")
    assert f'href="/provenance/{task_id}"' in await site.read("/provenance?part=log"), "the whole page, opened by hand"


@requirement("dashboard.provenance-intact")
async def test_the_page_says_whether_the_newest_events_are_as_they_were_recorded(site: Site) -> None:
    _, events = await ran(site)
    signed = await sign(site)
    intact = text(await site.read("/provenance"))
    assert "Run log intact" in intact
    assert f"All {signed['size']} events are as they were recorded, and the log matches its last signature" in intact
    await edit(site, EDIT, event_id=events[3]["event_id"])
    await edit(site, Sql("delete from events where event_id = :event_id"), event_id=events[1]["event_id"])
    await site.world.submit()  # a check is shared until the log grows
    await site.world.kernel.provenance.sequencer.drain()
    changed = await site.read("/provenance")
    assert "Run log changed" in text(changed)
    assert f'<a href="/provenance/{events[3]["event_id"]}">Event' in changed
    assert "was changed." in changed
    assert "was removed." in changed
    other = await site.read("/provenance", key="OTHER")
    assert "was changed." in other
    assert events[3]["event_id"] not in other


@requirement("dashboard.provenance-intact")
async def test_hashes_that_were_rewritten_with_the_event_no_longer_fit_the_signature(site: Site) -> None:
    await ran(site)
    await sign(site)
    await edit(site, Sql("update provenance_tiles set hashes = :hashes where level = 0"), hashes=b"x" * 32 * 3)
    page = text(await site.read("/provenance"))
    assert "Run log changed" in page
    assert "intact" not in page


@requirement("dashboard.page-provenance")
async def test_the_search_goes_to_the_run_of_a_task_or_an_event_and_says_in_place_what_is_not_there(site: Site) -> None:
    task_id, events = await ran(site)
    browser = await site.browser()
    for wanted, led in ((task_id, events[0]), (events[2]["event_id"], events[2])):
        answer = await browser.get("/provenance", params={"q": f" {wanted} "})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/provenance/{led['event_id']}")
    for missing in ("nothing", "a/b?c#d", "\0", "%", "x" * 3000, "<b>"):
        page = await site.read("/provenance", q=missing)
        assert "No event or task of this tenant has the id" in page
        assert "<b>" not in page.replace('<b class="mono">', "").split("not-found")[2].split("</p>")[0]
    other = await site.read("/provenance", key="OTHER", q=task_id)
    assert "No event or task" in other


@requirement("dashboard.page-provenance")
async def test_only_an_admin_signs_a_checkpoint(site: Site) -> None:
    await ran(site)
    assert "Sign the log now" not in await site.read("/provenance", key="READER")
    await site.send("/provenance/checkpoint", 403, key="READER")
    assert "Nothing is signed yet" in await site.read("/provenance")
    answer = await site.send("/provenance/checkpoint")
    assert answer.headers["location"] == "/provenance?notice=signed"
    page = await site.read("/provenance", notice="signed")
    assert "Signed: the log with all events so far." in page
    assert "Signed all" in text(page)


@requirement("dashboard.page-provenance")
async def test_a_run_is_shown_event_by_event_with_the_one_that_was_asked_for_and_links(site: Site) -> None:
    task_id, events = await ran(site)
    agent_id = (await site.world.task(task_id))["assigned_agent"]
    wanted = events[1]
    page = await site.read(f"/provenance/{wanted['event_id']}")
    places = [page.index(event["event_id"]) for event in events[2:]]
    assert places == sorted(places)
    assert page.count('id="wanted"') == 1
    chosen = page.split('id="wanted"')[1].split("</details>")[0]
    assert wanted["event_id"] in chosen
    assert wanted["timestamp"] in chosen
    assert "routing decision" in chosen
    assert f'<a href="/tasks/{task_id}">' in chosen
    assert f'<a dir="auto" href="/agents/{agent_id}">' in chosen
    of_task = await site.read(f"/provenance/{task_id}")
    assert events[0]["event_id"] in of_task.split('id="wanted"')[1].split("</details>")[0]
    part = await site.part(f"/provenance/{task_id}")
    assert "task completed" in part
    assert "<html" not in part
    assert "Proof that it is" not in part


@requirement("dashboard.page-provenance")
async def test_a_long_run_has_the_details_of_the_event_that_was_asked_for_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, events = await ran(site)
    asked = events[2]["event_id"]
    assert (await site.read(f"/provenance/{asked}")).count("<dt>Index in the log</dt>") == len(events)
    monkeypatch.setattr(provenance_pages, "MAX_OPENED", len(events) - 1)
    page = await site.read(f"/provenance/{asked}")
    assert page.count("<dt>Index in the log</dt>") == 1
    assert all(f'<a href="/provenance/{event["event_id"]}">' in page for event in events if event["event_id"] != asked)


@requirement("dashboard.page-provenance")
async def test_the_run_of_a_message_nests_the_task_that_it_made(site: Site) -> None:
    await site.world.register()
    body = json.dumps({"task": {"type": "echo", "input": "hello"}})
    header = {"mode": "direct", "context": "c", "priority": "low", "actionType": "execute", "targetZone": "kernel"}
    sent = await site.world.admin.post("/api/v1/atp/send", json={"header": header, "payload": {"content": body}})
    assert sent.status_code == 202, sent.text
    while not (found := (await site.world.admin.get("/api/v1/tasks")).json()["tasks"]):
        pass
    page = await site.read(f"/provenance/{found[0]['task_id']}")
    started = page.index("message started")
    nested = page.index('<ol class="trail run">', started)
    assert started < nested < page.index("prompt received", started)
    assert f'<a href="/messages/{sent.json()["messageId"]}">' in page


@requirement("dashboard.page-provenance")
async def test_an_event_without_a_number_says_when_it_gets_one_and_then_has_its_proof(site: Site) -> None:
    task_id, _ = await ran(site)
    for page in (
        await site.read(f"/provenance/{task_id}", check="1"),
        await site.part(f"/provenance/{task_id}", part="proof"),
    ):
        assert "This event is not in the log yet. Events are added about once a second" in page
        assert "Verify this event" not in page
    await site.world.kernel.provenance.sequencer.drain()
    part = await site.part(f"/provenance/{task_id}", part="proof")
    assert "Verify this event" in part
    assert "every 3s" not in part
    checked = text(await site.read(f"/provenance/{task_id}", check="1"))
    assert "Consistent with the tree; whether this tree is the signed one could not be verified." in checked
    assert "The next signed checkpoint covers it" in checked


@requirement("dashboard.page-provenance")
async def test_a_check_says_what_was_verified(site: Site) -> None:
    _, events = await ran(site)
    signed = await sign(site)
    proof = (await site.world.admin.get(f"/api/v1/provenance/{events[0]['event_id']}/proof")).json()
    plain = text(await site.read(f"/provenance/{events[0]['event_id']}"))
    assert "It fits" not in plain
    for value in (proof["leaf_hash"], proof["root"], *proof["hashes"], f"Index {proof['number']} of {proof['size']}"):
        assert value in plain
    for event in events:
        checked = text(await site.read(f"/provenance/{event['event_id']}", check="1", key="READER"))
        assert "Verified: the event is in the signed log, as recorded." in checked
        assert f"to the root of the tree of {signed['size']} events." in checked
        assert f"events is signed by the key {signed['key'].split('+')[1]}." in checked
        assert "✗" not in checked


@requirement("dashboard.page-provenance")
async def test_an_event_that_was_changed_behind_the_service_is_said_not_to_fit(site: Site) -> None:
    _, events = await ran(site)
    await sign(site)
    await edit(site, EDIT, event_id=events[3]["event_id"])
    changed = text(await site.read(f"/provenance/{events[3]['event_id']}", check="1"))
    assert "Failed: the log" in changed
    assert "The event was changed: number" in changed
    assert "The recorded hash leads to the root: the tree itself is unchanged." in changed
    assert "stentor provenance verify" in changed
    assert "Verified: the event is" in text(await site.read(f"/provenance/{events[2]['event_id']}", check="1"))


@requirement("dashboard.page-provenance")
async def test_a_checkpoint_that_was_changed_is_not_believed(site: Site) -> None:
    task_id, _ = await ran(site)
    signed = await sign(site)
    forged = signed["note"].replace(signed["root"], "A" * 43 + "=")
    await edit(site, Sql("update provenance_checkpoints set note = :note"), note=forged)
    assert "The checkpoint is invalid: its signature is wrong." in await site.read(f"/provenance/{task_id}", check="1")
    await edit(site, Sql("update provenance_checkpoints set note = 'nonsense'"))
    assert "The checkpoint is invalid" in await site.read(f"/provenance/{task_id}", check="1")


@requirement("dashboard.page-provenance")
async def test_a_damaged_tree_is_told_in_the_place_of_the_proof(site: Site) -> None:
    task_id, _ = await ran(site)
    await sign(site)
    await edit(site, Sql("delete from provenance_tiles"))
    page = await site.read(f"/provenance/{task_id}", check="1")
    assert "of the run log&#39;s tree is missing" in page
    assert "task completed" in page
    await site.world.submit()
    site.world.kernel.provenance.sequencer._frontier = None  # as after a restart: it reads the tree again
    assert "stentor provenance verify" in (await site.send("/provenance/checkpoint", 500)).text


@requirement("dashboard.page-provenance")
async def test_a_run_of_another_tenant_is_404_and_texts_of_agents_are_escaped(site: Site) -> None:
    await site.world.register()
    task_id = await site.world.submit(type="echo <script>alert(1)</script>")
    await sign(site)
    root = (await site.world.events(task_id))[0]["event_id"]
    for page in (await site.read(f"/provenance/{root}", check="1"), await site.read("/provenance")):
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page
    for path in (root, task_id, f"{root}?check=1", f"{root}?part=proof", "nothing", "a%2Fb", "a/b", "%00", "x" * 300):
        answer = await (await site.browser("OTHER")).get(f"/provenance/{path}")
        assert answer.status_code in (400, 404), path
        assert "routing decision" not in answer.text


def event(n: int, parent: int | None, task: str | None = None, kind: str = "tool_called") -> dict[str, Any]:
    ids = {"provenance_id": ID.format(n), "parent_provenance_id": None if parent is None else ID.format(parent)}
    return {**ids, "task_id": task, "agent_id": None, "event_type": kind, "metadata": {}}


def drawn(events: list[dict[str, Any]]) -> str:
    """`(1 (2 3))` and so on: a parenthesis is a list."""
    signs = {"list": "(", "end": ")", "done": ";"}
    found = (
        signs.get(mark.kind) or str(int((mark.event or {})["provenance_id"][-12:], 16)) for mark in events_of(events)
    )
    return " ".join(found)


def events_of(events: list[dict[str, Any]]) -> list[provenance_view.TreeMarkup]:
    return list(provenance_view.walk_tree(events))


def test_a_chain_is_one_list_and_a_branch_is_nested_in_the_event_that_led_to_it() -> None:
    chain = [event(1, None, "a"), event(2, 1, "a"), event(3, 2, "a")]
    assert drawn(chain) == "( 1 ; 2 ; 3 ; )"
    assert drawn([*chain, event(4, 2, "b"), event(5, 4, "b")]) == "( 1 ; 2 ( 4 ; 5 ; ) ; 3 ; )"


def test_events_whose_parents_are_missing_or_in_a_circle_are_shown_too_and_once() -> None:
    odd = [event(1, None, "a"), event(2, 9, "a"), event(3, 4, "b"), event(4, 3, "b")]
    assert drawn(odd) == "( 1 ; 2 ; 3 ; 4 ; )"


def test_a_run_of_a_thousand_branches_in_branches_is_drawn_to_a_depth() -> None:
    deep = [event(n, n - 1 if n else None, f"task-{n}") for n in range(1000)]
    marks = events_of(deep)
    assert sum(mark.kind == "event" for mark in marks) == sum(mark.kind == "done" for mark in marks) == 1000
    assert sum(mark.kind == "list" for mark in marks) == sum(mark.kind == "end" for mark in marks)
    assert sum(mark.kind == "list" for mark in marks) == provenance_view.MAX_NESTING + 1


def test_links_lead_only_to_what_ids_name() -> None:
    memory = event(1, None, kind="memory_written") | {
        "metadata": {"path": "a b/ü.md", "message_id": 3, "update_id": "x/y"}
    }
    assert [link.address for link in provenance_view.event_links(memory)] == [
        "/governance/updates/x%2Fy",
        "/memory/note?path=a+b%2F%C3%BC.md",
    ]
    assert provenance_view.event_links(event(2, None) | {"metadata": ["no", "object"]}) == []


async def test_a_check_needs_the_bytes_of_the_event_that_was_asked_for(site: Site) -> None:
    _, events = await ran(site)
    signed = await sign(site)
    first, second = [
        (await site.world.admin.get(f"/api/v1/provenance/{one['event_id']}/proof")).json() for one in events[:2]
    ]
    swapped = provenance_view.check_proof({**second, "provenance_id": first["provenance_id"]}, signed["key"], None)
    assert (swapped.verdict, swapped.steps[0].is_valid) == ("wrong", False)
    cut = provenance_view.check_proof({**first, "hashes": first["hashes"][:-1]}, signed["key"], None)
    assert cut.verdict == "wrong"
    assert provenance_view.check_proof(first, None, None).verdict == "unsigned"
    assert provenance_view.check_proof(first, signed["key"], None).verdict == "fits"
    archived = provenance_view.check_proof({**first, "event": None}, signed["key"], None)
    assert (archived.verdict, "only its hash" in archived.steps[0].text) == ("unsigned", True)
    other = provenance_view.check_proof({**first, "root": "A" * 43 + "="}, signed["key"], None)
    assert "another root" in other.steps[-2].text


@pytest.mark.parametrize("recorded", ["zz", "", "00" * 32])
async def test_a_recorded_hash_of_any_kind_is_judged(site: Site, recorded: str) -> None:
    _, events = await ran(site)
    await sign(site)
    proof = (await site.world.admin.get(f"/api/v1/provenance/{events[0]['event_id']}/proof")).json()
    found = provenance_view.check_proof({**proof, "event": proof["event"].replace("Task", "Disk")}, None, recorded)
    assert found.verdict == "wrong"
