"""A key with the role agent sees, cancels and retries its own tasks; another's is like one that does not exist."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import World
from tests.requirements import requirement

TASKS = "/api/v1/tasks"


async def submitted(world: World, by: str, **fields: Any) -> str:
    body = {"type": "echo", "input": "hello", "required_capabilities": ["echo"], **fields}
    answer = await world.clients[by].post(TASKS, json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["task_id"])


async def listed(world: World, by: str, **params: Any) -> tuple[list[str], int]:
    """The ids of the page, newest first, and the total."""
    answer = await world.clients[by].get(TASKS, params=params)
    assert answer.status_code == 200, answer.text
    return [row["task_id"] for row in answer.json()["tasks"]], answer.json()["total"]


def about(task_id: str) -> list[tuple[str, str]]:
    path = f"{TASKS}/{task_id}"
    asked = [("GET", path), ("GET", f"{path}/activity"), ("GET", f"{path}/stream"), ("GET", f"{path}/grants")]
    return [*asked, ("POST", f"{path}/cancel"), ("POST", f"{path}/retry")]


@requirement("tasks.agents-see-their-own")
async def test_anothers_task_answers_exactly_like_an_unknown_one(world: World) -> None:
    await world.register(key_name="other")
    theirs = await submitted(world, "ADMIN")
    for (method, path), (_, unknown) in zip(about(theirs), about("no-such-task"), strict=True):
        found = await world.clients["BOB"].request(method, path)
        nothing = await world.clients["BOB"].request(method, unknown)
        assert (found.status_code, nothing.status_code) == (404, 404), path
        for answer in (found, nothing):
            answer.json()["error"].pop("request_id")
        assert found.json()["error"]["message"] == nothing.json()["error"]["message"]
    grant = {"epoch": 1, "to_agent": "00000000-0000-4000-8000-000000000000", "capabilities": ["echo"]}
    for verb, body in (("heartbeat", {"epoch": 1}), ("complete", {"epoch": 1, "result": 1}), ("grants", grant)):
        answer = await world.clients["BOB"].post(f"{TASKS}/{theirs}/{verb}", json=body)
        assert answer.status_code == 404, verb
    assert (await world.task(theirs))["status"] == "queued"


@requirement("tasks.agents-see-their-own")
async def test_an_agents_key_with_approve_decides_no_task_that_it_does_not_see(world: World) -> None:
    key = {"name": "judge", "role": "agent", "permissions": ["read", "approve"]}
    headers = {"X-API-Key": (await world.admin.post("/api/v1/keys", json=key)).json()["key"]}
    await world.register(key_name="other", trust_tier="human")
    theirs = await submitted(world, "ADMIN")
    for verb in ("approve", "reject"):
        answer = await world.admin.post(f"{TASKS}/{theirs}/{verb}", headers=headers)
        assert answer.status_code == 404, verb
    assert (await world.task(theirs))["status"] == "pending_approval"


@requirement("tasks.agents-see-their-own")
async def test_an_id_in_use_tells_nothing_of_anothers_task(world: World) -> None:
    await world.register(key_name="other")
    secret = {"type": "echo", "input": {"salary": 5000}, "required_capabilities": ["echo"], "id": "payroll"}
    assert (await world.admin.post(TASKS, json=secret)).status_code == 202
    guesses = []
    for salary in (4000, 5000):
        answer = await world.clients["BOB"].post(TASKS, json={**secret, "input": {"salary": salary}})
        guesses.append((answer.status_code, answer.json()["error"]["message"]))
    assert guesses[0] == guesses[1]
    assert guesses[0][0] == 409
    assert (await world.admin.post(TASKS, json=secret)).status_code == 202


@requirement("tasks.agents-see-their-own")
async def test_a_key_sees_what_it_submitted_and_what_its_agents_are_to_do(world: World) -> None:
    own_agent = await world.register(key_name="bob")
    other_agent = await world.register(name="other", key_name="other")
    asked = await submitted(world, "BOB", agent_preference=other_agent)
    given = await submitted(world, "ADMIN", agent_preference=own_agent)
    both = await submitted(world, "BOB", agent_preference=own_agent)
    foreign = await submitted(world, "ADMIN", agent_preference=other_agent)
    assert await listed(world, "BOB") == ([both, given, asked], 3)
    assert await listed(world, "ADMIN") == ([foreign, both, given, asked], 4)
    assert await listed(world, "READER") == ([foreign, both, given, asked], 4)
    http = world.clients["BOB"]
    for task_id in (asked, given, both):
        for path in (f"{TASKS}/{task_id}", f"{TASKS}/{task_id}/activity"):
            assert (await http.get(path)).status_code == 200
        assert (await http.post(f"{TASKS}/{task_id}/cancel")).status_code == 200


@requirement("tasks.agents-see-their-own")
async def test_a_key_without_agents_lists_what_it_submitted(world: World) -> None:
    await world.register(key_name="other")
    await submitted(world, "ADMIN")
    own = await submitted(world, "BOB")
    assert await listed(world, "BOB") == ([own], 1)
    assert await listed(world, "BOB", submitted_by="admin") == ([], 0)
    assert await listed(world, "BOB", submitted_by="bob", status="queued") == ([own], 1)


@requirement("tasks.agents-see-their-own")
async def test_its_list_is_filtered_counted_and_paged_like_any_other(world: World) -> None:
    own_agent = await world.register(key_name="bob")
    other_agent = await world.register(name="other", key_name="other")
    mine = []
    for number in range(6):
        world.clock.advance(seconds=1)
        by = "BOB" if number % 2 else "ADMIN"
        mine.append(await submitted(world, by, agent_preference=own_agent if number % 3 else other_agent))
    seen = [task_id for number, task_id in enumerate(mine) if number % 2 or number % 3][::-1]
    assert await listed(world, "BOB") == (seen, len(seen))
    assert await listed(world, "BOB", limit=2) == (seen[:2], len(seen))
    assert await listed(world, "BOB", limit=2, offset=2) == (seen[2:4], len(seen))
    first = (await world.clients["BOB"].get(TASKS, params={"limit": 2})).json()
    following = {"limit": 2, "cursor": first["next_cursor"]}
    assert await listed(world, "BOB", **following) == (seen[2:4], len(seen))
    await world.clients["BOB"].post(f"{TASKS}/{seen[0]}/cancel")
    assert await listed(world, "BOB", status="cancelled") == ([seen[0]], 1)
    theirs = await listed(world, "BOB", agent_id=other_agent)
    assert theirs == ([mine[3]], 1)
    moment = (await world.task(seen[-1]))["created_at"]
    assert await listed(world, "BOB", created_after=moment) == (seen[:-1], len(seen) - 1)


@requirement("tasks.agents-see-their-own")
async def test_the_response_to_a_message_is_for_its_sender(world: World) -> None:
    header = {"mode": "async", "context": "x", "priority": "normal", "actionType": "list", "targetZone": "kernel"}
    message = {"header": header, "payload": {"content": "{}"}}
    sent = (await world.admin.post("/api/v1/atp/send", json=message)).json()["messageId"]
    for path in (f"/api/v1/atp/message/{sent}", f"/api/v1/atp/response/{sent}"):
        assert (await world.clients["BOB"].get(path)).status_code == 404
    assert (await world.clients["READER"].get(f"/api/v1/atp/message/{sent}")).status_code == 200


@requirement("registry.stopped-key")
@pytest.mark.parametrize("path", ["/api/v1/tasks/{}/cancel", "/api/v1/bulk/tasks/cancel"])
async def test_the_key_of_a_stopped_agent_cancels_only_what_it_submitted(world: World, path: str) -> None:
    agent_id = await world.register(key_name="bob")
    bob, theirs = world.clients["BOB"], await world.submit()
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    own = (await bob.post(TASKS, json=body)).json()["task_id"]
    await world.admin.post(f"/api/v1/registry/agents/{agent_id}/suspend", json={"reason": "x"})
    for task_id in (theirs, own):
        await bob.post(path.format(task_id), json={"task_ids": [task_id]} if "bulk" in path else None)
    assert [(await world.task(task_id))["status"] for task_id in (theirs, own)] == ["queued", "cancelled"]
    await world.admin.post(f"/api/v1/registry/agents/{agent_id}/activate")
    assert (await bob.post(f"{TASKS}/{theirs}/cancel")).status_code == 200
