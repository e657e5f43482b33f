"""An agent's key does not teach: not its own agent anything, and not another one more than so much a day."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.db import Sql
from tests.conftest import MakeWorld, World
from tests.domains.endpoint import answering, serving
from tests.requirements import requirement


async def work(
    world: World, agent_id: str, submitter: str, worker: str, *, degraded: bool = False, **fields: Any
) -> str:
    """Submit with one key, claim and complete with the other; answers the task's id."""
    body = {"type": "echo", "input": "hello", "required_capabilities": ["echo"], "agent_preference": agent_id, **fields}
    submitted = await world.clients[submitter].post("/api/v1/tasks", json=body)
    assert submitted.status_code == 202, submitted.text
    task_id = str(submitted.json()["task_id"])
    http = world.clients[worker]
    claims = (await http.post(f"/api/v1/agents/{agent_id}/claims", json={})).json()["tasks"]
    done = {"epoch": claims[0]["epoch"], "result": "hi", "performance": 1.0, "degraded": degraded}
    answer = await http.post(f"/api/v1/tasks/{claims[0]['task_id']}/complete", json=done)
    assert answer.status_code == 200, answer.text
    return task_id


async def trust(world: World, agent_id: str) -> float | None:
    answer = await world.admin.get(f"/api/v1/registry/agents/{agent_id}")
    score: float | None = answer.json()["trust_score"]
    return score


async def skipped(world: World, task_id: str) -> str:
    """Why nothing was learned."""
    found = [e for e in await world.events(task_id) if e["event_type"] == "learning_skipped"]
    return str(found[0]["metadata"]["reason"])


@requirement("learning.own-hand")
async def test_an_agents_key_that_works_for_itself_earns_no_trust_however_often(make_world: MakeWorld) -> None:
    world = await make_world()
    agent_id = await world.register(key_name="bob")
    for _ in range(3):
        task_id = await work(world, agent_id, "BOB", "BOB")
    assert await trust(world, agent_id) is None
    task = await world.task(task_id)
    assert (task["status"], task["outcome_class"], task["learning_eligible"]) == ("completed", "success", False)
    assert "share a key" in await skipped(world, task_id)
    weights = (await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent_id})).json()["weights"]
    assert weights == {}


@requirement("learning.own-hand", "tasks.grade")
@pytest.mark.parametrize(("key_name", "worker"), [("bob", "BOB"), (None, "BOSS")])
async def test_a_grade_of_an_agents_degraded_result_at_its_own_task_teaches_nothing(
    make_world: MakeWorld, key_name: str | None, worker: str
) -> None:
    world = await make_world()
    agent_id = await world.register(key_name=key_name)
    for submitter, learned in ((worker, False), ("ADMIN", True)):
        task_id = await work(world, agent_id, submitter, worker, degraded=True)
        graded = await world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": 1.0})
        assert (graded.status_code, graded.json()["learned"]) == (200, learned)


@requirement("learning.own-hand")
async def test_an_agents_failures_at_its_own_tasks_teach_nothing_either(make_world: MakeWorld) -> None:
    world = await make_world()
    agent_id = await world.register(key_name="bob")
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    task_id = (await world.clients["BOB"].post("/api/v1/tasks", json=body)).json()["task_id"]
    claim = await world.claim(agent_id)
    body = {"epoch": claim["epoch"], "error": {"message": "no"}}
    await world.clients["BOB"].post(f"/api/v1/tasks/{task_id}/fail", json=body)
    assert await trust(world, agent_id) is None
    assert (await world.task(task_id))["learning_eligible"] is False


@requirement("learning.own-hand")
async def test_the_permission_admin_does_not_make_an_agents_key_a_person(make_world: MakeWorld) -> None:
    world = await make_world()
    for key_name in ("boss", None):
        agent_id = await world.register(key_name=key_name)
        task_id = await work(world, agent_id, "BOSS", "BOSS")
        assert await trust(world, agent_id) is None
        assert "share a key" in await skipped(world, task_id)


@requirement("learning.own-hand")
@pytest.mark.parametrize("key_name", [None, "nobody"])
async def test_a_key_that_may_register_agents_teaches_none_that_shows_no_key(
    make_world: MakeWorld, key_name: str | None
) -> None:
    async with serving(answering({"result": "fine"})) as endpoint:
        world = await make_world(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{endpoint.port}")
        agent_id = await world.register(runtime={"kind": "http", "endpoint": endpoint.url}, key_name=key_name)
        body = {"type": "echo", "input": "hello", "required_capabilities": ["echo"]}
        for submitter, expected in (("BOSS", None), ("BOB", 0.52), ("ADMIN", 0.54)):
            task_id = str((await world.clients[submitter].post("/api/v1/tasks", json=body)).json()["task_id"])
            assert (await world.ended(task_id))["status"] == "completed"
            assert await trust(world, agent_id) == expected, submitter


@requirement("learning.own-hand")
async def test_work_that_goes_round_through_another_agent_comes_back_without_a_lesson(make_world: MakeWorld) -> None:
    world = await make_world()
    agent_id = await world.register(key_name="bob")
    helper = await world.register(name="helper", key_name="boss")
    first = await work(world, helper, "BOB", "BOSS")
    assert await trust(world, helper) == 0.52
    second = await work(world, agent_id, "BOSS", "BOB", metadata={"parent_task_id": first})
    assert await trust(world, agent_id) is None
    assert "ancestors" in await skipped(world, second)


@requirement("learning.own-hand")
async def test_a_circle_of_parents_ends(make_world: MakeWorld) -> None:
    world = await make_world()
    agent_id = await world.register(key_name="bob")
    await work(world, agent_id, "ADMIN", "BOB", id="one")
    # As an older version stored it, when a parent did not have to exist.
    circle = Sql("update tasks set parent_task_id = 'two' where task_id = 'one'")
    await world.kernel.infra.db.write(lambda tx: tx.run(circle))
    await work(world, agent_id, "ADMIN", "BOB", id="two", metadata={"parent_task_id": "one"})
    assert await trust(world, agent_id) == 0.54


@requirement("learning.person-teaches")
async def test_a_person_who_does_everything_with_one_key_goes_on_learning(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_LEARNING_DAILY_LIMIT="1")
    for key_name in (None, "admin"):
        agent_id = await world.register(key_name=key_name)
        for _ in range(3):
            await work(world, agent_id, "ADMIN", "ADMIN")
        assert await trust(world, agent_id) == 0.56


@requirement("learning.daily-limit")
async def test_an_agents_key_teaches_another_agent_so_much_a_day_and_no_more(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_LEARNING_DAILY_LIMIT="2")
    agent_id = await world.register(key_name="other")
    for _ in range(3):
        task_id = await work(world, agent_id, "BOB", "ADMIN")
    assert await trust(world, agent_id) == 0.54
    assert "limit of 2 learned outcomes of this agent today" in await skipped(world, task_id)
    await work(world, agent_id, "ADMIN", "ADMIN")
    assert await trust(world, agent_id) == 0.56
    world.clock.advance(days=1)
    before = await trust(world, agent_id)
    await work(world, agent_id, "BOB", "ADMIN")
    after = await trust(world, agent_id)
    assert before is not None
    assert after is not None
    assert after > before


async def grade(world: World, key: str, task_id: str, value: float) -> tuple[int, Any]:
    answer = await world.clients[key].post(f"/api/v1/tasks/{task_id}/grade", json={"grade": value})
    return answer.status_code, answer.json()


async def weight(world: World, agent_id: str) -> float:
    answer = await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent_id})
    return float(answer.json()["weights"]["echo"])


@requirement("learning.daily-limit")
async def test_a_key_that_grades_the_work_of_another_agent_all_day_moves_it_so_often_and_no_more(
    make_world: MakeWorld,
) -> None:
    world = await make_world(SERVICE_LEARNING_DAILY_LIMIT="3")
    agent_id = await world.register(key_name="other")
    ids = [await work(world, agent_id, "ADMIN", "ADMIN") for _ in range(8)]
    score = await trust(world, agent_id)
    assert [(await grade(world, "BOSS", task_id, 0.0))[0] for task_id in ids[:6]] == [200] * 3 + [403] * 3
    after = await weight(world, agent_id)
    status, body = await grade(world, "BOSS", ids[6], 1.0)
    assert (status, body["error"]["code"]) == (403, "FORBIDDEN")
    assert "limit of 3 learned outcomes of this agent today" in body["error"]["message"]
    assert await weight(world, agent_id) == after
    assert await trust(world, agent_id) == score, "a grade moves no trust"
    status, body = await grade(world, "ADMIN", ids[5], 0.5)
    assert (status, body["learned"]) == (200, True), "what was refused is free for a person"
    world.clock.advance(days=1)
    assert (await grade(world, "BOSS", ids[6], 1.0))[0] == 200


@requirement("learning.daily-limit")
async def test_a_submitter_that_grades_its_own_tasks_is_counted_once_for_each(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_LEARNING_DAILY_LIMIT="2")
    agent_id = await world.register(key_name="other")
    ids = [await work(world, agent_id, "BOB", "ADMIN") for _ in range(4)]
    found = [await grade(world, "BOB", task_id, 0.0) for task_id in ids]
    assert [(status, body["learned"]) for status, body in found] == [(200, True)] * 2 + [(200, False)] * 2


@requirement("learning.daily-limit")
async def test_praise_by_an_ancestor_s_submitter_counts_like_its_own_tasks(make_world: MakeWorld) -> None:
    """An orchestrator's many tasks below one of the accomplice's are no way round the limit."""
    world = await make_world(SERVICE_LEARNING_DAILY_LIMIT="2")
    agent_id = await world.register(key_name="other")
    first = await work(world, agent_id, "BOSS", "ADMIN")
    below = {"metadata": {"parent_task_id": first}}
    ids = [await work(world, agent_id, "ADMIN", "ADMIN", **below) for _ in range(3)]
    assert (await grade(world, "BOB", ids[0], 1.0))[0] == 404, "without admin it does not even see them"
    assert [(await grade(world, "BOSS", task_id, 1.0))[0] for task_id in ids] == [200, 403, 403]


@requirement("learning.own-hand", "learning.daily-limit")
async def test_two_keys_that_praise_each_other_gain_nothing_by_grades(make_world: MakeWorld) -> None:
    """An outcome counts 1 at most, and a grade takes its place: praise cannot be counted twice."""
    world = await make_world()
    agent_id = await world.register(key_name="other")
    ids = [await work(world, agent_id, "BOB", "ADMIN") for _ in range(3)]
    before, score = await weight(world, agent_id), await trust(world, agent_id)
    for task_id in ids:
        assert (await grade(world, "BOB", task_id, 1.0))[1]["learned"] is True
    assert (await weight(world, agent_id), await trust(world, agent_id)) == (before, score)
