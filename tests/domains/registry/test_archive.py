"""Agents that are archived, and restored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import World
from tests.requirements import requirement

PATH = "/api/v1/registry/agents"


async def act(world: World, agent: str, verb: str, client: str = "ADMIN", **body: Any) -> tuple[int, Any]:
    answer = await world.clients[client].post(f"{PATH}/{agent}/{verb}", json=body)
    return answer.status_code, answer.json()


async def listed(world: World, **params: Any) -> list[str]:
    answer = await world.admin.get(PATH, params=params)
    assert answer.status_code == 200, answer.text
    return [agent["name"] for agent in answer.json()["agents"]]


@requirement("registry.archive")
async def test_an_archived_agent_is_out_of_routing_and_lists_and_keeps_its_history(world: World) -> None:
    old = await world.register("old")
    task = await world.do(old)
    status, archived = await act(world, old, "archive", reason="replaced")
    assert (status, archived["status"], archived["reason"]) == (200, "suspended", "replaced")
    assert archived["archived_at"] is not None
    assert await listed(world) == []
    assert await listed(world, archived=True) == ["old"]
    assert await listed(world, ref="old") == ["old"], "it is found by its name, to be restored"
    body = {"type": "echo", "input": "x", "required_capabilities": ["echo"]}
    refused = await world.admin.post("/api/v1/tasks", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "ROUTING_AGENT_UNAVAILABLE")
    claim = await world.admin.post(f"/api/v1/agents/{old}/claims", json={})
    assert (claim.status_code, claim.json()["error"]["details"]) == (409, {"status": "archived"})

    assert (await world.admin.get(f"{PATH}/{old}")).json()["archived_at"] == archived["archived_at"]
    assert (await world.task(task))["assigned_agent"] == old

    new = await world.register("old")
    assert [a["agent_id"] for a in (await world.admin.get(PATH, params={"ref": "old"})).json()["agents"]] == [new]
    assert (await world.admin.get("/api/v1/agents/old")).json()["agent_id"] == new, "a worker finds it by its name"

    status, restored = await act(world, old, "restore")
    assert (status, restored["status"], restored["reason"], restored["archived_at"]) == (200, "active", None, None)
    assert await listed(world) == ["old", "old"]


@requirement("registry.archive")
async def test_an_agent_with_running_tasks_is_archived_only_by_force_and_its_task_ends(world: World) -> None:
    agent = await world.register()
    task = await world.submit()
    claim = await world.claim(agent)
    status, refused = await act(world, agent, "archive")
    assert (status, refused["error"]["code"]) == (409, "CONFLICT")
    assert "1 task running or waiting" in refused["error"]["message"]
    assert await listed(world) == ["ann"]
    assert (await act(world, agent, "archive", force=True))[0] == 200
    done = await world.admin.post(f"/api/v1/tasks/{task}/complete", json={"epoch": claim["epoch"], "result": "hi"})
    assert done.status_code == 200, done.text


@pytest.mark.parametrize("before", ["suspended", "quarantined"])
async def test_a_restored_agent_is_as_it_was(world: World, before: str) -> None:
    agent = await world.register()
    if before == "suspended":
        await act(world, agent, "suspend", reason="ill")
    else:
        for _ in range(3):
            await world.admin.post(f"{PATH}/{agent}/authorize", json={"tool": "t", "operation": "o"})
    reason = (await world.admin.get(f"{PATH}/{agent}")).json()["status_reason"]
    assert (await act(world, agent, "archive"))[1]["status"] == before
    for verb, body in (
        ("archive", {}),
        ("activate", {}),
        ("suspend", {"reason": "x"}),
        ("clear-violations", {"override_tier": "human", "rationale": "x"}),
    ):
        assert (await act(world, agent, verb, **body))[0] == 409, verb
    status, restored = await act(world, agent, "restore")
    assert (status, restored["status"], restored["reason"]) == (200, before, reason)
    assert (await act(world, agent, "restore"))[0] == 409


async def test_an_agent_neither_archives_nor_restores_itself(world: World) -> None:
    agent = await world.register(key_name="boss")
    assert (await act(world, agent, "archive", "BOSS"))[0] == 403
    await act(world, agent, "archive")
    assert (await act(world, agent, "restore", "BOSS"))[0] == 403


async def test_archiving_is_in_the_audit_log(world: World) -> None:
    agent = await world.register()
    await act(world, agent, "archive", reason="replaced")
    await act(world, agent, "restore")
    events = (await world.admin.get("/api/v1/audit")).json()["events"]
    found = [e["metadata"]["to"] for e in events if e["event_type"] == "agent_status_changed"]
    assert found == ["active", "archived"]


@requirement("registry.archive")
async def test_a_task_that_waits_for_an_archived_agent_says_how_to_restore_it(world: World) -> None:
    agent = await world.register("ann")
    task = await world.submit()
    assert (await act(world, agent, "archive"))[1]["open_tasks"] == 1
    waiting = await world.task(task)
    assert waiting["notice"] == "its agent ann is archived: stentor agent restore ann"
    assert [wait["kind"] for wait in waiting["waits_for"]] == ["agent"]
    await act(world, agent, "restore")
    assert (await world.task(task))["notice"] is None


@requirement("registry.archive")
async def test_a_task_whose_only_agents_are_archived_is_denied_with_these_words(world: World) -> None:
    agent = await world.register("ann")
    await act(world, agent, "archive")
    body = {"type": "echo", "input": "x", "required_capabilities": ["echo"]}
    for more in ({}, {"agent_preference": agent}):
        answer = await world.admin.post("/api/v1/tasks", json=body | more)
        assert answer.json()["error"]["message"] == "The agent ann is archived: stentor agent restore ann"
