"""What the key of agents that are all suspended or quarantined may do; model calls are in `llm/test_task_calls`."""

from __future__ import annotations

from typing import Any

from tests.conftest import World
from tests.domains.steps.test_steps import refused
from tests.requirements import requirement

TASK = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
ITEMS = {"items": [{"value": "hello"}]}


async def stop(world: World, agent_id: str) -> None:
    await world.admin.post(f"/api/v1/registry/agents/{agent_id}/suspend", json={"reason": "x"})


def schedule(name: str) -> dict[str, Any]:
    return {"name": name, "cron": "0 0 1 1 *", "task": TASK}


@requirement("registry.stopped-key")
async def test_the_key_of_a_stopped_agent_begins_nothing(world: World) -> None:
    agent_id = await world.register(key_name="bob")
    bob, task_id = world.clients["BOB"], await world.submit()
    assert (await bob.post("/api/v1/schedules", json=schedule("old"))).status_code == 201
    assert (await bob.post("/api/v1/sessions", json={"id": "old"})).status_code == 201
    await stop(world, agent_id)
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "schedules", schedule("new")),
        ("PATCH", "schedules/old", {"cron": "* * * * *"}),
        ("PATCH", "schedules/old", {"paused": False}),
        ("POST", "sessions", {"id": "new"}),
        ("POST", "sessions/old/items", ITEMS),
        ("PUT", "sessions/old/values", {"values": {"a": 1}}),
        ("POST", f"tasks/{task_id}/signals", {"name": "go"}),
    ]
    for method, path, body in calls:
        refused(await bob.request(method, f"/api/v1/{path}", json=body), 403, "FORBIDDEN")
    assert (await bob.patch("/api/v1/schedules/old", json={"paused": True})).status_code == 200
    assert (await bob.post("/api/v1/sessions", json={"id": "old"})).status_code == 201
    assert (await bob.get("/api/v1/sessions/old/items")).json()["items"] == []
    await world.admin.post(f"/api/v1/registry/agents/{agent_id}/activate")
    for method, path, body in calls:
        assert (await bob.request(method, f"/api/v1/{path}", json=body)).status_code < 300, path


@requirement("registry.stopped-key")
async def test_a_suspended_agent_keeps_the_session_of_its_task_until_the_task_ends(world: World) -> None:
    agent_id = await world.register(key_name="bob")
    bob = world.clients["BOB"]
    await bob.post("/api/v1/sessions", json={"id": "s"})
    task_id = await world.submit(session="s")
    epoch = (await world.claim(agent_id))["epoch"]
    await stop(world, agent_id)
    assert (await bob.post("/api/v1/sessions/s/items", json=ITEMS)).status_code == 200
    done = await bob.post(f"/api/v1/tasks/{task_id}/complete", json={"epoch": epoch, "result": 1})
    assert done.status_code == 200, done.text
    refused(await bob.post("/api/v1/sessions/s/items", json=ITEMS), 403, "FORBIDDEN")


@requirement("registry.stopped-key")
async def test_the_key_of_a_stopped_agent_grades_nothing(world: World) -> None:
    bob, bob_id, worker = world.clients["BOB"], await world.register("bob", key_name="bob"), await world.register("ann")
    answer = await bob.post("/api/v1/tasks", json=TASK | {"agent_preference": worker})
    path = f"/api/v1/tasks/{answer.json()['task_id']}"
    epoch = (await world.claim(worker))["epoch"]
    await world.admin.post(f"{path}/complete", json={"epoch": epoch, "result": 1})
    await stop(world, bob_id)
    refused(await bob.post(f"{path}/grade", json={"grade": 0.0}), 403, "FORBIDDEN")
    assert (await bob.get(path)).status_code == 200
    await world.admin.post(f"/api/v1/registry/agents/{bob_id}/activate")
    assert (await bob.post(f"{path}/grade", json={"grade": 0.0})).status_code == 200
