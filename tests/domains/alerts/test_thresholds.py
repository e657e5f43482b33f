"""Thresholds that admins set while the service runs: who may, what they are worth, and when they apply."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conftest import MakeWorld, World
from tests.domains.alerts.test_alerts import alerts, check, messages
from tests.domains.keys.test_keys import client_of, code, make
from tests.requirements import requirement

PATH = "/api/v1/alerts/thresholds"
DEFAULTS = {"failure_percent": 50.0, "wait_seconds": 300.0, "budget_percent": 80.0}


async def put(world: World, key: str = "ADMIN", **changes: Any) -> httpx.Response:
    return await world.clients[key].patch(PATH, json=changes)


async def read(world: World, key: str = "READER") -> dict[str, Any]:
    answer = await world.clients[key].get(PATH)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@requirement("alerts.thresholds")
async def test_a_threshold_is_set_and_reset_and_the_others_stay(world: World) -> None:
    untouched = DEFAULTS | {"defaults": DEFAULTS, "changed": [], "set_by": None, "set_at": None}
    assert await read(world) == untouched
    await put(world, failure_percent=20, wait_seconds=0)
    changed = await put(world, wait_seconds=90.5)
    assert changed.status_code == 200, changed.text
    assert changed.json() == await read(world)
    assert changed.json() == DEFAULTS | {
        "failure_percent": 20.0,
        "wait_seconds": 90.5,
        "defaults": DEFAULTS,
        "changed": ["failure_percent", "wait_seconds"],
        "set_by": "admin",
        "set_at": changed.json()["set_at"],
    }
    await put(world, wait_seconds=None)
    assert (await read(world))["changed"] == ["failure_percent"]
    assert (await put(world, failure_percent=None, budget_percent=None)).json() == untouched


@requirement("alerts.thresholds", "alerts.waiting")
async def test_a_wait_counts_from_the_next_check_and_an_alert_that_it_ends_resolves(world: World) -> None:
    await world.register()
    await world.submit()
    await put(world, wait_seconds=60)
    await check(world, minutes=1)
    assert await messages(world, "queue") == ["1 task waits in the queue, for 1 minute."]
    await put(world, wait_seconds=600)
    await check(world)
    await check(world, minutes=1.1)
    assert await alerts(world, "queue") == []
    await check(world, minutes=8)
    assert await messages(world, "queue") == ["1 task waits in the queue, for 10 minutes."]
    await put(world, wait_seconds=0)
    await check(world)
    await check(world, minutes=1.1)
    assert await alerts(world, "queue") == []


@requirement("alerts.thresholds", "alerts.agents")
async def test_a_wait_is_also_that_of_an_offline_worker(world: World) -> None:
    agent = await world.register()
    await world.do(agent)
    await put(world, wait_seconds=1_200)
    await check(world, minutes=19)
    assert await alerts(world, "agent_offline") == []
    await check(world, minutes=2)
    assert len(await alerts(world, "agent_offline")) == 1


@requirement("alerts.thresholds", "alerts.failures")
async def test_a_share_of_failures_opens_an_alert(world: World) -> None:
    bad = await world.register("bad")
    for ok in (True, False) * 5 + (True,) * 10:
        await world.do(bad, ok=ok)
    await check(world)
    assert await alerts(world, "failures") == []
    await put(world, failure_percent=25)
    await check(world)
    assert await messages(world, "failures") == ["bad failed 5 of its last 20 tasks, in 15 minutes."]


@requirement("alerts.thresholds", "alerts.budgets")
async def test_a_share_of_a_budget_opens_an_alert(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_LLM_LOCAL_BASELINE="1", SERVICE_ALERT_BUDGET_PERCENT="0")
    made = await make(world, "ci", budgets=["tokens/month=1000"])
    async with client_of(world, made["key"]) as client:
        body = {"model": "local/extractive", "messages": [{"role": "user", "content": "One. Two. Three."}]}
        assert (await client.post("/api/v1/llm/chat", json=body)).status_code == 200
    await check(world)
    assert await alerts(world, "budget", key="ADMIN") == []
    assert (await put(world, budget_percent=0.1)).json()["defaults"]["budget_percent"] == 0
    await check(world)
    assert len(await alerts(world, "budget", key="ADMIN")) == 1


@requirement("alerts.thresholds")
async def test_a_tenant_has_thresholds_of_its_own(world: World) -> None:
    assert (await put(world, "OTHER", wait_seconds=60)).status_code == 200
    assert (await read(world))["wait_seconds"] == 300
    assert (await read(world, "OTHER"))["wait_seconds"] == 60
    await world.register()
    await world.submit()
    await check(world, minutes=2)
    assert await alerts(world, "queue") == []


@requirement("alerts.thresholds")
async def test_only_people_with_admin_set_thresholds_and_agents_do_not_see_them(world: World) -> None:
    for key, wanted in (("READER", "'admin'"), ("WRITER", "'admin'")):
        refused = await put(world, key, wait_seconds=0)
        assert (refused.status_code, wanted in refused.text) == (403, True)
    bound = await make(world, "bot", role="agent")
    async with client_of(world, bound["key"]) as client:
        assert (await client.get(PATH)).status_code == 403
        assert (await client.patch(PATH, json={"wait_seconds": 0})).status_code == 403
    # An agent that fails would first switch off the alert about itself.
    chief = await make(world, "chief", role="agent", permissions=["admin"])
    async with client_of(world, chief["key"]) as client:
        refused = await client.patch(PATH, json={"failure_percent": 0})
        assert (refused.status_code, "has the role agent" in refused.text) == (403, True)
    assert await read(world) | {"changed": []} == await read(world)


@requirement("alerts.thresholds")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "The request changes nothing. Set failure_percent, wait_seconds or budget_percent."),
        ({"failure_percent": 100.1}, "failure_percent"),
        ({"failure_percent": -1}, "failure_percent"),
        ({"wait_seconds": 1e7 + 1}, "wait_seconds"),
        ({"wait_seconds": "soon"}, "wait_seconds"),
        ({"wait_seconds": True}, "wait_seconds"),
        ({"budget_percent": [80]}, "budget_percent"),
        ({"wait_minutes": 5}, "wait_minutes"),
    ],
)
async def test_what_is_no_threshold_is_rejected(world: World, body: dict[str, Any], text: str) -> None:
    refused = await world.admin.patch(PATH, json=body)
    assert (refused.status_code, code(refused)) == (400, "INVALID_REQUEST"), refused.text
    assert text in refused.text
    assert (await read(world))["changed"] == []


@requirement("alerts.thresholds")
async def test_each_change_is_in_the_audit_and_none_if_nothing_changes(world: World) -> None:
    for changes in ({"wait_seconds": 60, "failure_percent": 0}, {"wait_seconds": 60}, {"failure_percent": None}):
        assert (await world.admin.patch(PATH, json=changes)).status_code == 200
    listed = (await world.admin.get("/api/v1/audit", params={"category": "changes"})).json()["events"]
    found = [event for event in listed if event["event_type"] == "alert_thresholds_changed"]
    assert [(event["message"], event["by"]) for event in found] == [
        ("Thresholds of alerts set: failure_percent to the default.", "admin"),
        ("Thresholds of alerts set: failure_percent to 0, wait_seconds to 60.", "admin"),
    ]
    assert found[0]["metadata"]["previous"] == {"failure_percent": 0.0, "wait_seconds": 60.0}
    assert found[0]["metadata"]["thresholds"] == {"wait_seconds": 60.0}
