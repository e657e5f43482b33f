"""Learning through the API: weights, history, connections, exactly once, and late lessons."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stentor.core.db import Sql
from stentor.domains.tasks.access import require_task
from tests.conftest import World
from tests.requirements import requirement

LEARNED = Sql("select count(*) from hebbian_history")
COST = Sql("select mean_cost from hebbian_weights where agent_id = :agent")
PENDING = Sql("select learning_pending from tasks where task_id = :task_id")
SPOIL = Sql(
    """insert into hebbian_history (entry_id, agent_id, task_type, tenant, task_id, epoch, delta, result,
        weight_before, weight_after, happened_at) values ('spoil', 'x', 'x', 'default', :task_id, 1, 1, 'x', 1, 1, 1)"""
)
MEND = Sql("delete from hebbian_history where entry_id = 'spoil'")


async def weights(world: World, agent: str) -> dict[str, float]:
    answer = await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["weights"])


async def spoil_learning(world: World, task_id: str) -> None:
    """Make the lesson of the first attempt collide, as a lesson that fails for any reason would."""
    await world.kernel.infra.db.write(lambda tx: tx.run(SPOIL, task_id=task_id))


async def outcome(world: World, agent: str, task_id: str, **fields: Any) -> Any:
    claim = await world.claim(agent)
    body = {"epoch": claim["epoch"], "result": "hi", **fields}
    return await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=body)


@requirement("learning.weights-read", "learning.one-outcome-one-pair")
async def test_an_outcome_changes_its_own_pair_and_no_other(world: World) -> None:
    ann, bea = await world.register("ann"), await world.register("bea", capabilities=["other"])
    assert await weights(world, ann) == {}
    await world.do(ann)
    answer = (await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": ann})).json()
    assert answer["agent_id"] == ann
    assert answer["weights"] == {"echo": pytest.approx(1 + math.tanh(0.1))}
    assert answer["last_updated"].endswith("Z")
    assert await weights(world, bea) == {}
    unknown = await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": "nobody"})
    assert unknown.status_code == 404


@requirement("learning.history-read", "learning.history-delta-sign", "learning.success-delta", "learning.failure-delta")
async def test_the_history_tells_each_lesson_newest_first(world: World) -> None:
    agent = await world.register()
    await world.do(agent, performance=0.5)
    await world.do(agent, ok=False)
    answer = (await world.admin.get(f"/api/v1/hebbian/history/{agent}")).json()
    assert (answer["agent_id"], answer["total_entries"], answer["limit"]) == (agent, 2, 100)
    failed, succeeded = answer["history"]
    first = 1 + math.tanh(0.05)
    assert (succeeded["delta"], succeeded["result"], succeeded["weight_before"]) == (1, "success", 1.0)
    assert (failed["delta"], failed["result"]) == (-1, "failure")
    assert succeeded["weight_after"] == failed["weight_before"] == pytest.approx(first)
    assert failed["weight_after"] == pytest.approx(first - 0.1)
    assert set(failed) == {"timestamp", "task_type", "delta", "result", "weight_before", "weight_after"}
    short = (await world.admin.get(f"/api/v1/hebbian/history/{agent}", params={"limit": 1})).json()
    assert (len(short["history"]), short["total_entries"], short["limit"]) == (1, 2, 1)


@requirement("learning.history-read")
async def test_a_grade_is_an_entry_of_the_history_and_counted(world: World) -> None:
    agent = await world.register()
    task_id = await world.do(agent)
    await world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": 0.2})
    answer = (await world.admin.get(f"/api/v1/hebbian/history/{agent}")).json()
    assert [entry["result"] for entry in answer["history"]] == ["graded", "success"]
    assert answer["total_entries"] == 2


@requirement("learning.idle-weights-return")
async def test_an_idle_weight_is_read_nearer_to_rest_and_learns_from_there(world: World) -> None:
    agent = await world.register()
    await world.do(agent)
    world.clock.advance(days=5)
    rested = 1 + math.tanh(0.1) * 0.99**5
    assert await weights(world, agent) == {"echo": pytest.approx(rested)}
    await world.do(agent, ok=False)
    assert await weights(world, agent) == {"echo": pytest.approx(rested - 0.1)}


@requirement("learning.only-eligible-outcomes")
@pytest.mark.parametrize("how", ["provider", "degraded", "cancelled", "cancelled-early", "routing", "rejected"])
async def test_an_outcome_that_is_not_eligible_changes_no_weight_and_says_so(world: World, how: str) -> None:
    agent = await world.register(trust_tier="human" if how == "rejected" else "auto")
    if how == "provider":
        task_id = await world.do(agent, ok=False, outcome_class="provider_failure")
    elif how == "degraded":
        task_id = await world.do(agent, degraded=True)
    elif how == "routing":
        body = {"type": "echo", "input": 1, "required_capabilities": ["paint"]}
        denied = await world.admin.post("/api/v1/tasks", json=body)
        task_id = denied.json()["error"]["details"]["task_id"]
    else:
        task_id = await world.submit()
        if how == "cancelled":
            await world.claim(agent)
        await world.admin.post(f"/api/v1/tasks/{task_id}/{'reject' if how == 'rejected' else 'cancel'}")
    assert await weights(world, agent) == {}
    assert (await world.task(task_id))["learning_eligible"] is False
    last = (await world.events(task_id))[-1]
    assert last["event_type"] == "learning_skipped"
    assert last["metadata"]["outcome_class"] == (await world.task(task_id))["outcome_class"]


@requirement("learning.once-per-attempt", "execution.complete-and-fail")
async def test_an_outcome_reported_twice_is_learned_once(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    claim = await world.claim(agent)
    body = {"epoch": claim["epoch"], "result": {"n": 1}}
    answers = [await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=body) for _ in range(3)]
    assert [a.status_code for a in answers] == [200, 200, 200]
    assert answers[0].json() == answers[2].json()
    history = (await world.admin.get(f"/api/v1/hebbian/history/{agent}")).json()
    assert history["total_entries"] == len(history["history"]) == 1
    assert (await world.admin.get(f"/api/v1/trust/{agent}")).json()["data"]["score"] == 0.52
    other = await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json={**body, "result": 2})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "LEASE_LOST")


@requirement("learning.once-per-attempt")
async def test_each_attempt_of_a_task_is_learned_on_its_own(world: World) -> None:
    agent = await world.register()
    task_id = await world.do(agent, ok=False)
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/retry")).status_code == 202
    assert (await outcome(world, agent, task_id)).status_code == 200
    history = (await world.admin.get(f"/api/v1/hebbian/history/{agent}")).json()["history"]
    assert [entry["delta"] for entry in history] == [1, -1]


@requirement("learning.in-outcome-transaction", "activity.log-is-fail-closed")
async def test_without_the_run_log_neither_outcome_nor_weight_nor_trust_is_written(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    world.runlog.broken = False
    claim = await world.claim(agent)
    world.runlog.broken = True
    body = {"epoch": claim["epoch"], "result": "hi"}
    refused = await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "SERVICE_UNAVAILABLE")
    world.runlog.broken = False
    assert (await world.task(task_id))["status"] == "executing"
    assert await weights(world, agent) == {}
    assert (await world.admin.get(f"/api/v1/trust/{agent}")).status_code == 404
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=body)).status_code == 200
    assert await weights(world, agent) == {"echo": pytest.approx(1 + math.tanh(0.1))}
    assert (await world.admin.get(f"/api/v1/trust/{agent}")).status_code == 200


@requirement("learning.failed-update-keeps-outcome", "learning.in-outcome-transaction")
async def test_a_failed_lesson_leaves_the_outcome_standing_and_is_learned_later(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    await spoil_learning(world, task_id)
    assert (await outcome(world, agent, task_id, performance=0.5, cost=0.25)).status_code == 200
    task = await world.task(task_id)
    assert (task["status"], task["result"], task["learning_eligible"]) == ("completed", "hi", True)
    assert await weights(world, agent) == {}
    assert (await world.admin.get(f"/api/v1/trust/{agent}")).status_code == 404
    stream = await world.admin.get(f"/api/v1/tasks/{task_id}/stream")
    assert '"error":"Learning from the outcome failed' in stream.text.split("event: complete")[1]
    await world.kernel.infra.db.write(lambda tx: tx.run(MEND))
    world.clock.advance(seconds=2)
    await world.kernel.tasks.reconciler.tick(0)
    assert await weights(world, agent) == {"echo": pytest.approx(1 + math.tanh(0.05))}
    assert (await world.admin.get(f"/api/v1/trust/{agent}")).json()["data"]["score"] == 0.52
    assert await world.kernel.infra.db.read(lambda tx: tx.row(COST, agent=agent)) == (0.25,)
    assert (await world.events(task_id))[-1]["event_type"] == "learning_updated"
    world.clock.advance(seconds=20)
    await world.kernel.tasks.reconciler.tick(0)
    assert await world.kernel.infra.db.read(lambda tx: tx.row(LEARNED)) == (1,)
    assert '"error":null' in (await world.admin.get(f"/api/v1/tasks/{task_id}/stream")).text


@requirement("learning.failed-update-keeps-outcome")
async def test_a_lesson_that_waits_is_learned_once_and_forbids_a_retry_until_then(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    await spoil_learning(world, task_id)
    claim = await world.claim(agent)
    failed = {"epoch": claim["epoch"], "error": {"message": "no"}}
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/fail", json=failed)).status_code == 200
    early = await world.admin.post(f"/api/v1/tasks/{task_id}/retry")
    assert early.status_code == 409
    assert early.json()["error"]["message"] == "The outcome of the task is still being learned. Retry in a few seconds."
    await world.kernel.infra.db.write(lambda tx: tx.run(MEND))
    db, reconciler = world.kernel.infra.db, world.kernel.tasks.reconciler
    seen = await db.read(lambda tx: require_task(tx, "default", task_id))
    for _ in range(2):  # this process and another one have seen it
        await db.write(lambda tx: reconciler._learn_again(tx, seen))
    assert await db.read(lambda tx: tx.row(LEARNED)) == (1,)
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/retry")).status_code == 202


@requirement("learning.failed-update-keeps-outcome")
async def test_a_lesson_that_fails_again_waits_for_the_next_time(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    await spoil_learning(world, task_id)
    await outcome(world, agent, task_id)
    for _ in range(2):
        world.clock.advance(seconds=20)
        await world.kernel.tasks.reconciler.tick(0)
    assert await world.kernel.infra.db.read(lambda tx: tx.row(PENDING, task_id=task_id)) == (1,)
    assert await weights(world, agent) == {}


@requirement("learning.connection-by-parent-task")
async def test_a_success_strengthens_the_connection_to_the_agent_of_the_parent_task(world: World) -> None:
    ann = await world.register("ann")
    parent = await world.do(ann)
    bea = await world.register("bea", capabilities=["write"])
    for ok in (True, False):
        task = {"type": "write", "input": 1, "required_capabilities": ["write"]}
        task_id = await world.submit(**task, metadata={"parent_task_id": parent})
        claim = await world.claim(bea)
        body = {"epoch": claim["epoch"]} | ({"result": 1} if ok else {"error": {"message": "no"}})
        await world.admin.post(f"/api/v1/tasks/{task_id}/{'complete' if ok else 'fail'}", json=body)
    matrix = (await world.admin.get("/api/v1/trust/hebbian/weights")).json()["data"]["matrix"]
    assert matrix[ann][bea] == matrix[bea][ann] == pytest.approx(1 + math.tanh(0.1))


@requirement("learning.connection-change", "learning.matrix-read")
async def test_a_connection_is_strengthened_and_weakened(world: World) -> None:
    path = "/api/v1/trust/hebbian/weights"
    up = (await world.admin.put(path, json={"agent1": "b", "agent2": "a", "delta": 0.5})).json()
    assert up == {"success": True, "data": {"connection": "b-a", "newWeight": 1.5, "delta": 0.5}}
    down = (await world.admin.put(path, json={"agent1": "a", "agent2": "b", "delta": -3})).json()
    assert down["data"] == {"connection": "a-b", "newWeight": 0.01, "delta": -3}
    read = (await world.admin.get(path)).json()
    assert read["success"] is True
    assert read["data"]["matrix"] == {"a": {"b": 0.01}, "b": {"a": 0.01}}
    same = await world.admin.put(path, json={"agent1": "a", "agent2": "a", "delta": 1})
    assert same.status_code == 400
    theirs = (await world.clients["OTHER"].get(path)).json()
    assert theirs["data"]["matrix"] == {}


async def test_the_connections_of_an_agent_are_read_however_many_others_have(world: World) -> None:
    for other in "ac":
        body = {"agent1": "b", "agent2": other, "delta": 1}
        await world.admin.put("/api/v1/trust/hebbian/weights", json=body)
    for agent_id, total in (("a", 1), ("b", 2), ("d", 0), (None, 2)):
        params = {} if agent_id is None else {"agent_id": agent_id}
        answer = await world.admin.get("/api/v1/hebbian/connections", params=params)
        assert answer.json()["total"] == len(answer.json()["connections"]) == total
    assert (await world.admin.get("/api/v1/hebbian/connections", params={"agent_id": "a\0"})).status_code == 400
    (link,) = await world.kernel.agents.learning.list_connections("default", "c", limit=1)
    assert link.key == "b-c"
