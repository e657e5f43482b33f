"""The pages of ATP messages, as somebody without JavaScript sees them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stentor.domains.messaging import queries as messaging_queries
from tests.domains.messaging.conftest import Post, task
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

FORM: dict[str, Any] = {
    "mode": "direct",
    "context": "trace-1",
    "priority": "normal",
    "actionType": "list",
    "targetZone": "registry",
    "specialNotes": "",
    "content": "{}",
}


async def post(site: Site, zone: str = "registry", **header: Any) -> str:
    """An answered message."""
    sent = Post(site.world)
    message_id = await sent.send({}, zone, "list", **header)
    await sent.known(message_id)
    return message_id


async def later(site: Site, **header: Any) -> str:
    """A message that stays in the queue."""
    return await Post(site.world).send({**task(), "delay_seconds": 3_600}, action="schedule", **header)


@requirement("dashboard.page-messages")
async def test_the_list_shows_the_queue_and_filters_messages(site: Site) -> None:
    await site.world.register("ann")
    assert "No messages yet" in await site.read("/messages")
    done = await post(site, context="<i>c</i>")
    waits = await later(site, priority="critical")
    page = await site.read("/messages")
    assert page.index(f'title="{waits}"') < page.index(f'title="{done}"')
    assert "&lt;i&gt;c&lt;/i&gt;" in page
    assert '<dt>critical</dt><dd class="n">1</dd>' in page
    assert f'<a href="/messages/{waits}">The oldest one</a>' in page
    only = await site.part("/messages", status="completed")
    assert f'title="{done}"' in only
    assert f'title="{waits}"' not in only
    assert f'title="{waits}"' in await site.part("/messages", priority="critical")
    counts = await site.part("/messages", part="queue")
    assert '<dt>critical</dt><dd class="n">1</dd>' in counts
    assert "<table" not in counts
    assert "No message matches" in await site.part("/messages", status="failed", priority="low")


@requirement("dashboard.page-messages")
async def test_the_list_goes_on_from_page_to_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.surfaces.dashboard.pages.messages.PAGE_SIZE", 2)
    sent = [await post(site) for _ in range(5)]
    queries: list[dict[str, Any]] = [{}, {"priority": "normal"}]
    for query in queries:
        seen, address = [], "/messages"
        page = await site.part(address, **query)
        while True:
            seen += re.findall(r'<td class="title"><a href="[^"]+" title="([^"]+)"', page)
            found = re.search(r'hx-get="(/messages\?[^"]+)"', page)
            if not found:
                break
            client = await site.browser()
            page = (await client.get(found[1].replace("&amp;", "&"), headers={"HX-Request": "true"})).text
        assert seen == sent[::-1]


@requirement("dashboard.page-messages")
async def test_a_message_shows_its_header_payload_response_and_task(site: Site) -> None:
    agent = await site.world.register("ann")
    message_id = await Post(site.world).send(
        task(input="<script>alert(1)</script>"), specialNotes="capability=echo", mode="async"
    )
    await Post(site.world).known(message_id)
    page = await site.read(f"/messages/{message_id}")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert f'href="/tasks/{message_id}"' in page
    assert f'href="/agents/{agent}"' in page
    assert "capability=echo" in page
    assert "an acknowledgement" in page
    assert "/provenance/" in page
    waits = await later(site)
    assert "The message is queued" in await site.read(f"/messages/{waits}")


@requirement("dashboard.page-messages")
async def test_a_message_is_composed_from_the_template_and_sent(site: Site) -> None:
    await site.world.register("ann")
    page = await site.read("/messages/new")
    assert 'value="capability=summarize"' in page
    assert "task {id?, type, input, required_capabilities?, timeout_seconds?, agent_preference?}" in page
    assert "update_id, approved_by?, rationale?, override_risk?" in page
    assert "docs/" not in page + await site.read("/messages"), "no file that a browser cannot open"
    answer = await site.send("/messages/new", **FORM)
    address = answer.headers["location"].partition("?")[0]
    assert "registry list" in await site.read(address)
    checked = await site.send("/messages/new", 200, **FORM, act="check")
    assert "The message is valid" in checked.text
    assert len(re.findall("data-row", await site.read("/messages"))) == 1


@requirement("dashboard.page-messages")
async def test_all_that_is_wrong_with_a_message_is_told_at_once(site: Site) -> None:
    wrong: dict[str, Any] = {**FORM, "mode": "none", "priority": "", "context": "x" * 65, "content": "<b>kept</b>"}
    for act in ("send", "check"):
        answer = await site.send("/messages/new", 400, **wrong, act=act)
        for field in ("header.mode", "header.priority", "header.context"):
            assert f"<code>{field}</code>" in answer.text
        assert "&lt;b&gt;kept&lt;/b&gt;" in answer.text
    body = await site.send("/messages/new", 400, **{**FORM, "actionType": "execute", "targetZone": "kernel"})
    assert "payload.content" in body.text
    assert 'aria-invalid="true"' in body.text
    await site.send("/messages/new", 400)
    assert "No messages yet" in await site.read("/messages")


@requirement("dashboard.page-messages")
async def test_a_readers_key_sees_messages_and_sends_none(site: Site) -> None:
    assert "/messages/new" not in await site.read("/messages", key="READER")
    opens, refused = f"/messages/{await post(site, 'kernel')}", f"/messages/{await post(site)}"
    await site.read(opens, key="READER")
    await site.read(refused, 403, key="READER")
    page = await site.read("/messages", key="READER")
    assert f'href="{opens}"' in page
    assert f'href="{refused}"' not in page, "a page that would refuse it"
    assert f'href="{refused}"' in await site.read("/messages")
    await site.send("/messages/new", 403, key="READER", **FORM)


@requirement("dashboard.page-messages")
async def test_another_tenants_messages_are_not_there(site: Site) -> None:
    message_id = await post(site)
    assert message_id not in await site.read("/messages", key="OTHER")
    assert message_id not in await site.part("/messages", key="OTHER", status="completed")
    await site.read(f"/messages/{message_id}", 404, key="OTHER")


@requirement("dashboard.page-messages")
async def test_bad_ids_and_filters_are_no_failure(site: Site) -> None:
    for wrong in ("none", "%25", "%00", "a%2Fb", "x" * 5_000):
        assert (await (await site.browser()).get(f"/messages/{wrong}")).status_code in (400, 404)
    for query in ({"status": "lost"}, {"priority": "9"}, {"before": "a\x00"}, {"before": "none"}):
        await site.read("/messages", 400, **query)


@requirement("dashboard.page-messages")
async def test_a_filtered_list_looks_at_a_bounded_number_of_messages_at_a_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await post(site, priority="high")
    for _ in range(3):
        await post(site)
    sql = messaging_queries._LIST_FILTERED.text.replace(f"limit {messaging_queries.MAX_SCANNED_MESSAGES}", "limit 2")
    last = messaging_queries._LAST_SCANNED.text.replace(f"limit {messaging_queries.MAX_SCANNED_MESSAGES}", "limit 2")
    monkeypatch.setattr(messaging_queries, "_LIST_FILTERED", type(messaging_queries._LIST_FILTERED)(sql))
    monkeypatch.setattr(messaging_queries, "_LAST_SCANNED", type(messaging_queries._LIST_FILTERED)(last))
    monkeypatch.setattr(messaging_queries, "MAX_SCANNED_MESSAGES", 2)
    page = await site.part("/messages", priority="high")
    assert "Search further back" in page
    found = re.search(r'hx-get="(/messages\?[^"]+)"', page)
    assert found
    client = await site.browser()
    following = await client.get(found[1].replace("&amp;", "&"), headers={"HX-Request": "true"})
    assert f'title="{first}"' in following.text
