"""Pages of records whose ids have a slash or other characters that an address encodes, and choices between agents."""

from __future__ import annotations

import html
import re
from urllib.parse import quote

import pytest

from stentor.core.errors import ServiceUnavailable
from stentor.surfaces.dashboard.site.page import PageRequest
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

ODD = "a/b c%2F?#ü"


def links(page: str, part: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'(?:href|action|data-src)="([^"]*)"', page) if part in link]


@requirement("dashboard.odd-ids")
async def test_a_task_whose_id_has_a_slash_has_its_pages_and_actions(site: Site) -> None:
    await site.world.register("ann")
    await site.world.submit(id=ODD)
    segment = quote(ODD, safe="")
    assert f'href="/tasks/{segment}"' in await site.read("/tasks")
    page = await site.read(f"/tasks/{segment}")
    assert html.escape(ODD) in page
    found = links(page, "/tasks/a")
    assert found
    assert all(link.startswith(f"/tasks/{segment}") for link in found), found
    for link in {link for link in found if not link.endswith(("/cancel", "/approve", "/stream"))}:
        answer = await (await site.browser()).get(link)
        assert answer.status_code in (200, 303), link
    answer = await site.send(f"/tasks/{segment}/cancel")
    assert answer.headers["location"].startswith(f"/tasks/{segment}?")
    assert (await site.world.task(segment))["status"] == "cancelled"
    assert "cancelled" in await site.read(f"/tasks/{segment}")


@requirement("dashboard.odd-ids")
async def test_a_record_of_such_an_id_is_found_after_signing_in(site: Site) -> None:
    browser = await site.browser("READER")
    browser.cookies.clear()
    answer = await browser.get("/tasks/a%2Fb")
    assert answer.headers["location"] == f"/sign-in?next={quote('/tasks/a%2Fb', safe='')}"


async def test_agents_of_the_same_name_are_told_apart_where_one_is_chosen(site: Site) -> None:
    one, two = [await site.world.register("twin") for _ in range(2)]
    await site.world.register("ann")
    gone = await site.world.register("gone")
    await site.world.admin.post(f"/api/v1/registry/agents/{gone}/archive", json={})
    task = await site.world.submit()
    for path in ("/console", "/tasks", "/governance", "/governance/checkpoints", "/models/calls", f"/tasks/{task}"):
        page = await site.read(path)
        options = dict(re.findall(r'<option value="([^"]*)"[^>]*>([^<]*)</option>', page))
        for agent in (one, two):
            assert f"twin ({agent[-12:]})" in options.get(agent, "") or path.startswith("/tasks/"), (path, options)
        assert any(label.startswith("ann") for label in options.values()), path
        assert gone not in options, path
    assert f'<option value="{gone}" selected>gone' in await site.read("/tasks", agent=gone)


async def test_an_agent_is_archived_listed_and_restored_on_its_pages(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.send(f"/agents/{agent}/archive", reason="replaced")
    assert agent not in await site.read("/agents")
    listed = await site.read("/agents", status="archived")
    assert agent in listed
    page = await site.read(f"/agents/{agent}")
    assert "archived" in page
    assert "replaced" in page
    assert f"/agents/{agent}/restore" in page
    assert f"/agents/{agent}/activate" not in page
    await site.send(f"/agents/{agent}/restore")
    assert agent in await site.read("/agents")


async def test_the_page_of_an_agent_says_that_no_provider_serves_its_model(site: Site) -> None:
    agent = await site.world.register("ann", runtime={"kind": "llm", "options": {"model": "gone/m"}})
    for path in (f"/agents/{agent}", "/agents"):
        assert "No LLM provider is configured" in await site.read(path)


async def test_a_page_that_does_not_exist_offers_no_second_try(site: Site) -> None:
    for path in ("/nothing", "/tasks/none", "/agents/none"):
        page = await site.read(path, 404)
        assert "Try again" not in page
        assert '<a class="button" href="/">Overview</a>' in page


async def test_the_pages_of_a_task_link_readers_to_no_agent(site: Site) -> None:
    ann = await site.world.register("ann")
    carl = await site.world.register("carl", capabilities=["other"])
    task, body = await site.world.submit(), {"type": "t", "input": "x", "agent_preference": carl}
    refused = await site.world.admin.post("/api/v1/tasks", json=body | {"required_capabilities": ["none"]})
    denied = refused.json()["error"]["details"]["task_id"]
    for path in (f"/tasks/{task}", f"/console/{task}", f"/tasks/{denied}", f"/console/{denied}"):
        assert "/agents" not in await site.read(path, key="READER"), path
    for path, link in ((f"/tasks/{task}", ann), (f"/console/{task}", ann), (f"/console/{denied}", "")):
        assert f"/agents/{link}".rstrip("/") in (await site.read(path)).partition("<main")[2]


async def test_a_refused_action_leads_back_to_the_page_that_has_its_form(site: Site) -> None:
    await site.world.register("ann")
    task = await site.world.submit()
    await site.send(f"/tasks/{task}/cancel")
    browser, token = await site.browser(), await site.token()
    for referer, back in ((f"https://h/tasks/{task}?a=1&b=2", f"/tasks/{task}?a=1&b=2"), ("https://h//evil", "")):
        answer = await browser.post(f"/tasks/{task}/cancel", data={"csrf": token}, headers={"referer": referer})
        assert answer.status_code == 409
        assert "Try again" not in answer.text
        assert re.findall(r'<a class="button" href="([^"]*)">Back</a>', answer.text) == [html.escape(back)] * bool(back)


async def test_a_page_that_failed_is_tried_again_with_its_query(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = await site.browser()

    async def fail(*_: object, **__: object) -> None:
        raise ServiceUnavailable("No gateway.")

    monkeypatch.setattr(PageRequest, "call", fail)
    page = (await browser.get("/memory/note?path=A%26B&vault=x")).text
    assert 'href="/memory/note?path=A%26B&amp;vault=x">Try again</a>' in page
