"""Many tasks at once: an outcome for each over HTTP, and on pages what will happen before it happens."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from stentor.surfaces.dashboard.pages.tasks import task_list
from stentor.surfaces.dashboard.site.sessions import MAX_KEPT
from tests.conftest import KEYS, World
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

LIST = "http://127.0.0.1/tasks?status=queued&cursor=x&notice=none-selected"
SECOND = KEYS["SECOND"].split(":")[0]
OFFERED = re.compile(r'<button name="action" value="(\w+)">')


async def bulk(world: World, action: str, ids: list[str], key: str = "ADMIN", **fields: Any) -> httpx.Response:
    return await world.clients[key].post(f"/api/v1/bulk/tasks/{action}", json={"task_ids": ids, **fields})


async def post(
    site: Site, path: str, key: str = "ADMIN", came_from: str = "http://127.0.0.1/tasks", **fields: Any
) -> httpx.Response:
    """Post a form whose fields may repeat; follow the redirect to the page that shows what became of it."""
    client = await site.browser(key)
    form = {"csrf": await site.token(key), **fields}
    answer = await client.post(path, data=form, headers={"Referer": came_from})
    if answer.status_code == 303 and answer.headers["location"].startswith("/tasks/selected?"):
        return await client.get(answer.headers["location"])
    assert answer.status_code != 200, "a reload would submit the form again"
    return answer


@requirement("tasks.bulk")
async def test_each_task_has_its_outcome_and_none_keeps_the_others_back(world: World) -> None:
    agent = await world.register()
    ended = await world.do(agent)
    waiting = [await world.submit(), await world.submit()]
    response = await bulk(world, "cancel", [waiting[0], ended, "nothing", waiting[1], waiting[0]])
    assert response.status_code == 200
    found = response.json()
    assert (found["succeeded"], found["failed"]) == (2, 2)
    codes = {row["task_id"]: row["error"] and row["error"]["code"] for row in found["outcomes"]}
    assert codes == {waiting[0]: None, ended: "CONFLICT", "nothing": "NOT_FOUND", waiting[1]: None}
    assert [(await world.task(task_id))["status"] for task_id in waiting] == ["cancelled"] * 2


@requirement("tasks.bulk")
async def test_failed_tasks_are_retried_and_waiting_ones_decided(world: World) -> None:
    agent = await world.register()
    failed = [await world.do(agent, ok=False) for _ in range(2)]
    assert (await bulk(world, "retry", failed)).json()["succeeded"] == 2
    assert {(await world.task(task_id))["status"] for task_id in failed} == {"queued"}
    careful = await world.register("careful", trust_tier="human", capabilities=["ask"])
    asked = [await world.submit(required_capabilities=["ask"], agent_preference=careful) for _ in range(3)]
    assert (await bulk(world, "approve", asked[:1])).json()["succeeded"] == 1
    assert (await bulk(world, "reject", asked[1:], reason="Too dear.")).json()["succeeded"] == 2
    assert [(await world.task(task_id))["status"] for task_id in asked] == ["queued", "aborted", "aborted"]
    assert (await world.task(asked[1]))["error"]["message"] == "Too dear."


@requirement("tasks.bulk")
async def test_many_tasks_need_the_permission_of_the_action(world: World) -> None:
    await world.register()
    task_id = await world.submit()
    for key, action in (("READER", "cancel"), ("WRITER", "approve"), ("WRITER", "reject"), ("BOB", "approve")):
        assert (await bulk(world, action, [task_id], key)).status_code == 403
    assert (await bulk(world, "cancel", [task_id], "OTHER")).json()["outcomes"][0]["error"]["code"] == "NOT_FOUND"
    assert (await bulk(world, "cancel", [task_id], "BOB")).json()["outcomes"][0]["error"]["code"] == "NOT_FOUND"
    assert (await world.task(task_id))["status"] == "queued"


@requirement("tasks.bulk")
async def test_an_outage_is_an_error_of_the_whole_request(world: World) -> None:
    await world.register()
    ids = [await world.submit(), await world.submit()]
    world.runlog.broken = True
    assert (await bulk(world, "cancel", ids)).status_code == 503
    world.runlog.broken = False
    assert (await bulk(world, "cancel", ids)).json()["succeeded"] == 2


@requirement("tasks.bulk")
@pytest.mark.parametrize("body", [{"task_ids": []}, {"task_ids": ["x"] * 501}, {"task_ids": ["x"], "reason": "y"}])
async def test_a_wrong_request_for_many_is_refused(world: World, body: dict[str, Any]) -> None:
    assert (await world.admin.post("/api/v1/bulk/tasks/cancel", json=body)).status_code == 400


@requirement("dashboard.page-selection")
async def test_what_will_happen_is_said_first_and_then_done(site: Site) -> None:
    agent = await site.world.register("ann")
    ended = await site.world.do(agent)
    waiting = [await site.world.submit() for _ in range(3)]
    page = await site.read("/tasks")
    assert page.count("data-select ") == 4
    assert " disabled" not in page, "the buttons work without JavaScript"
    asked = await post(site, "/tasks/selected", action="cancel", task=[*waiting, ended])
    assert "Each ends as cancelled." in asked.text
    assert "Cancel 3 tasks?" in asked.text
    assert "Unchanged: 1 completed." in asked.text
    assert {(await site.world.task(task_id))["status"] for task_id in waiting} == {"queued"}
    ids = re.findall(r'name="task" value="([^"]+)"', asked.text)
    assert set(ids) == set(waiting)
    epoch = (await site.world.claim(agent))["epoch"]
    await site.world.admin.post(f"/api/v1/tasks/{waiting[0]}/complete", json={"epoch": epoch, "result": 1})
    done = await post(site, "/tasks/selected/confirm", action="cancel", task=ids)
    assert "2 tasks cancelled" in done.text
    assert "1 not" in done.text
    assert [(await site.world.task(task_id))["status"] for task_id in waiting] == ["completed", *["cancelled"] * 2]


@requirement("dashboard.page-selection")
async def test_back_and_a_reload_ask_for_pages_and_submit_nothing_again(site: Site) -> None:
    await site.world.register("ann")
    waiting = await site.world.submit()
    asked = await post(site, "/tasks/selected", came_from=LIST, action="cancel", task=[waiting])
    key = re.search(r'name="selection" value="([^"]+)"', asked.text)
    assert key
    assert 'href="/tasks?status=queued"' in asked.text, "Back leads to the list as it was filtered"
    done = await post(site, "/tasks/selected/confirm", action="cancel", task=[waiting], selection=key[1])
    assert "1 task cancelled" in done.text
    assert 'href="/tasks?status=queued"' in done.text
    browser = await site.browser()
    assert "1 task cancelled" in (await browser.get(done.request.url)).text
    assert "None of the selected tasks can be cancelled." in (await browser.get(asked.request.url)).text
    for address in ("/tasks/selected/confirm", "/tasks/selected", "/tasks/selected?selection=gone"):
        answer = await browser.get(address, follow_redirects=True)
        assert (answer.status_code, answer.request.url.path) == (200, "/tasks")
        assert "This selection expired, or" in answer.text
    assert (await browser.get(done.request.url)).status_code == 200
    other = await (await site.browser_of(SECOND)).get(done.request.url)
    assert other.headers["location"] == "/tasks?notice=selection-lost", "what is kept is of one session"


@requirement("dashboard.page-selection", "dashboard.page-keys")
async def test_what_is_kept_for_another_page_is_not_there(site: Site) -> None:
    made = (await site.send("/keys", name="dana", role="viewer", days="0")).headers["location"]
    browser = await site.browser()
    for address in (
        made.replace("/keys/dana?result", "/tasks/selected?selection"),
        made.replace("/keys/dana", "/keys/admin"),
    ):
        assert "Copy it now" not in (await browser.get(address, follow_redirects=True)).text
    await site.world.register("ann")
    asked = await post(site, "/tasks/selected", action="cancel", task=[await site.world.submit()])
    key = asked.request.url.params["selection"]
    assert await site.read(f"/keys/dana?result={key}")
    assert await site.read(str(asked.request.url))
    assert "Copy it now" in await site.read(made)


@requirement("dashboard.page-selection")
async def test_a_session_keeps_the_newest_selections(site: Site) -> None:
    await site.world.register("ann")
    task_id = await site.world.submit()
    pages = [await post(site, "/tasks/selected", action="cancel", task=[task_id]) for _ in range(MAX_KEPT + 1)]
    browser = await site.browser()
    statuses = [(await browser.get(page.request.url)).status_code for page in pages]
    assert statuses == [303, *[200] * MAX_KEPT]


@requirement("dashboard.page-selection")
async def test_a_selection_of_nothing_or_of_what_cannot_be_changed_nothing(site: Site) -> None:
    agent = await site.world.register("ann")
    ended = await site.world.do(agent)
    nothing = await post(site, "/tasks/selected", action="cancel")
    assert nothing.headers["location"] == "/tasks?notice=none-selected"
    assert (
        "None of the selected tasks can be queued again."
        in (await post(site, "/tasks/selected", action="retry", task=[ended])).text
    )
    assert (await post(site, "/tasks/selected", action="explode", task=[ended])).status_code == 400
    assert "data-select" not in await site.read("/tasks", key="READER")
    refused = await post(site, "/tasks/selected/confirm", "WRITER", action="approve", task=[ended])
    assert refused.status_code == 403


@requirement("dashboard.page-tasks")
async def test_only_actions_that_fit_a_listed_task_are_offered(site: Site) -> None:
    await site.world.do(await site.world.register())
    page = await site.read("/tasks", status="completed")
    assert 'name="action"' not in page
    assert 'type="checkbox" name="task"' not in page
    await site.world.submit()
    page = await site.read("/tasks")
    assert 'value="cancel"' in page
    assert 'value="retry"' not in page
    assert 'name="action"' not in await site.read("/tasks", key="READER")


@requirement("dashboard.page-selection")
async def test_a_list_of_one_status_offers_only_what_its_tasks_may_have(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_list, "PAGE_SIZE", 1)
    agent = await site.world.register("ann")
    for _ in range(2):
        await site.world.do(agent, ok=False)
    assert OFFERED.findall(await site.read("/tasks?status=failed")) == ["retry"]
    assert OFFERED.findall(await site.read("/tasks")) == ["approve", "reject", "cancel", "retry"]


async def test_a_referer_that_is_no_address_leads_back_to_all_tasks(site: Site) -> None:
    answer = await post(site, "/tasks/selected", came_from="http://[x", action="cancel", task=["x" * 300])
    assert (answer.status_code, answer.headers["location"]) == (303, "/tasks?notice=none-selected")
