"""The pages of sessions: the list, a transcript with whatever its items are, values, tasks and the deletion."""

from __future__ import annotations

import html
from typing import Any

import pytest

from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

PATH = "/api/v1/sessions"
CALL = {"id": "call-1", "type": "function", "function": {"name": "find_parcel", "arguments": '{"order": 4711}'}}


async def create(site: Site, session_id: str = "s", who: str = "ADMIN", **fields: Any) -> None:
    answer = await site.world.clients[who].post(PATH, json={"id": session_id, **fields})
    assert answer.status_code == 201, answer.text


async def append(site: Site, *values: Any, to: str = "s", kind: str = "message") -> None:
    body = {"items": [{"value": value, "kind": kind} for value in values]}
    answer = await site.world.admin.post(f"{PATH}/{to.replace('/', '%2F')}/items", json=body)
    assert answer.status_code == 200, answer.text


def said(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


@requirement("dashboard.page-sessions")
async def test_a_transcript_shows_who_said_what_with_calls_folded_and_the_tasks(site: Site) -> None:
    assert "No sessions yet" in await site.read("/sessions")
    await create(site, name="Lost parcel", metadata={"customer": 7})
    await append(site, said("Where is it?"), said(None, "assistant") | {"tool_calls": [CALL]})
    await append(site, {"role": "tool", "tool_call_id": "call-1", "content": '{"place": "Lisbon"}'})
    await append(site, said("The parcel is in Lisbon.", "system"), kind="summary")
    values = {"values": {"checkpoint/7": {"step": 7}}, "bytes": {"blob": "AAECAw=="}}
    assert (await site.world.admin.put(f"{PATH}/s/values", json=values)).status_code == 200
    await site.world.register()
    task_id = await site.world.submit(session="s", title="When does it arrive?")
    page = await site.read("/sessions/session?id=s")
    for text in (
        "Lost parcel",
        "Where is it?",
        "calls <code>find_parcel</code>",
        "4711",
        "result of",
        "summary</span>",
    ):
        assert text in page
    assert "<details><summary>calls" in page
    assert "result of <code>find_parcel</code>" in page
    for text in ("checkpoint/7", "AAECAw==", "customer", "When does it arrive?", f'href="/tasks/{task_id}"'):
        assert text in page
    listed = await site.read("/sessions")
    assert 'href="/sessions/session?id=s"' in listed
    assert task_id in await site.read("/tasks?session=s")
    assert task_id not in await site.read("/tasks?session=other")


@requirement("dashboard.page-sessions")
@pytest.mark.parametrize("session_id", ["a/b", "...", "a&b=c#d?e", " Grüße 漢字 %2F ", "<b>'\"", "x" * 255])
async def test_any_id_is_listed_found_shown_and_deleted(site: Site, session_id: str) -> None:
    await create(site, session_id)
    searched = "" if session_id[0] == " " else session_id[:3]  # a search is without spaces around it
    listed = await site.read("/sessions", q=searched)
    link = html.unescape(listed.split('class="title"><a dir="auto" href="')[1].split('"')[0])
    page = await site.read(link)
    assert (
        f'<dd class="mono">{html.escape(session_id).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")}</dd>' in page
    )
    form = html.unescape(page.split('action="/sessions/session/delete')[1].split('"')[0])
    deleted = await site.send("/sessions/session/delete" + form)
    assert deleted.headers["location"] == "/sessions?notice=session-deleted"
    await site.read(link, 404)


@requirement("dashboard.page-sessions")
async def test_what_an_item_is_breaks_no_page(site: Site) -> None:
    await create(site)
    hostile = "<script>alert(1)</script>"
    await append(site, said(hostile), said("x" * 100_000), {"role": hostile}, {"role": 5}, None, 3, hostile, [], {})
    await append(site, said([{"type": "text", "text": "part"}] * 1_000), said({"a": [hostile]}), said(None))
    await append(site, {"role": "assistant", "tool_calls": [CALL, 3, {"function": 1}, {"function": {"arguments": 5}}]})
    page = await site.read("/sessions/session?id=s")
    assert hostile not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert len(page) < 100_000
    for text in ("100,000 characters", "The first 20,000 characters", "<b>data</b>", "950 more parts", "Empty."):
        assert text in page


@requirement("dashboard.page-sessions")
async def test_a_long_session_is_read_in_pages_back_to_its_first_item(site: Site) -> None:
    await create(site)
    await append(site, *(said(f"message {n}.") for n in range(120)))
    address, seen = "/sessions/session?id=s", list[str]()
    page = await site.read(address)
    assert "data-live" in page
    while True:
        seen = [f"{n}" for n in range(120) if f"message {n}.<" in page] + seen
        if ">Earlier items<" not in page:
            break
        address = html.unescape(page.split('class="button" href="')[1].split('"')[0])
        page = await site.read(address)
        assert "Newest items" in page
        assert "data-live" not in page
    assert seen == [f"{n}" for n in range(120)]
    assert "No items before this" in await site.read("/sessions/session?id=s&before=1")
    for wrong in ("before=x", "before=-1", "values=x", f"before={'9' * 30}"):
        await site.read(f"/sessions/session?id=s&{wrong}", 400)


@requirement("dashboard.page-sessions")
async def test_values_and_sessions_are_listed_in_pages(site: Site) -> None:
    await create(site)
    values = {"values": {f"key {n:03}.": n for n in range(70)}}
    assert (await site.world.admin.put(f"{PATH}/s/values", json=values)).status_code == 200
    first = await site.read("/sessions/session?id=s")
    rest = await site.read(
        html.unescape(first.split('<p class="foot"><a href="/sessions')[1].split('"')[0]).join(["/sessions", ""])
    )
    shown = [sum(f"key {n:03}." in page for n in range(70)) for page in (first, rest)]
    assert shown == [50, 20]
    for n in range(60):
        await create(site, f"more {n:03}")
    first = await site.read("/sessions")
    older = html.unescape(first.split('class="button" href="')[1].split('"')[0])
    rest = await site.read(older)
    assert sum(f"more {n:03}" in first for n in range(60)) + sum(f"more {n:03}" in rest for n in range(60)) == 60
    assert "Older sessions" not in rest
    assert "The first 50" in await site.read("/sessions?q=more")
    await site.read("/sessions?cursor=x", 400)


@requirement("dashboard.page-sessions", "sessions.rights")
async def test_another_tenant_sees_nothing_and_a_reader_cannot_delete(site: Site) -> None:
    await create(site)
    await append(site, said("hello"))
    await site.read("/sessions/session?id=s", 404, key="OTHER")
    assert "No sessions yet" in await site.read("/sessions", key="OTHER")
    page = await site.read("/sessions/session?id=s", key="READER")
    assert ("hello" in page, "/delete" in page) == (True, False)
    await site.send("/sessions/session/delete?id=s", 403, key="READER")
    await site.send("/sessions/session/delete?id=s", 404, key="OTHER")
    assert (await (await site.browser()).get("/sessions/session")).headers["location"] == "/sessions"
    await site.send("/sessions/session/delete", 400)


@requirement("dashboard.task-session")
async def test_the_page_of_a_task_links_its_session_and_says_that_another_one_continues_it(site: Site) -> None:
    await create(site, "a/b")
    agent = await site.world.register()
    first = await site.world.submit(session="a/b")
    alone = await site.read(f"/tasks/{first}")
    assert ('href="/sessions/session?id=a%2Fb"' in alone, "Waits" in alone) == (True, False)
    assert "1 at a time with the key <code>session/a/b</code>" in alone
    second = await site.world.submit(session="a/b")
    await site.world.claim(agent)
    assert "Waits: another task continues the session" in await site.read(f"/tasks/{second}")
    assert "Waits" not in await site.read(f"/tasks/{first}")


@requirement("dashboard.task-session")
async def test_the_page_of_a_task_does_not_link_a_session_that_was_deleted(site: Site) -> None:
    await create(site, "s")
    await site.world.register()
    task_id = await site.world.submit(session="s")
    await site.send("/sessions/session/delete?id=s")
    page = await site.read(f"/tasks/{task_id}")
    assert '<dd>s <span class="faint">deleted</span></dd>' in page
    assert "/sessions/session?" not in page


@requirement("dashboard.task-session")
async def test_the_page_of_a_task_says_that_it_waits_for_room_under_its_limit(site: Site) -> None:
    agent = await site.world.register()
    limit = {"key": "<crm>", "max": 2}
    for _ in range(2):
        await site.world.submit(limit=limit)
        await site.world.claim(agent)
    waiting = await site.world.submit(limit=limit)
    page = await site.read(f"/tasks/{waiting}")
    assert "Waits for a free slot: 2 of 2 tasks with the key &#39;&lt;crm&gt;&#39; run." in page
    assert "2 at a time with the key <code>&lt;crm&gt;</code>" in page
    rate = await site.world.submit(limit={"key": "sms", "max": 1, "per_seconds": 60})
    page = await site.read(f"/tasks/{rate}")
    assert ("1 start in 60 s with the key <code>sms</code>" in page, "Waits" in page) == (True, False)


@requirement("dashboard.page-sessions")
async def test_no_item_can_change_the_direction_of_what_is_read(site: Site) -> None:
    await create(site)
    await append(site, said("Pay \u202e001"), said("Pay \u202e001 now. " * 300), {"step": "\u202e001"})
    page = await site.read("/sessions/session?id=s")
    assert page.count("\\u202e001") > 300
    assert "\u202e" not in page
