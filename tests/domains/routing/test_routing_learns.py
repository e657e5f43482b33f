"""The claim that routing learns, from outside: who gets the tasks when agents fail, recover, are new or go away."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stentor.core import jsontext
from stentor.core.clock import SECOND, format_iso
from stentor.core.db import Database
from stentor.core.db.driver import Driver
from stentor.domains.learning.service import EligibleOutcome
from stentor.domains.routing.explain import check_decision, explain_decision
from tests.conftest import MakeWorld, World, build_world
from tests.requirements import requirement

BOASTS: dict[str, Any] = {"alignment_score": 0.9, "accuracy_score": 0.9, "efficiency_score": 0.9}
MODEST: dict[str, Any] = {"alignment_score": 0.6, "accuracy_score": 0.6, "efficiency_score": 0.6}


async def one(world: World, fails: set[str], **fields: Any) -> str:
    """Submit a task and let the chosen agent end it; answers the agent's id."""
    task = await world.task(await world.submit(**fields))
    agent = str(task["assigned_agent"])
    claim = await world.claim(agent)
    body: dict[str, Any] = {"epoch": claim["epoch"]}
    body |= {"error": {"message": "no"}} if agent in fails else {"result": "yes"}
    verb = "fail" if agent in fails else "complete"
    answer = await world.admin.post(f"/api/v1/tasks/{task['task_id']}/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    return agent


async def learn(world: World, lessons: list[EligibleOutcome]) -> None:
    """As if these tasks had ended, in one transaction."""
    learning = world.kernel.agents.learning
    await world.kernel.infra.db.write(lambda tx: [learning.learn(tx, lesson, "root") for lesson in lessons])


async def explained(world: World, task_id: str) -> str:
    return explain_decision(await routing_of(world, task_id))


async def routing_of(world: World, task_id: str) -> dict[str, Any]:
    return dict((await world.admin.get(f"/api/v1/tasks/{task_id}/activity")).json()["routing"])


@requirement("routing.evidence-outweighs-declaration")
async def test_an_agent_that_always_fails_gets_at_most_five_of_sixty_tasks(world: World) -> None:
    bad, good = await world.register("bad", **BOASTS), await world.register("good", **MODEST)
    chosen = Counter([await one(world, {bad}) for _ in range(60)])
    assert 1 <= chosen[bad] <= 5
    assert chosen[bad] + chosen[good] == 60


async def skip(world: World, agent: str, body: dict[str, Any]) -> str:
    """Submit a task; `agent` ends it with this body, which teaches nothing, any other one does it."""
    task = await world.task(await world.submit())
    chosen = str(task["assigned_agent"])
    claim = await world.claim(chosen)
    report = body if chosen == agent else {"result": "yes"}
    verb = "fail" if "error" in report else "complete"
    answer = await world.admin.post(f"/api/v1/tasks/{task['task_id']}/{verb}", json={"epoch": claim["epoch"], **report})
    assert answer.status_code == 200, answer.text
    return chosen


@requirement("routing.tried-once")
async def test_an_agent_that_is_tried_again_and_teaches_nothing_does_not_get_every_task(world: World) -> None:
    bad, good = await world.register("bad"), await world.register("good")
    mixed = [(good, False), (good, False), (good, True)] * 4
    lessons = [(bad, False)] * 12 + [(good, True)] * 30 + mixed + [(good, True)] * 30
    await learn(
        world,
        [
            EligibleOutcome("default", f"t{n}", 1, agent, "echo", success, 1.0, 10)
            for n, (agent, success) in enumerate(lessons)
        ],
    )
    chosen = Counter([await skip(world, bad, {"result": "yes", "degraded": True}) for _ in range(20)])
    assert chosen == {bad: 1, good: 19}


@requirement("routing.degraded-results")
@pytest.mark.parametrize("seconds", [10, 600])
async def test_an_agent_with_a_good_record_that_only_degrades_loses_its_tasks(world: World, seconds: int) -> None:
    best, good = await world.register("best"), await world.register("good")
    lessons = [(best, True), (good, True)] * 18 + [(best, True), (good, False)] * 2
    await learn(
        world,
        [
            EligibleOutcome("default", f"t{n}", 1, agent, "echo", success, 1.0, 10)
            for n, (agent, success) in enumerate(lessons)
        ],
    )
    chosen = Counter[str]()
    for _ in range(20):
        chosen[await skip(world, best, {"result": "yes", "degraded": True})] += 1
        world.clock.advance(seconds=seconds)
        for agent in (best, good):
            await world.admin.post(f"/api/v1/agents/{agent}/claims", json={})  # they stay online
    assert 1 <= chosen[best] <= 5, chosen


@requirement("tasks.grade")
async def test_grades_that_come_after_many_more_tasks_still_count(world: World) -> None:
    poor = await world.register("poor")
    graded = [await world.do(poor) for _ in range(8)]
    later = [EligibleOutcome("default", f"t{n}", 1, poor, "echo", True, 1.0, 10) for n in range(50)]
    await learn(world, later)
    good = await world.register("good")
    assert await one(world, set()) == poor
    for task_id in graded:
        answer = await world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": 0})
        assert answer.status_code == 200, answer.text
    assert await one(world, set()) == good


@requirement("routing.evidence-outweighs-declaration")
async def test_a_new_agent_loses_no_first_task_by_what_it_never_had(world: World) -> None:
    old = await world.register("old")
    past = [EligibleOutcome("default", f"t{n}", 1, old, "echo", n % 4 != 0, 1.0, 10) for n in range(20)]
    await learn(world, past)
    new = await world.register("new")
    body = {"type": "echo", "input": "x", "required_capabilities": ["echo"]}
    for _ in range(8):
        refused = await world.admin.post("/api/v1/tasks", json=body | {"session": "gone"})
        assert refused.status_code == 400
    start_at = format_iso(world.clock.now() + 3600 * SECOND)
    later = [await world.task(await world.submit(start_at=start_at)) for _ in range(8)]
    assert {task["status"] for task in later} == {"waiting"}
    assert {task["assigned_agent"] for task in later} == {old, new}
    assert await one(world, set()) == new


@requirement("routing.evidence-outweighs-declaration")
async def test_many_at_once_do_not_all_try_the_same_agent(world: World) -> None:
    agents = [await world.register(name) for name in ("a", "b", "c")]
    burst = await asyncio.gather(*(world.submit() for _ in range(30)))
    chosen = Counter([(await world.task(task_id))["assigned_agent"] for task_id in burst])
    assert min(chosen[agent] for agent in agents) >= 5, chosen


@requirement("routing.many-at-once")
@pytest.mark.parametrize("waits_for", ["approval", "task"])
async def test_tasks_that_wait_are_spread_and_no_more_count_once_they_ended(world: World, waits_for: str) -> None:
    tier = {"trust_tier": "human"} if waits_for == "approval" else {}
    agents = [await world.register(name, **tier) for name in ("a", "b", "c")]
    fields = {} if waits_for == "approval" else {"after": [await world.submit(type="other")]}
    for _ in range(2):
        task_ids = [await world.submit(**fields) for _ in range(9)]
        assert {row["unlearned"] for row in (await routing_of(world, task_ids[0]))["candidates"]} == {0}
        chosen = Counter([(await world.task(task_id))["assigned_agent"] for task_id in task_ids])
        assert min(chosen[agent] for agent in agents) >= 1, chosen
        assert max(chosen.values()) <= 4, chosen
        for task_id in task_ids:
            assert (await world.admin.post(f"/api/v1/tasks/{task_id}/cancel")).status_code == 200


@requirement("routing.many-at-once")
async def test_many_retries_at_once_do_not_all_try_the_same_agent(world: World) -> None:
    bad = await world.register("bad", **BOASTS)
    task_ids = [await world.submit() for _ in range(9)]
    for _ in task_ids:
        claim = await world.claim(bad)
        body = {"epoch": claim["epoch"], "error": {"message": "no"}}
        assert (await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/fail", json=body)).status_code == 200
    agents = [await world.register(name) for name in ("a", "b", "c")]
    assert (await world.admin.post("/api/v1/bulk/tasks/retry", json={"task_ids": task_ids})).json()["succeeded"] == 9
    chosen = Counter([(await world.task(task_id))["assigned_agent"] for task_id in task_ids])
    # One that is being stored counts twice for a moment, so the shares are not always equal.
    assert min(chosen[agent] for agent in agents) >= 1, chosen
    assert max(chosen.values()) <= 5, chosen


@requirement("routing.evidence-outweighs-declaration")
async def test_a_task_that_starts_later_is_a_try_once_it_starts(world: World) -> None:
    old = await world.register("old")
    past = [EligibleOutcome("default", f"t{n}", 1, old, "echo", n % 4 != 0, 1.0, 10) for n in range(20)]
    await learn(world, past)
    new = await world.register("new", **MODEST)
    chosen: list[str] = []
    for _ in range(8):
        # It stays online. Before there is a task, which it must not get.
        await world.admin.post(f"/api/v1/agents/{old}/claims", json={})
        task_id = await world.submit(start_at=format_iso(world.clock.now() + 5 * SECOND))
        # It stays online; before the task's time, or it could get the task here.
        await world.admin.post(f"/api/v1/agents/{old}/claims", json={})
        world.clock.advance(seconds=6)
        await world.kernel.tasks.wakeups.tick()
        agent = str((await world.task(task_id))["assigned_agent"])
        chosen.append(agent)
        claim = await world.claim(agent)
        body = {"epoch": claim["epoch"]} | (
            {"result": 1} if agent == old else {"error": {"message": "x"}, "outcome_class": "provider_failure"}
        )
        verb = "complete" if agent == old else "fail"
        assert (await world.admin.post(f"/api/v1/tasks/{task_id}/{verb}", json=body)).status_code == 200
        world.clock.advance(seconds=40)
    assert 1 <= chosen.count(new) <= 4, chosen


@requirement("routing.provider-failures")
async def test_an_agent_whose_provider_fails_is_left_for_another_one_and_tried_again(world: World) -> None:
    bad, good = await world.register("bad", **BOASTS), await world.register("good", **MODEST)
    await learn(world, [EligibleOutcome("default", f"t{n}", 1, bad, "echo", True, 1.0, 10) for n in range(30)])
    await learn(world, [EligibleOutcome("default", f"g{n}", 1, good, "echo", n % 3 == 0, 1.0, 10) for n in range(30)])
    outage = {"error": {"message": "upstream"}, "outcome_class": "provider_failure"}
    chosen = Counter([await skip(world, bad, outage) for _ in range(20)])
    assert chosen == {bad: 3, good: 17}
    task_id = await world.submit()
    assert "rests because its provider failed" in (await explained(world, task_id))
    claim = await world.claim(good)
    await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json={"epoch": claim["epoch"], "result": 1})
    world.clock.advance(seconds=31)
    assert await skip(world, bad, outage) == bad  # one task, and it rests again
    assert await skip(world, bad, outage) == good
    world.clock.advance(seconds=31)
    assert [await skip(world, good, {"result": 1}) for _ in range(5)] == [bad] * 5


@requirement("routing.evidence-outweighs-declaration", "routing.change-is-noticed")
async def test_a_failing_agent_is_left_and_comes_back_when_the_other_one_fails(world: World) -> None:
    first, second = await world.register("first", **BOASTS), await world.register("second", **MODEST)
    early = Counter([await one(world, {second}) for _ in range(40)])
    assert early[first] >= 35
    left = Counter([await one(world, {first}) for _ in range(50)])
    assert left[second] >= 25
    back = Counter([await one(world, {second}) for _ in range(60)])
    assert back[first] >= 30


@requirement("routing.offline-workers")
async def test_a_worker_that_went_away_is_left_for_one_that_polls(world: World) -> None:
    gone, here = await world.register("gone", **BOASTS), await world.register("here", **MODEST)
    world.clock.advance(seconds=61)
    await world.admin.post(f"/api/v1/agents/{here}/claims", json={})
    task_id = await world.submit()
    task = await world.task(task_id)
    assert (task["assigned_agent"], task["notice"]) == (here, None)
    terms = {row["name"]: row["online"] for row in (await routing_of(world, task_id))["candidates"]}
    assert terms == {"gone": False, "here": True}
    await world.admin.post(f"/api/v1/agents/{gone}/claims", json={})
    assert (await world.task(await world.submit()))["assigned_agent"] == gone


@requirement("routing.offline-workers")
async def test_without_any_worker_the_task_waits_and_says_so(world: World) -> None:
    agent = await world.register()
    world.clock.advance(seconds=61)
    body = {"id": "lonely", "type": "echo", "input": 1, "required_capabilities": ["echo"]}
    first = await world.admin.post("/api/v1/tasks", json=body)
    assert (first.status_code, first.json()["status"], first.json()["notice"]) == (202, "queued", "no worker online")
    assert (await world.admin.post("/api/v1/tasks", json=body)).json() == first.json()
    assert (await world.task("lonely"))["notice"] == "no worker online"
    assert (await world.claim(agent))["task_id"] == "lonely"
    assert (await world.task("lonely"))["notice"] is None


@requirement("routing.notice-codes")
async def test_the_answer_to_a_submission_says_that_the_program_of_its_agent_never_connected(world: World) -> None:
    world.clock.advance(seconds=1)  # an agent as old as the process may have been registered before it
    agent = await world.register()
    body = {"id": "early", "type": "echo", "input": 1, "required_capabilities": ["echo"]}
    first = await world.admin.post("/api/v1/tasks", json=body)
    assert (first.json()["notice"], first.json()["notice_code"]) == ("no worker online", "NO_WORKER_ONLINE")
    assert (await world.task("early"))["notice_code"] == "NO_WORKER_ONLINE"
    await world.claim(agent)
    assert (await world.admin.post("/api/v1/tasks", json=body)).json() == first.json(), "as the first time"
    later = await world.admin.post("/api/v1/tasks", json={**body, "id": "later"})
    assert (later.json()["notice"], later.json()["notice_code"]) == (None, None)


@requirement("routing.offline-workers")
async def test_a_worker_that_holds_a_task_is_online_as_long_as_it_sends_heartbeats(world: World) -> None:
    busy, idle = await world.register("busy", **BOASTS), await world.register("idle", **MODEST)
    await world.submit()
    claim = await world.claim(busy, lease_seconds=300)
    for _ in range(4):
        world.clock.advance(seconds=40)
        beat = {"epoch": claim["epoch"], "lease_seconds": 300}
        await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/heartbeat", json=beat)
    rows = (await routing_of(world, await world.submit()))["candidates"]
    assert {row["name"]: (row["online"], row["ahead"]) for row in rows} == {"busy": (True, 1), "idle": (False, 0)}
    assert idle != busy


@requirement("routing.many-at-once")
async def test_tasks_that_arrive_together_are_spread_over_agents_that_nobody_knows(world: World) -> None:
    await world.register("a", **BOASTS)
    await world.register("b", **MODEST)
    rows = [await world.task(await world.submit()) for _ in range(32)]
    counts = Counter(row["assigned_agent"] for row in rows)
    assert len(counts) == 2
    assert min(counts.values()) >= 10


@requirement("tasks.queue-timeout")
async def test_a_task_that_waits_too_long_is_aborted_and_teaches_nothing(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(queue_timeout_seconds=30)
    held = await world.submit(queue_timeout_seconds=30)
    world.clock.advance(seconds=29)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "queued"
    assert (await world.claim(agent, lease_seconds=3600))["task_id"] == task_id
    world.clock.advance(seconds=2)
    await world.kernel.tasks.reconciler.tick(0)
    running, late = await world.task(task_id), await world.task(held)
    assert running["status"] == "executing"
    assert (late["status"], late["error"]["code"], late["learning_eligible"]) == ("aborted", "QUEUE_TIMEOUT", False)
    kinds = [event["event_type"] for event in await world.events(held)]
    assert kinds[-2:] == ["task_aborted", "learning_skipped"]
    total = (await world.admin.get("/api/v1/tasks", params={"status": "aborted"})).json()["total"]
    assert total == 1


@requirement("tasks.queue-timeout")
async def test_the_time_in_the_queue_begins_with_the_approval(world: World) -> None:
    await world.register(trust_tier="human")
    task_id = await world.submit(queue_timeout_seconds=30)
    world.clock.advance(seconds=3_600)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "pending_approval"
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/approve", json={})).status_code == 200
    for seconds, status in ((29, "queued"), (2, "aborted")):
        world.clock.advance(seconds=seconds)
        await world.kernel.tasks.reconciler.tick(0)
        assert (await world.task(task_id))["status"] == status
    assert (await world.task(task_id))["error"]["code"] == "QUEUE_TIMEOUT"


@requirement("tasks.queue-timeout")
async def test_a_retry_waits_as_long_again(world: World) -> None:
    await world.register()
    task_id = await world.submit(queue_timeout_seconds=30)
    world.clock.advance(seconds=31)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/retry")).status_code == 202
    world.clock.advance(seconds=29)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "queued"
    world.clock.advance(seconds=2)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "aborted"


@requirement("tasks.grade")
async def test_an_agent_cannot_keep_tasks_by_its_own_rating_against_bad_grades(world: World) -> None:
    liar, good = await world.register("liar", **BOASTS), await world.register("good", **MODEST)
    chosen = []
    for n in range(60):
        task = await world.task(await world.submit())
        agent = str(task["assigned_agent"])
        claim = await world.claim(agent)
        report = {"performance": 0.99} if agent == liar else {}
        path, body = f"/api/v1/tasks/{task['task_id']}", {"epoch": claim["epoch"], "result": "yes", **report}
        assert (await world.admin.post(f"{path}/complete", json=body)).status_code == 200
        if n % 6 == 0:
            # The first one shows that not only bad answers are graded.
            grade = 0.8 if agent == good else 0.5 if n == 0 else 0.3
            assert (await world.admin.post(f"{path}/grade", json={"grade": grade})).status_code == 200
        chosen.append(agent)
    assert chosen[0] == liar
    assert chosen[-20:].count(good) >= 15


@requirement("tasks.grade")
async def test_a_grade_corrects_what_was_learned_exactly_once(world: World) -> None:
    agent = await world.register()
    task_id = await world.do(agent)
    await world.do(agent)
    before = (await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent})).json()["weights"]["echo"]
    body = {"grade": 0.0, "comment": "Invented."}
    first = await world.admin.post(f"/api/v1/tasks/{task_id}/grade", json=body)
    assert (first.status_code, first.json()["learned"]) == (200, True)
    after = (await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent})).json()["weights"]["echo"]
    assert after == pytest.approx(before - 0.1 - 0.099667994624956)
    again = await world.admin.post(f"/api/v1/tasks/{task_id}/grade", json=body)
    assert again.json() == first.json()
    other = await world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": 1.0})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "CONFLICT")
    assert (await world.admin.get(f"/api/v1/tasks/{task_id}/grade")).json() == first.json()
    row = (await routing_of(world, await world.submit()))["candidates"][0]
    assert (row["rewards"], row["outcomes"], row["hebbian"]) == pytest.approx((1.0, 2.0, after))
    history = (await world.admin.get(f"/api/v1/hebbian/history/{agent}")).json()["history"]
    assert [(entry["result"], entry["delta"]) for entry in history] == [("graded", -1), ("success", 1), ("success", 1)]
    kinds = [event["event_type"] for event in await world.events(task_id)]
    assert kinds[-2:] == ["task_graded", "learning_updated"]


@requirement("tasks.grade", "learning.only-eligible-outcomes")
@pytest.mark.parametrize("grade", [0.0, 1.0])
async def test_a_grade_of_a_degraded_result_teaches_what_the_result_did_not(world: World, grade: float) -> None:
    agent = await world.register()
    await world.do(agent)
    path = f"/api/v1/hebbian/weights?agent_id={agent}"
    before = (await world.admin.get(path)).json()["weights"]["echo"]
    task_id = await world.do(agent, degraded=True)
    assert (await world.admin.get(path)).json()["weights"]["echo"] == before
    trust = (await world.admin.get(f"/api/v1/trust/{agent}")).json()
    graded = await world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": grade})
    assert (graded.status_code, graded.json()["learned"]) == (200, True)
    after = (await world.admin.get(path)).json()["weights"]["echo"]
    assert after == pytest.approx(before + (0.099667994624956 if grade else -0.1))
    row = (await routing_of(world, await world.submit()))["candidates"][0]
    assert (row["rewards"], row["outcomes"]) == pytest.approx((1 + grade, 2))
    assert (await world.admin.get(f"/api/v1/trust/{agent}")).json() == trust


@requirement("tasks.grade")
@pytest.mark.parametrize("grade", [-0.1, 1.1, "good", None, True])
async def test_a_grade_that_is_no_number_from_0_to_1_is_400(world: World, grade: Any) -> None:
    task_id = await world.do(await world.register())
    answer = await world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": grade})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("tasks.grade")
async def test_unfinished_and_unknown_tasks_are_not_graded(world: World) -> None:
    failed = await world.do(await world.register(), ok=False)
    queued = await world.submit()
    for task_id in (failed, queued):
        assert (await world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": 1})).status_code == 409
    assert (await world.admin.post("/api/v1/tasks/nothing/grade", json={"grade": 1})).status_code == 404
    assert (await world.admin.get(f"/api/v1/tasks/{queued}/grade")).status_code == 404


@requirement("routing.prefer")
async def test_an_unknown_preference_is_400_and_a_known_one_stands_in_the_decision(world: World) -> None:
    await world.register()
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"], "metadata": {"prefer": "luxury"}}
    refused = await world.admin.post("/api/v1/tasks", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert (await routing_of(world, await world.submit(metadata={"prefer": "cheap"})))["prefer"] == "cheap"
    assert (await routing_of(world, await world.submit()))["prefer"] == "balanced"


@requirement("routing.prefer")
async def test_what_an_agent_said_that_its_work_cost_decides_where_cheap_is_preferred(world: World) -> None:
    dear, cheap = await world.register("dear", **MODEST), await world.register("cheap", **MODEST)
    for agent, cost in ((dear, 0.5), (cheap, 0.01)):
        for _ in range(6):
            task_id = await world.submit(agent_preference=agent)
            claim = await world.claim(agent)
            body = {"epoch": claim["epoch"], "result": 1, "cost": cost}
            assert (await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=body)).status_code == 200
    task = await world.task(await world.submit(metadata={"prefer": "cheap"}))
    assert task["assigned_agent"] == cheap


@requirement("routing.untried-quick-and-free")
@pytest.mark.parametrize(("prefer", "cost", "seconds"), [("balanced", 1.0, 1), ("cheap", 1.0, 1), ("fast", 0.0, 20)])
async def test_a_cheaper_or_quicker_agent_is_found_beside_one_that_always_succeeds(
    world: World, prefer: str, cost: float, seconds: int
) -> None:
    first, better = await world.register("a", **MODEST), await world.register("b", **MODEST)
    chosen = Counter[str]()
    for _ in range(30):
        task = await world.task(await world.submit(metadata={"prefer": prefer}))
        agent = str(task["assigned_agent"])
        claim = await world.claim(agent)
        world.clock.advance(seconds=seconds if agent == first else 1)
        body = {"epoch": claim["epoch"], "result": 1, "cost": cost if agent == first else cost / 100}
        assert (await world.admin.post(f"/api/v1/tasks/{task['task_id']}/complete", json=body)).status_code == 200
        chosen[agent] += 1
    assert chosen[better] >= 25, chosen
    decision = await routing_of(world, await world.submit(metadata={"prefer": prefer}))
    assert check_decision(decision).is_reproduced


class Shop:
    """Agents that fail one of so many of their tasks, and in an outage all; it counts what each has got."""

    def __init__(self, world: World, fails_one_of: dict[str, int]) -> None:
        self.world = world
        self._fails_one_of = fails_one_of
        self._done = Counter[str]()
        self.newest = ""

    async def work(self, tasks: int, *, outage: bool = False, broken: str = "") -> Counter[str]:
        got = Counter[str]()
        for _ in range(tasks):
            self.newest = await self.world.submit()
            task = await self.world.task(self.newest)
            agent = str(task["assigned_agent"])
            got[agent] += 1
            self._done[agent] += 1
            ok = not outage and agent != broken and self._done[agent] % self._fails_one_of[agent] != 0
            claim = await self.world.claim(agent)
            body: dict[str, Any] = {"epoch": claim["epoch"]} | ({"result": 1} if ok else {"error": {"message": "no"}})
            url = f"/api/v1/tasks/{task['task_id']}/{'complete' if ok else 'fail'}"
            assert (await self.world.admin.post(url, json=body)).status_code == 200
            self.world.clock.advance(seconds=1)
        return got


async def open_shop(world: World, *fails_one_of: int) -> tuple[Shop, str]:
    """Return the shop and its best agent, the first one."""
    agents = [await world.register(f"agent-{n}", **MODEST) for n in range(len(fails_one_of))]
    return Shop(world, dict(zip(agents, fails_one_of, strict=True))), agents[0]


@requirement("routing.outage-of-all")
async def test_after_a_long_outage_of_all_agents_the_best_one_gets_its_tasks_back(world: World) -> None:
    shop, best = await open_shop(world, 20, 8, 5)
    await shop.work(30)
    await shop.work(160, outage=True)
    assert (await shop.work(20))[best] >= 15


@requirement("routing.outage-at-the-start")
async def test_an_outage_before_any_success_does_not_hide_the_best_agent(world: World) -> None:
    shop, best = await open_shop(world, 1_000, 3, 3)
    await shop.work(20, outage=True)
    await shop.work(80)
    assert (await shop.work(20))[best] >= 15


@requirement("routing.own-outage")
async def test_an_agent_that_failed_alone_for_a_short_time_gets_its_tasks_back(world: World) -> None:
    shop, best = await open_shop(world, 1_000, 40)
    assert (await shop.work(50))[best] >= 45
    assert (await shop.work(10, broken=best))[best] <= 5
    assert (await shop.work(40))[best] >= 1
    assert (await shop.work(20))[best] == 20
    decision = await routing_of(world, await world.submit())
    assert check_decision(decision).is_reproduced


@requirement("routing.own-outage")
async def test_a_decision_says_that_an_agent_is_tried_again_after_failures_in_a_row(world: World) -> None:
    shop, best = await open_shop(world, 1_000, 40)
    await shop.work(50)
    await shop.work(10, broken=best)
    assert (await shop.work(1))[best] == 0
    first_after = await routing_of(world, shop.newest)
    while not (await shop.work(1))[best]:
        pass
    retry = await routing_of(world, shop.newest)
    assert [[row["retry"] for row in each["candidates"]] for each in (first_after, retry)] == [
        [False] * 2,
        [True, False],
    ]
    assert explain_decision(retry).endswith(
        ", because after failures in a row it is tried again, ranked by its results from before them."
    )
    assert check_decision(retry).is_reproduced


@requirement("routing.own-outage")
async def test_an_agent_that_fails_for_good_costs_few_more_tasks(world: World) -> None:
    shop, best = await open_shop(world, 1_000, 40)
    await shop.work(50)
    assert (await shop.work(150, broken=best))[best] <= 10


@requirement("routing.outage-of-all")
async def test_an_outage_of_all_agents_is_noticed_after_a_restart(world: World, driver: Driver, tmp_path: Path) -> None:
    shop, best = await open_shop(world, 20, 4, 2)
    await shop.work(80)
    await shop.work(28, outage=True)
    await world.kernel.stop()  # else it would move tasks of agents of which only the next one knows that they work
    shop.world = await build_world(Database(driver), world.clock, tmp_path)
    try:
        await shop.work(2, outage=True)
        assert (await shop.work(20))[best] >= 15
    finally:
        await shop.world.kernel.stop()


@requirement("routing.neighbours")
async def test_a_new_task_type_starts_from_what_the_agent_showed_at_many_others(world: World) -> None:
    agent = await world.register()
    for n in range(30):
        task_id = await world.submit(type=f"type-{n}")
        claim = await world.claim(agent)
        body = {"epoch": claim["epoch"], "result": 1}
        await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=body)
    row = (await routing_of(world, await world.submit(type="new")))["candidates"][0]
    assert (row["elsewhere"], row["elsewhere_outcomes"], row["outcomes"]) == pytest.approx((1.0, 16.0, 0.0))


@pytest.mark.slow
@requirement("routing.neighbours")
async def test_ten_thousand_task_types_are_learned_from_and_known_after_a_restart(make_world: MakeWorld) -> None:
    world: World = await make_world()
    good, bad = await world.register("good", **MODEST), await world.register("bad", **BOASTS)
    await learn(world, [EligibleOutcome("default", f"bad-{n}", 1, bad, f"type-{n}", False, 1.0, 10) for n in range(30)])
    for start in range(0, 10_000, 1_000):
        numbers = range(start, start + 1_000)
        await learn(
            world, [EligibleOutcome("default", f"good-{n}", 1, good, f"type-{n}", True, 1.0, 10) for n in numbers]
        )
    again: World = await make_world()
    for task_type in ("type-7", "type-9999", "never-seen"):
        row = await again.task(await again.submit(type=task_type))
        assert row["assigned_agent"] == good, task_type


@requirement("tasks.nobody-grades-its-own-work")
async def test_an_agents_key_grades_what_it_asked_for_and_never_its_own_work(world: World) -> None:
    keyed = await world.register("keyed", key_name="BOB")
    task_id = await world.do(keyed)
    own = await world.clients["BOB"].post(f"/api/v1/tasks/{task_id}/grade", json={"grade": 1})
    assert (own.status_code, own.json()["error"]["code"]) == (403, "FORBIDDEN")
    other = await world.register("other", capabilities=["judge"])
    body = {"type": "judge", "input": 1, "required_capabilities": ["judge"]}
    asked = (await world.clients["BOB"].post("/api/v1/tasks", json=body)).json()["task_id"]
    claim = await world.claim(other)
    await world.admin.post(f"/api/v1/tasks/{asked}/complete", json={"epoch": claim["epoch"], "result": 1})
    answer = await world.clients["BOB"].post(f"/api/v1/tasks/{asked}/grade", json={"grade": 0.5})
    assert (answer.status_code, answer.json()["graded_by"]) == (200, "bob")


@requirement("routing.offline-endpoints")
async def test_an_endpoint_that_cannot_be_reached_is_left_for_half_a_minute(world: World) -> None:
    runtime = {"kind": "http", "endpoint": "https://agents.example.com/work"}
    await world.register("endpoint", runtime=runtime, **BOASTS)
    presence, agents = world.kernel.agents.presence, world.kernel.agents.registry.agents.list_by_tenant("default")
    endpoint = next(agent for agent in agents if agent.name == "endpoint")
    for online in (True, True, False):
        presence.record_failed_delivery(endpoint.agent_id)
        assert presence.is_online(endpoint) is online
    world.clock.advance(seconds=30)
    assert presence.is_online(endpoint)
    presence.record_delivery(endpoint.agent_id)
    presence.record_failed_delivery(endpoint.agent_id)
    assert presence.is_online(endpoint)


@requirement("routing.length")
async def test_an_agent_that_fails_long_inputs_keeps_the_short_ones(make_world: MakeWorld) -> None:
    world = await make_world()
    window, steady = await world.register("window", **BOASTS), await world.register("steady", **MODEST)
    short, long = {"text": "a" * 100}, {"text": "a" * 20_000}
    random = Random(1)
    for _ in range(40):
        # `steady` fails a third of all, `window` each long one.
        fails = {steady} if random.random() < 0.33 else set()
        await one(world, fails, input=short)
        await one(world, fails | {window}, input=long)
    public = await public_records(world, window)
    chosen = [Counter([await one(world, set(), input=text) for _ in range(5)]) for text in (short, long)]
    assert chosen == [{window: 5}, {steady: 5}]
    decided = await world.submit(input=long)
    assert "its expected result is better for inputs of this length" in await explained(world, decided)
    check = check_decision(await routing_of(world, decided))
    assert check.is_reproduced, check
    weights = await public_records(world, window)
    assert weights[0].keys() == public[0].keys()
    assert list(weights[0]["weights"]) == ["echo"]
    # What was learned is known after a restart.
    again: World = await make_world()
    assert [(await again.task(await again.submit(input=text)))["assigned_agent"] for text in (short, long)] == [
        window,
        steady,
    ]


async def public_records(world: World, agent: str) -> list[Any]:
    """What the API says of an agent's records."""
    paths = ("/api/v1/hebbian/weights?agent_id=", "/api/v1/hebbian/history/")
    return [(await world.admin.get(path + agent)).json() for path in paths]


@requirement("routing.length")
async def test_neither_the_caller_nor_the_agent_sees_the_length_as_metadata(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(input={"text": "é" * 10})
    assert "input_length" not in jsontext.dump(await world.task(task_id))
    assert "input_length" not in jsontext.dump(await world.claim(agent))
    refused = await world.admin.post(
        "/api/v1/tasks", json={"type": "echo", "input": 1, "metadata": {"input_length": 5}}
    )
    assert refused.status_code == 400


async def work_at_once(world: World, capacity: dict[str, int], tasks: int, at_once: int) -> tuple[int, int]:
    """Keep `at_once` tasks at the agents; one that begins more than its capacity fails them. Answers the numbers of
    tasks and of failures of the last half.
    """
    open_tasks: list[tuple[str, Any, bool]] = []
    held, failures = Counter[str](), 0
    for n in range(tasks):
        agent = str((await world.task(await world.submit()))["assigned_agent"])
        claim = await world.claim(agent)
        held[agent] += 1
        open_tasks.append((agent, claim, held[agent] <= capacity[agent]))
        if len(open_tasks) < at_once:
            continue
        agent, claim, ok = open_tasks.pop(0)
        held[agent] -= 1
        body: dict[str, Any] = {"epoch": claim["epoch"]} | ({"result": "yes"} if ok else {"error": {"message": "no"}})
        verb = "complete" if ok else "fail"
        answer = await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        failures += not ok and n >= tasks // 2
    return tasks // 2, failures


@requirement("routing.load")
async def test_tasks_are_spread_over_agents_that_get_worse_with_many_at_once(make_world: MakeWorld) -> None:
    world: World = await make_world()
    capacity = {await world.register(name): 4 for name in ("a", "b", "c", "d")}
    tasks, failures = await work_at_once(world, capacity, 300, 13)
    assert failures < tasks / 4, failures
    again: World = await make_world()
    records, known = (each.kernel.agents.learning.view.records("default", "echo") for each in (world, again))
    assert known.weights_by_agent == records.weights_by_agent
    assert known.load_effect() is not None
    decision = await routing_of(world, await world.submit())
    assert any(row["overload"] > 0 for row in decision["candidates"])
    assert check_decision(decision).is_reproduced
