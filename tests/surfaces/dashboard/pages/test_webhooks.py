"""The pages of webhooks, as somebody without JavaScript sees them."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from stentor.domains.webhooks import model
from stentor.surfaces.dashboard.pages.webhooks import EVENT_GROUPS
from tests.conftest import MakeWorld
from tests.domains.webhooks.conftest import Hooks
from tests.domains.webhooks.receiver import Receiver, receiving
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site, shown

SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]+")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@pytest.fixture
async def hooks(make_world: MakeWorld, receiver: Receiver) -> Hooks:
    return Hooks(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"), receiver)


@pytest.fixture
async def site(hooks: Hooks, make_board: Any) -> Any:
    made = Site(await make_board(hooks.world))
    yield made
    for browser in made.browsers.values():
        await browser.aclose()


async def send(site: Site, path: str, fields: dict[str, Any], key: str = "ADMIN") -> httpx.Response:
    """Post a form whose fields may repeat."""
    client = await site.browser(key)
    found = re.search(r'name="csrf" value="([^"]+)"', (await client.get("/tasks")).text)
    assert found
    return await client.post(path, data={"csrf": found[1], **fields})


@requirement("dashboard.page-webhooks")
async def test_a_webhook_is_added_and_its_secret_shown_once(site: Site, hooks: Hooks) -> None:
    fields = {"url": hooks.receiver.url, "description": "<b>team</b>", "events": ["task.*", "agent.cleared"]}
    answer = await send(site, "/webhooks", fields)
    assert answer.status_code == 303, "a reload would add another"
    location = answer.headers["location"]
    secret = html.unescape(SECRET.findall(await site.read(location))[0])
    made = (await hooks.request_json("GET"))["webhooks"][0]
    assert made["events"] == ["task.*", "agent.cleared"]
    for path in ("/webhooks", f"/webhooks/{made['id']}", location):
        page = await site.read(path)
        assert secret not in html.unescape(page)
        assert "&lt;b&gt;team&lt;/b&gt;" in page
    await hooks.request_json("POST", f"/{made['id']}/test")
    assert (await hooks.receiver.wait_for_calls(1))[0].verify(secret)


@requirement("dashboard.page-webhooks")
async def test_a_page_that_fails_does_not_lose_the_secret(site: Site, hooks: Hooks) -> None:
    answer = await send(site, "/webhooks", {"url": hooks.receiver.url, "events": ["task.*"]})
    assert not SECRET.search(await site.read(f"{answer.headers['location']}&cursor=x", 400))
    assert SECRET.search(await site.read(answer.headers["location"]))


@requirement("dashboard.page-webhooks")
@pytest.mark.parametrize(
    "fields", [{}, {"url": "ftp://x"}, {"url": "https://a.example"}, {"url": "https://a.example", "events": ["none"]}]
)
async def test_what_the_gateway_refuses_is_told_above_the_form(
    site: Site, hooks: Hooks, fields: dict[str, Any]
) -> None:
    answer = await send(site, "/webhooks", fields)
    assert answer.status_code == 400
    assert 'class="problem"' in answer.text
    assert f'name="url" value="{fields.get("url", "")}"' in answer.text
    assert (await hooks.request_json("GET"))["total"] == 0


@requirement("dashboard.page-webhooks")
async def test_deliveries_are_listed_filtered_and_shown_with_attempts_and_body(site: Site, hooks: Hooks) -> None:
    hook = await hooks.subscribe("task.submitted", "agent.registered")
    hooks.receiver.statuses = [200, 500]
    agent = await site.world.register("ann")
    await hooks.wait_for_delivery(hook["id"], status="delivered")
    task_id = await site.world.submit(agent_preference=agent)
    failing = await hooks.wait_for_delivery(hook["id"], status="waiting", attempts=1)
    page = await site.read(f"/webhooks/{hook['id']}")
    assert page.index("task.submitted</a>") < page.index("agent.registered</a>")
    only = await site.part(f"/webhooks/{hook['id']}", status="delivered")
    assert "agent.registered</a>" in only
    assert "task.submitted</a>" not in only
    assert "No delivery matches" in await site.part(f"/webhooks/{hook['id']}", event="trust.level_changed")
    await site.read(f"/webhooks/{hook['id']}", 400, status="lost")
    one = await site.read(f"/webhooks/{hook['id']}/deliveries/{failing['id']}")
    assert '<span class="wrong">500</span>' in one
    assert f"&#34;task_id&#34;: &#34;{task_id}&#34;" in one
    assert "Deliver again" not in one  # it has not come to its end
    link = f'<a class="wrong" href="/webhooks/{hook["id"]}/deliveries/{failing["id"]}" title="">1</a>'
    assert link in await site.read("/webhooks"), "a delivery that is retried has failed before"


@requirement("dashboard.page-webhooks")
async def test_one_delivery_and_all_since_a_time_are_sent_again(site: Site, hooks: Hooks) -> None:
    hook = await hooks.subscribe("agent.registered")
    await site.world.register("ann")
    ended = await hooks.wait_for_delivery(hook["id"], status="delivered")
    answer = await site.send(f"/webhooks/{hook['id']}/deliveries/{ended['id']}/replay")
    assert answer.headers["location"].endswith("?notice=replayed")
    calls = await hooks.receiver.wait_for_calls(2)
    assert calls[0].id == calls[1].id
    assert f'<a href="/webhooks/{hook["id"]}/deliveries/{ended["id"]}"' in await site.read(
        answer.headers["location"].partition("?")[0]
    )
    since = {"since": "2020-01-01T00:00", "scope": "all"}
    told = await site.follow(f"/webhooks/{hook['id']}/replay", **since)
    assert re.search(r"\d+ deliver(y is|ies are) queued again", told.text)
    for wrong in ({}, {"since": "yesterday"}, {**since, "scope": "some"}, {"since": "2020-01-01T00:00Z; drop"}):
        bad = await site.send(f"/webhooks/{hook['id']}/replay", 400, **wrong)
        assert 'role="alert"' in bad.text


@requirement("dashboard.page-webhooks")
async def test_a_rotation_shows_the_new_secret_once(site: Site, hooks: Hooks) -> None:
    hook = await hooks.subscribe()
    answer = await site.follow(f"/webhooks/{hook['id']}/rotate", overlap_seconds="3600")
    secret = html.unescape(SECRET.findall(answer.text)[0])
    assert secret != hook["secret"]
    assert not SECRET.search(await site.read(f"/webhooks/{hook['id']}"))
    pinged = await site.send(f"/webhooks/{hook['id']}/test")
    assert (await hooks.receiver.wait_for_calls(1))[0].verify(secret)
    assert '<span class="good">200</span>' in await site.read(pinged.headers["location"].partition("?")[0])
    for wrong in ("", "-1", "99999999", "x"):
        await site.send(f"/webhooks/{hook['id']}/rotate", 400, overlap_seconds=wrong)


@requirement("dashboard.page-webhooks")
async def test_a_webhook_is_switched_changed_and_deleted(site: Site, hooks: Hooks) -> None:
    hook = await hooks.subscribe()
    path = f"/webhooks/{hook['id']}"
    await site.send(f"{path}/disable")
    page = await site.read(path)
    assert "Enable" in page
    assert "Disabled by" in page
    await site.send(f"{path}/enable")
    fields = {"url": hooks.receiver.url, "description": "new", "events": ["task.failed"]}
    assert (await send(site, path, fields)).headers["location"] == f"{path}?notice=saved"
    assert (await send(site, path, {**fields, "events": []})).status_code == 400
    found = await hooks.request_json("GET", f"/{hook['id']}")
    assert (found["enabled"], found["description"], found["events"]) == (True, "new", ["task.failed"])
    opened = shown(await site.read(path), path)
    await hooks.request_json("PATCH", f"/{hook['id']}", json={"events": ["task.failed", "task.aborted"]})
    assert (await send(site, path, fields | opened | {"description": "newer"})).status_code == 303
    found = await hooks.request_json("GET", f"/{hook['id']}")
    assert (found["description"], set(found["events"])) == ("newer", {"task.failed", "task.aborted"})
    assert "data-ask=" in await site.read(path)
    assert (await site.send(f"{path}/remove")).headers["location"] == "/webhooks?notice=removed"
    await site.read(path, 404)


@requirement("dashboard.page-webhooks", "dashboard.forms-change-what-differs")
async def test_a_refused_change_keeps_what_was_typed(site: Site, hooks: Hooks) -> None:
    path = f"/webhooks/{(await hooks.subscribe())['id']}"
    opened = shown(await site.read(path), path)
    fields = {"url": "http://10.0.0.1/x", "description": "new", "events": ["task.failed"]}
    answer = await send(site, path, opened | fields)
    assert answer.status_code == 400
    for typed in ('name="url" value="http://10.0.0.1/x"', 'name="description" value="new"', '"task.failed" checked'):
        assert typed in answer.text
    assert "<details open><summary>URL and events" in answer.text
    assert shown(answer.text, path) == opened


@requirement("dashboard.page-webhooks")
async def test_webhooks_are_for_admins_of_their_tenant(site: Site, hooks: Hooks) -> None:
    hook = await hooks.subscribe("webhook.ping")
    path = f"/webhooks/{hook['id']}"
    made = await hooks.request_json("POST", f"/{hook['id']}/test")
    for address in ("/webhooks", path, f"{path}/deliveries/{made['id']}"):
        assert hooks.receiver.url not in await site.read(address, 403, key="READER")
    assert hooks.receiver.url not in await site.read("/webhooks", key="OTHER")
    for address in (path, f"{path}/deliveries/{made['id']}"):
        await site.read(address, 404, key="OTHER")
    for verb in ("test", "rotate", "disable", "remove", f"deliveries/{made['id']}/replay"):
        await site.send(f"{path}/{verb}", 403, key="READER", overlap_seconds="0")
        await site.send(f"{path}/{verb}", 404, key="OTHER", overlap_seconds="0")
    assert (await hooks.request_json("GET", f"/{hook['id']}"))["enabled"]


@requirement("dashboard.page-webhooks")
async def test_what_waits_is_counted(site: Site, hooks: Hooks) -> None:
    hook = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [500, 500]
    await site.world.register("ann")
    await hooks.wait_for_delivery(hook["id"], status="waiting", attempts=1)
    assert re.search(r'<td class="num">1<span', await site.read("/webhooks"))
    assert '<span class="n">1</span>' in await site.read(f"/webhooks/{hook['id']}")
    for wrong in ("none", "%25", "a%2Fb", "%00"):
        client = await site.browser()
        for path in (f"/webhooks/{wrong}", f"/webhooks/{hook['id']}/deliveries/{wrong}"):
            assert (await client.get(path)).status_code in (400, 404), path


@requirement("dashboard.page-webhooks")
def test_each_event_has_a_meaning_in_the_form() -> None:
    named = [name for group in EVENT_GROUPS.values() for name in group]
    assert sorted(named) == sorted(model.EVENTS)
    assert all(name.startswith(f"{kind}.") for kind, group in EVENT_GROUPS.items() for name in group)
