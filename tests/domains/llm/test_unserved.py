"""Agents whose model no provider serves: they take no task that another agent can do."""

from __future__ import annotations

import asyncio
from typing import Any

from stentor.auth.principal import Principal
from stentor.domains.registry.model_checks import ModelChecks
from stentor.domains.registry.operations import RegistryOperations
from stentor.domains.routing.explain import explain_decision
from tests.conftest import World
from tests.domains.llm.conftest import Gate
from tests.domains.llm.upstream import Upstream
from tests.patience import soon
from tests.requirements import requirement

BOASTS: dict[str, Any] = {"alignment_score": 0.9, "accuracy_score": 0.9, "efficiency_score": 0.9}
MODEL = "sea/sea-large"
REASON = f"no provider serves {MODEL}"


async def helper(world: World, **fields: Any) -> str:
    runtime = {"kind": "llm", "options": {"model": MODEL}}
    return await world.register("helper", runtime=runtime, **BOASTS, **fields)


async def presence(world: World, agent_id: str) -> tuple[bool, str | None]:
    row = next(
        row
        for row in (await world.admin.get("/api/v1/registry/agents")).json()["agents"]
        if row["agent_id"] == agent_id
    )
    record = (await world.admin.get(f"/api/v1/registry/agents/{agent_id}")).json()
    assert (row["online"], row["offline_reason"]) == (record["online"], record["offline_reason"])
    return row["online"], row["offline_reason"]


async def serve_model(world: World, upstream: Upstream) -> None:
    body = {"provider": "sea", "apiKey": "k", "baseUrl": upstream.v1, "format": "openai"}
    answer = await world.admin.post("/api/v1/llm/provider", json=body)
    assert answer.status_code < 300, answer.text


@requirement("routing.unserved-model")
async def test_every_task_goes_to_the_worker_and_none_to_the_agent_without_a_provider(world: World) -> None:
    agent_id = await helper(world)
    worker = await world.register("worker")
    assert await presence(world, agent_id) == (False, REASON)
    assert (await world.admin.post(f"/api/v1/agents/{worker}/claims", json={})).status_code == 200
    for _ in range(16):
        assert (await world.task(await world.submit()))["assigned_agent"] == worker


@requirement("routing.unserved-model")
async def test_a_worker_that_is_away_goes_before_a_model_that_nobody_serves(world: World) -> None:
    await helper(world)
    worker = await world.register("worker")
    world.clock.advance(seconds=61)
    task = await world.task(await world.submit())
    assert (task["assigned_agent"], task["notice"]) == (worker, "no worker online")
    routing = (await world.admin.get(f"/api/v1/tasks/{task['task_id']}/activity")).json()["routing"]
    assert [(one["name"], one["code"]) for one in routing["denied"]] == [("helper", "ROUTING_MODEL_UNSERVED")]
    assert explain_decision(routing).endswith("No worker is online, so the task waits for worker.")


@requirement("routing.unserved-model")
async def test_alone_it_gets_the_task_and_the_answer_says_why_it_will_fail(world: World) -> None:
    await helper(world)
    body = {"type": "echo", "input": "x", "required_capabilities": ["echo"]}
    headers = {"Idempotency-Key": "once"}
    answers = [(await world.admin.post("/api/v1/tasks", json=body, headers=headers)).json() for _ in range(2)]
    notice = "no provider serves the model of helper, so it fails the task; `stentor agent show helper` says what to do"
    assert [a["notice"] for a in answers] == [notice] * 2
    task = await world.ended(answers[0]["task_id"])
    assert (task["status"], task["error"]["code"]) == ("failed", "MODEL_NOT_FOUND")
    routing = (await world.admin.get(f"/api/v1/tasks/{task['task_id']}/activity")).json()["routing"]
    assert explain_decision(routing) == (
        "helper was chosen as the only eligible agent. "
        "No provider serves its model, so helper fails the task: `stentor agent show helper`."
    )


@requirement("routing.unserved-model")
async def test_it_is_online_while_a_provider_serves_its_model(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}")
    agent_id = await helper(world)
    agent = world.kernel.agents.registry.agents.get("default", agent_id)
    assert agent is not None
    is_online = world.kernel.agents.presence.is_online
    assert not is_online(agent)
    await serve_model(world, upstream)

    # Nobody asks for the agent meanwhile: the change of the provider is enough.
    assert await soon(lambda: is_online(agent) is True)
    assert (await world.admin.delete("/api/v1/llm/provider/sea")).status_code == 200
    assert await soon(lambda: is_online(agent) is False)
    assert await presence(world, agent_id) == (False, REASON)


@requirement("registry.unserved-model-notice")
async def test_reads_of_agents_tell_what_the_latest_check_found_and_wait_for_no_provider(world: World) -> None:
    agent_id = await helper(world)
    services, asked = world.kernel.agents, list[str]()
    silent = asyncio.Event()

    async def find_problem(_tenant: str, model: str) -> str | None:
        asked.append(model)
        if len(asked) > 1:
            await silent.wait()
        return "nobody has it"

    checks = ModelChecks(services.registry.agents, services.presence, find_problem)
    operations = RegistryOperations(
        services.registry,
        services.trust_score,
        world.kernel.command_agents.check_runtime,
        services.last_seen,
        checks,
        world.kernel.tasks.reader.count_open,
    )
    caller = Principal("admin", "admin", frozenset(("admin",)))
    assert (await operations.read(caller, agent_id)).notice is None
    twin = await helper(world)
    await checks.tick()
    # Both have the same model: one question answers for both.
    assert asked == [MODEL]
    waiting = asyncio.create_task(checks.tick())
    assert await soon(lambda: len(asked) == 2)
    listed = (await operations.list_agents(caller)).agents
    assert {row.agent_id: row.notice for row in listed if row.name == "helper"} == {
        agent_id: "nobody has it",
        twin: "nobody has it",
    }
    assert (await operations.read(caller, agent_id)).notice == "nobody has it"
    assert len(asked) == 2
    waiting.cancel()


@requirement("registry.unserved-model-notice")
async def test_a_proposal_of_a_model_that_nobody_serves_says_so(world: World) -> None:
    agent_id, worker = await helper(world), await world.register("worker")
    flags = dict.fromkeys(("breaking", "new_dependencies", "touches_policy"), False)
    changes = {"files_modified": [], "lines_added": 1, "lines_deleted": 0, "lines_total": 9, **flags}

    async def propose(agent: str, patch: dict[str, Any]) -> str | None:
        body = {"agent_id": agent, "update_type": "model", "description": "Another model."}
        answer = await world.admin.post(
            "/api/v1/governance/updates", json=body | {"changes": changes | {"agent_patch": patch}}
        )
        assert answer.status_code == 202, answer.text
        notice: str | None = answer.json().get("notice")
        return notice

    notice = await propose(agent_id, {"runtime": {"options": {"model": "lake/lake-small"}}})
    assert notice is not None
    assert "lake/lake-small" in notice
    assert await propose(agent_id, {"runtime": {"options": {"system_prompt": "Be short."}}}) is None
    assert await propose(worker, {"capabilities": ["echo"]}) is None
