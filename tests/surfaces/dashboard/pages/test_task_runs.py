"""Running a task again, on another agent, and comparing both runs."""

from __future__ import annotations

import re

import httpx

from stentor.core.runlog import EventDraft
from stentor.surfaces.dashboard.presenters.filters import format_input
from tests.conftest import World
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


def new_id(response: httpx.Response) -> str:
    found = re.fullmatch(r"/tasks/([^?]+)\?notice=submitted-again", response.headers["location"])
    assert found, response.headers["location"]
    return found[1]


async def end(world: World, agent_id: str, result: str) -> None:
    claim = await world.claim(agent_id)
    body = {"epoch": claim["epoch"], "result": result}
    assert (await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/complete", json=body)).status_code == 200


@requirement("tasks.rerun")
async def test_a_task_is_run_again_as_a_new_task_with_everything_it_asked_for(world: World) -> None:
    agent_id = await world.register()
    first = await world.submit(
        input={"n": 1}, title="One", timeout_seconds=77, metadata={"priority": "high", "tags": ["a"], "prefer": "fast"}
    )
    response = await world.admin.post(f"/api/v1/tasks/{first}/rerun")
    assert response.status_code == 202
    second = await world.task(response.json()["task_id"])
    assert second["task_id"] != first
    assert second["metadata"] == {
        "priority": "high",
        "tags": ["a"],
        "prefer": "fast",
        "title": "One",
        "rerun_of": first,
    }
    same = ("type", "title", "timeout_seconds", "required_capabilities", "assigned_agent")
    assert {name: second[name] for name in same} == {name: (await world.task(first))[name] for name in same}
    claims = [await world.claim(agent_id), await world.claim(agent_id)]
    assert [claim["input"] for claim in claims] == [{"n": 1}, {"n": 1}]


@requirement("tasks.rerun")
async def test_a_task_is_run_again_on_the_agent_that_is_named(world: World) -> None:
    await world.register("ann")
    ben = await world.register("ben", capabilities=["echo"])
    first = await world.submit()
    response = await world.admin.post(f"/api/v1/tasks/{first}/rerun", json={"agent_preference": ben})
    assert (await world.task(response.json()["task_id"]))["assigned_agent"] == ben
    cannot = await world.register("carl", capabilities=["other"])
    refused = await world.admin.post(f"/api/v1/tasks/{first}/rerun", json={"agent_preference": cannot})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "ROUTING_AGENT_INELIGIBLE")


@requirement("tasks.rerun")
async def test_what_one_may_not_read_one_cannot_run_again(world: World) -> None:
    await world.register()
    task_id = await world.submit()
    for name in ("BOB", "OTHER"):
        assert (await world.clients[name].post(f"/api/v1/tasks/{task_id}/rerun")).status_code == 404
    assert (await world.clients["READER"].post(f"/api/v1/tasks/{task_id}/rerun")).status_code == 403


@requirement("dashboard.page-compare")
async def test_two_runs_are_compared_side_by_side(site: Site) -> None:
    ann, ben = await site.world.register("ann"), await site.world.register("ben")
    first = await site.world.submit(agent_preference=ann)
    await end(site.world, ann, "The sea is salt.\nIt is wide.")
    page = await site.read(f"/tasks/{first}")
    assert "Run again" in page
    assert f'value="{ben}"' in page
    second = new_id(await site.send(f"/tasks/{first}/rerun", agent=ben))
    await end(site.world, ben, "The sea is salty.\nIt is wide.")
    assert f'href="/tasks/{second}/compare"' in await site.read(f"/tasks/{second}")
    compared = await site.read(f"/tasks/{second}/compare")
    assert compared.index(f"/tasks/{first}") < compared.index(f"/tasks/{second}")
    assert compared.index(">ann</a>") < compared.index(">ben</a>")
    assert "The same input." in compared
    assert "<code>The sea is salt.</code>" in compared
    assert "<code>The sea is salty.</code>" in compared
    browser = await site.browser()
    other = (await browser.get(f"/tasks/{first}/compare?with={second}")).text
    assert other.index(">ben</a>") < other.index(">ann</a>")
    assert (await browser.get(f"/tasks/{first}/compare?with=nothing")).status_code == 404


@requirement("dashboard.page-compare")
async def test_all_tool_calls_of_a_long_run_are_counted(site: Site) -> None:
    await site.world.register()
    task_id = await site.world.submit()
    infra = site.world.kernel.infra
    drafts = [EventDraft("tool_called", "sandbox", "read was called.") for _ in range(501)]
    await infra.db.write(lambda tx: infra.runlog.append(tx, "default", drafts, task_id=task_id))
    page = await site.read(f"/tasks/{task_id}/compare?with={task_id}")
    assert page.count('<td class="n">501</td>') == 2


@requirement("dashboard.page-compare")
async def test_inputs_that_differ_behind_a_long_beginning_are_not_the_same(site: Site) -> None:
    await site.world.register()
    first, second = [await site.world.submit(input="x" * 30_000 + end) for end in "ab"]
    assert "The same input." not in await site.read(f"/tasks/{second}/compare?with={first}")
    assert "The same input." in await site.read(f"/tasks/{second}/compare?with={second}")


@requirement("dashboard.page-compare")
async def test_a_task_that_repeats_none_leads_to_its_own_page(site: Site) -> None:
    await site.world.register()
    task_id = await site.world.submit()
    client = await site.browser()
    response = await client.get(f"/tasks/{task_id}/compare")
    assert (response.status_code, response.headers["location"]) == (303, f"/tasks/{task_id}")


@requirement("dashboard.page-compare")
async def test_who_may_not_write_is_not_offered_another_run(site: Site) -> None:
    await site.world.register()
    task_id = await site.world.submit()
    assert "Run again" not in await site.read(f"/tasks/{task_id}", key="READER")


@requirement("tasks.rerun")
async def test_an_agent_that_cannot_do_it_is_refused_on_the_page_of_the_task(site: Site) -> None:
    await site.world.register("ann")
    carl = await site.world.register("carl", capabilities=["other"])
    task_id = await site.world.submit()
    page = (await site.send(f"/tasks/{task_id}/rerun", 409, agent=carl)).text
    assert "The agent that you chose lacks a capability. Choose another one." in page
    assert "<h2>Run again</h2>" in page
    addresses = set(re.findall(r'(?:action|data-src|data-stream)="(/tasks/[^"]*)"', page))
    assert {"", "/rerun", "/cancel", "/stream"} == {address.removeprefix(f"/tasks/{task_id}") for address in addresses}
    entered_again = await (await site.browser()).get(f"/tasks/{task_id}/rerun")
    assert (entered_again.status_code, entered_again.headers["location"]) == (303, f"/tasks/{task_id}")


@requirement("tasks.rerun")
async def test_a_task_is_run_again_with_another_input(world: World) -> None:
    agent_id = await world.register()
    first = await world.submit(input={"n": 1})
    for given in ({"n": 2}, "text", None):
        response = await world.admin.post(f"/api/v1/tasks/{first}/rerun", json={"input": given})
        assert response.status_code == 202, response.text
        assert (await world.task(response.json()["task_id"]))["metadata"]["rerun_of"] == first
    assert [(await world.claim(agent_id))["input"] for _ in range(4)] == [{"n": 1}, {"n": 2}, "text", None]
    both = {"input": None, "from_step": "a"}
    refused = await world.admin.post(f"/api/v1/tasks/{first}/rerun", json=both)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("dashboard.page-compare")
async def test_the_input_is_changed_in_the_page_and_kept_when_it_is_refused(site: Site) -> None:
    agent_id = await site.world.register()
    for task_input, sent, expected in (
        ({"n": 1}, '{\r\n  "n": 2\r\n}', {"n": 2}),
        ({"n": 1}, '{\r\n  "n": 1\r\n}', {"n": 1}),
        ("[not JSON\nbut text", "[not JSON\r\nbut text", "[not JSON\nbut text"),
        ("one", "two", "two"),
        ("one", "", ""),
    ):
        first = await site.world.submit(input=task_input)
        assert "Change the input" in await site.read(f"/tasks/{first}")
        second = new_id(await site.send(f"/tasks/{first}/rerun", input=sent))
        claims = [await site.world.claim(agent_id), await site.world.claim(agent_id)]
        assert {claim["task_id"]: claim["input"] for claim in claims} == {first: task_input, second: expected}
    for before, text, after in (
        (7, "8.5", 8.5),
        (0, "1", 1),
        (True, "false", False),
        (None, "3", 3),
        (7, "eight", "eight"),
        (7, "", ""),
        ("7", "8", "8"),
        ("", "8", "8"),
        ([], "[1]", [1]),
        ({}, '{"n": 1}', {"n": 1}),
    ):
        old = await site.world.submit(input=before)
        new = new_id(await site.send(f"/tasks/{old}/rerun", input=text))
        found = (await site.world.admin.get(f"/api/v1/tasks/{new}/input")).json()["input"]
        assert (found, type(found)) == (after, type(after)), "the type of a number stays"
        same = new_id(await site.send(f"/tasks/{old}/rerun", input=format_input(before)))
        assert (await site.world.admin.get(f"/api/v1/tasks/{same}/input")).json()["input"] == before
    refused = await site.send(f"/tasks/{first}/rerun", 400, input='{"n": ')
    assert "looks like JSON but is not valid" in refused.text
    assert "{&#34;n&#34;: </textarea>" in refused.text
    other = await site.world.register("ben", capabilities=["other"])
    refused = await site.send(f"/tasks/{first}/rerun", 409, input="three", agent=other)
    assert "three</textarea>" in refused.text
