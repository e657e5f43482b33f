"""Tasks that wait for a worker which went away, from outside: who gets them, how often, and what is recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from stentor.core.db import Sql, Tx
from stentor.domains.execution import rerouting
from stentor.domains.learning.service import EligibleOutcome
from stentor.domains.registry.model import Agent
from stentor.domains.routing import explain
from stentor.domains.tasks import store
from stentor.domains.tasks.access import require_task
from tests.conftest import MakeWorld, World
from tests.domains import endpoint
from tests.patience import soon
from tests.requirements import requirement

BOASTS: dict[str, Any] = {"alignment_score": 0.9, "accuracy_score": 0.9, "efficiency_score": 0.9}
MODEST: dict[str, Any] = {"alignment_score": 0.6, "accuracy_score": 0.6, "efficiency_score": 0.6}
INTERVAL = 60


async def polls(world: World, agent: str) -> list[dict[str, Any]]:
    """Show that a worker is there; it takes what waits for it."""
    answer = await world.admin.post(f"/api/v1/agents/{agent}/claims", json={"max": 100})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["tasks"])


async def assigned(world: World, task_id: str, agent: str) -> dict[str, Any]:
    """The task once it waits for this agent."""

    async def there() -> dict[str, Any] | None:
        task = await world.task(task_id)
        return task if task["assigned_agent"] == agent else None

    return dict(await soon(there))


async def decisions(world: World, task_id: str) -> list[dict[str, Any]]:
    return [event["metadata"] for event in await world.events(task_id) if event["event_type"] == "routing_decision"]


async def stays(world: World, task_id: str, agent: str) -> None:
    """Whatever was to be looked at has been looked at, and the task waits where it did."""
    await world.kernel.tasks.rerouting.tick()
    assert (await world.task(task_id))["assigned_agent"] == agent


@requirement("routing.offline-again")
async def test_what_waits_for_a_worker_that_goes_away_goes_to_one_that_is_there(world: World) -> None:
    gone, here = await world.register("gone", **BOASTS), await world.register("here", **MODEST)
    task_id = await world.submit(queue_timeout_seconds=3600)
    first = await world.task(task_id)
    assert first["assigned_agent"] == gone
    world.clock.advance(seconds=INTERVAL + 1)
    assert await polls(world, here) == []
    moved = await assigned(world, task_id, here)
    assert (moved["status"], moved["notice"]) == ("queued", None)
    assert await polls(world, gone) == []
    (claim,) = await polls(world, here)
    assert (claim["task_id"], claim["epoch"]) == (task_id, 1)
    done = await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json={"epoch": 1, "result": 1})
    assert done.status_code == 200
    for agent, lessons in ((gone, 0), (here, 1)):
        history = (await world.admin.get(f"/api/v1/hebbian/history/{agent}")).json()["history"]
        assert len(history) == lessons, "a move teaches nobody"


@requirement("routing.offline-again")
async def test_a_task_is_not_moved_to_the_worker_that_it_waits_for_when_that_is_back_meanwhile(world: World) -> None:
    agent_id = await world.register("back", **BOASTS)
    assert await polls(world, agent_id) == []
    task_id = await world.submit(queue_timeout_seconds=3600)
    agent = world.kernel.agents.registry.agents.get("default", agent_id)
    assert agent is not None
    assert await world.kernel.tasks.rerouting._reroute_queue(agent) == (0, None)
    assert len(await decisions(world, task_id)) == 1


@requirement("routing.offline-again", "routing.decision-recomputed")
async def test_the_move_is_a_decision_of_its_own_that_is_recomputed(world: World) -> None:
    gone, here = await world.register("gone", **BOASTS), await world.register("here", **MODEST)
    task_id = await world.submit()
    world.clock.advance(seconds=INTERVAL + 1)
    await polls(world, here)
    await assigned(world, task_id, here)
    first, second = await decisions(world, task_id)
    assert first["routing"]["agent_id"] == gone
    assert "rerouted_from" not in first
    assert second["rerouted_from"] == {"agent_id": gone, "agent_name": "gone", "reason": "offline"}
    assert [row["online"] for row in second["routing"]["candidates"]] == [True, False]
    assert all(explain.check_decision(made["routing"]).is_reproduced for made in (first, second))
    kinds = [event["event_type"] for event in await world.events(task_id)]
    assert kinds == ["prompt_received", *["routing_decision", "task_queued"] * 2]
    trail = (await world.admin.get(f"/api/v1/tasks/{task_id}/activity")).json()
    assert (trail["agent_name"], trail["routing"]["agent_id"]) == ("here", here)


@requirement("routing.offline-again")
async def test_without_anybody_it_waits_until_somebody_comes(world: World) -> None:
    await world.register("gone", **BOASTS)
    away = await world.register("away", **MODEST)
    world.clock.advance(seconds=INTERVAL + 1)
    task_id = await world.submit()
    assert (await world.task(task_id))["notice"] == "no worker online"
    await polls(world, away)
    assert (await assigned(world, task_id, away))["notice"] is None


@requirement("routing.offline-again")
async def test_an_agent_that_is_registered_later_gets_what_waits(world: World) -> None:
    gone = await world.register("gone")
    task_id = await world.submit()
    other = await world.submit(required_capabilities=[])
    world.clock.advance(seconds=INTERVAL + 1)
    await stays(world, task_id, gone)
    await world.register("stranger", capabilities=["dance"])
    assert (await assigned(world, other, (await named(world, "stranger"))))["status"] == "queued"
    await stays(world, task_id, gone)
    await assigned(world, task_id, await world.register("new"))


@requirement("routing.offline-again", "routing.authority-denied-403")
async def test_what_an_agent_submitted_moves_to_nobody_whom_it_could_not_have_given_it(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_AGENTS_OWN_AUTHORITY="1")
    gone = await world.register("gone", key_name="bob")
    answer = await world.clients["BOB"].post("/api/v1/tasks", json={"type": "x", "input": 1})
    task_id, ours = answer.json()["task_id"], await world.submit(required_capabilities=[])
    stranger = await world.register("stranger", capabilities=["dance"])
    world.clock.advance(seconds=INTERVAL + 1)
    await polls(world, stranger)
    await assigned(world, ours, stranger)
    await stays(world, task_id, gone)
    await assigned(world, task_id, await world.register("here", **MODEST))


async def named(world: World, name: str) -> str:
    rows = (await world.admin.get("/api/v1/registry/agents")).json()["agents"]
    return next(str(row["agent_id"]) for row in rows if row["name"] == name)


@requirement("routing.offline-again")
async def test_what_is_pinned_claimed_or_waits_for_approval_stays(world: World) -> None:
    gone = await world.register("gone", **BOASTS)
    claimed = await world.submit()
    assert (await world.claim(gone, lease_seconds=3600))["task_id"] == claimed
    pinned = await world.submit(agent_preference=gone, metadata={"priority": "high"})
    free = await world.submit(metadata={"priority": "low"}, timeout_seconds=3600)
    here = await world.register("here", **MODEST)
    await stays(world, free, gone)
    world.clock.advance(seconds=INTERVAL + 1)
    await polls(world, here)
    await assigned(world, free, here)
    for task_id in (pinned, claimed):
        await stays(world, task_id, gone)
    assert (await world.task(claimed))["status"] == "executing"
    assert (await world.task(pinned))["notice"] == "no worker online"


@requirement("routing.offline-again")
async def test_what_left_the_queue_of_a_new_agent_was_no_try_of_it(world: World) -> None:
    old = await world.register("old")
    past = [EligibleOutcome("default", f"t{n}", 1, old, "echo", n % 4 != 0, 1.0, 10) for n in range(20)]
    learning = world.kernel.agents.learning
    await world.kernel.infra.db.write(lambda tx: [learning.learn(tx, lesson, "root") for lesson in past])
    new = await world.register("new")
    world.clock.advance(seconds=INTERVAL + 1)
    moved = [await world.submit() for _ in range(2)]
    assert (await world.task(moved[0]))["assigned_agent"] == new
    await polls(world, old)
    for task_id in moved:
        await assigned(world, task_id, old)
    for claim in await polls(world, old):
        await world.admin.post(
            f"/api/v1/tasks/{claim['task_id']}/complete", json={"epoch": claim["epoch"], "result": 1}
        )
    await polls(world, new)
    assert (await world.task(await world.submit()))["assigned_agent"] == new


@requirement("routing.offline-again")
async def test_what_waits_for_a_suspended_worker_is_not_lost(world: World) -> None:
    gone, here = await world.register("gone", **BOASTS), await world.register("here", **MODEST)
    task_id = await world.submit()
    assert (await world.admin.post(f"/api/v1/registry/agents/{gone}/suspend", json={"reason": "x"})).status_code == 200
    world.clock.advance(seconds=INTERVAL + 1)
    assert (await world.admin.post(f"/api/v1/agents/{gone}/claims", json={})).status_code == 409
    await polls(world, here)
    await assigned(world, task_id, here)
    denied = (await decisions(world, task_id))[-1]["routing"]["denied"]
    assert [(one["name"], one["code"]) for one in denied] == [("gone", "ROUTING_AGENT_UNAVAILABLE")]


@requirement("routing.offline-again")
async def test_what_waits_for_a_suspended_worker_leaves_it_although_it_still_works(world: World) -> None:
    busy = await world.register("busy")
    held = await world.submit()
    assert [claim["task_id"] for claim in await polls(world, busy)] == [held]
    task_id, kept = await world.submit(), await world.submit(agent_preference=busy)
    here = await world.register("here")
    await stays(world, task_id, busy)
    assert (await world.admin.post(f"/api/v1/registry/agents/{busy}/suspend", json={"reason": "x"})).status_code == 200
    assert (await world.admin.post(f"/api/v1/tasks/{held}/heartbeat", json={"epoch": 1})).status_code == 200
    await assigned(world, task_id, here)
    assert (await decisions(world, task_id))[-1]["rerouted_from"]["reason"] == "suspended"
    waits = await world.task(kept)
    assert (waits["assigned_agent"], waits["notice_code"]) == (busy, "AGENT_SUSPENDED")
    assert waits["notice"] == "its agent busy is suspended: stentor agent activate busy"


@requirement("routing.offline-again")
async def test_no_task_gets_round_an_approval_or_into_one(world: World) -> None:
    careful = await world.register("careful", trust_tier="human", **BOASTS)
    waiting, approved = await world.submit(), await world.submit()
    assert (await world.admin.post(f"/api/v1/tasks/{approved}/approve")).status_code == 200
    world.clock.advance(seconds=INTERVAL + 1)
    plain = await world.register("plain", **MODEST)
    await stays(world, approved, careful)
    assert (await world.task(waiting))["status"] == "pending_approval"
    free = await world.submit()
    assert (await world.task(free))["assigned_agent"] == plain
    world.clock.advance(seconds=INTERVAL + 1)
    assert [claim["task_id"] for claim in await polls(world, careful)] == [approved]
    await stays(world, free, plain)


@requirement("routing.offline-again")
async def test_a_moved_task_keeps_its_place_and_the_end_of_its_patience(world: World) -> None:
    gone, here = await world.register("gone", **BOASTS), await world.register("here", **MODEST)
    old = await world.submit(queue_timeout_seconds=INTERVAL + 30)
    assert (await world.task(old))["assigned_agent"] == gone
    world.clock.advance(seconds=1)
    newer = await world.submit(agent_preference=here)
    world.clock.advance(seconds=INTERVAL)
    world.kernel.agents.presence.record_seen(here)
    await assigned(world, old, here)
    world.clock.advance(seconds=30)
    await world.kernel.tasks.reconciler.tick(0)
    late = await world.task(old)
    assert (late["status"], late["error"]["code"]) == ("aborted", "QUEUE_TIMEOUT")
    assert [claim["task_id"] for claim in await polls(world, here)] == [newer]


@requirement("routing.offline-again")
async def test_the_older_of_two_is_claimed_first_though_it_came_by_a_move(world: World) -> None:
    gone, here = await world.register("gone", **BOASTS), await world.register("here", **MODEST)
    old = await world.submit()
    assert (await world.task(old))["assigned_agent"] == gone
    world.clock.advance(seconds=1)
    newer = await world.submit(agent_preference=here)
    world.clock.advance(seconds=INTERVAL)
    world.kernel.agents.presence.record_seen(here)
    await assigned(world, old, here)

    async def both_wait() -> bool:
        return world.kernel.tasks.dispatcher.count_ahead(here) == 2

    # The row says it a moment before the queue in memory has it.
    await soon(both_wait)
    assert [claim["task_id"] for claim in await polls(world, here)] == [old, newer]


@requirement("routing.offline-again")
async def test_who_read_the_task_before_it_moved_changes_nothing(world: World) -> None:
    one, two = await world.register("one"), await world.register("two")
    task_id = await world.submit()

    def late(tx: Tx) -> tuple[bool, bool, bool]:
        task = require_task(tx, "default", task_id)
        other = two if task.assigned_agent == one else one
        moved = store.reassign(tx, task, other, "worker", "head of the first")
        again = store.reassign(tx, task, other, "worker", "head of the second")
        return (
            moved,
            again,
            store.end_without_learning(tx, task, "cancelled", "cancelled", None, "head of a cancellation"),
        )

    assert await world.kernel.infra.db.write(late) == (True, False, False)


@requirement("routing.offline-again")
async def test_two_that_come_and_go_do_not_throw_a_task_to_and_fro(world: World) -> None:
    one, two = await world.register("one", **BOASTS), await world.register("two", **MODEST)
    task_id = await world.submit()
    world.clock.advance(seconds=31)
    world.kernel.agents.presence.record_seen(two)
    world.clock.advance(seconds=30)
    await assigned(world, task_id, two)
    world.clock.advance(seconds=31)  # now the second is silent for too long, half a minute after the move
    assert await polls(world, one) == []
    await stays(world, task_id, two)
    assert (await world.task(task_id))["notice"] == "no worker online"
    world.clock.advance(seconds=30)
    await assigned(world, task_id, one)
    assert len(await decisions(world, task_id)) == 3


@requirement("routing.offline-again")
async def test_many_are_spread_over_those_that_are_there_and_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = await world.register("gone")
    ids = [await world.submit() for _ in range(rerouting.PAGE_SIZE + 30)]
    cancelled = ids.pop()
    assert (await world.admin.post(f"/api/v1/tasks/{cancelled}/cancel")).status_code == 200
    world.clock.advance(seconds=INTERVAL + 1)
    rerouter, all_are_here = world.kernel.tasks.rerouting, asyncio.Event()
    reroute = rerouter._reroute_queue

    async def reroute_once_all_are_here(agent: Agent) -> tuple[int, int | None]:
        await all_are_here.wait()
        return await reroute(agent)

    monkeypatch.setattr(rerouter, "_reroute_queue", reroute_once_all_are_here)
    here = [await world.register(name) for name in ("a", "b", "c")]
    all_are_here.set()

    async def waiting(agent: str) -> int:
        """How many tasks wait for an agent, as the service counts them."""
        answer = await world.admin.get("/api/v1/tasks", params={"agent_id": agent, "status": "queued", "limit": 1})
        return int(answer.json()["total"])

    async def none_left() -> bool:
        return await waiting(gone) == 0

    await soon(none_left)
    counts = Counter({agent: await waiting(agent) for agent in here})
    assert counts.total() == len(ids)
    assert max(counts.values()) <= len(ids) / 2
    assert min(counts.values()) > 0
    claims = [claim["task_id"] for agent in here for claim in await all_of(world, agent)]
    assert sorted(claims) == sorted(ids)
    assert await polls(world, gone) == []


async def all_of(world: World, agent: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while more := await polls(world, agent):
        found += more
    return found


@requirement("routing.offline-again")
async def test_a_retry_and_a_lost_lease_are_moved_as_well(world: World) -> None:
    gone = await world.register("gone", **BOASTS)
    task_id = await world.submit(timeout_seconds=3600)
    await world.claim(gone, lease_seconds=10)
    here = await world.register("here", **MODEST)
    world.clock.advance(seconds=INTERVAL + 1)
    world.kernel.agents.presence.record_seen(here)
    await world.kernel.tasks.reconciler.tick(1)
    await assigned(world, task_id, here)
    (claim,) = await polls(world, here)
    assert claim["epoch"] == 2
    kinds = [event["event_type"] for event in await world.events(task_id)]
    assert kinds[-4:] == ["task_requeued", "routing_decision", "task_queued", "task_started"]


@requirement("routing.offline-again")
async def test_an_endpoint_that_rests_is_not_called_until_its_rest_is_over(make_world: Any) -> None:
    world: World = await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1", SERVICE_AGENT_CONCURRENCY="1")
    async with endpoint.serving(endpoint.answering({"result": 1})) as server:
        url = server.url
    dead = await world.register("dead", runtime={"kind": "http", "endpoint": url}, **BOASTS)
    ids = [await world.submit(agent_preference=dead, metadata={"priority": "high"}) for _ in range(2)]
    for task_id in ids:
        assert (await world.ended(task_id))["error"]["code"] == "ENDPOINT_UNREACHABLE"
    here = await world.register("here", **MODEST)
    last = await world.submit(agent_preference=dead, metadata={"priority": "high"})
    assert (await world.ended(last))["error"]["code"] == "ENDPOINT_UNREACHABLE"
    pinned = await world.submit(agent_preference=dead)
    assert (await world.task(pinned))["notice"] == "the endpoint of dead does not answer; it is tried again"
    free = await world.submit()
    assert (await world.task(free))["assigned_agent"] == here
    await stays(world, pinned, dead)
    assert (await world.task(pinned))["status"] == "queued", "an endpoint that rests is not called"
    world.clock.advance(seconds=31)
    assert (await world.ended(pinned))["error"]["code"] == "ENDPOINT_UNREACHABLE"


@requirement("routing.offline-again", "routing.offline-endpoints")
async def test_tasks_in_line_for_an_endpoint_that_breaks_are_done_by_another_agent(make_world: Any) -> None:
    world: World = await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1", SERVICE_AGENT_CONCURRENCY="1")
    gate = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response({"result": 1})

    async with endpoint.serving(slow) as server:
        breaks = await world.register("breaks", runtime={"kind": "http", "endpoint": server.url}, **BOASTS)
        ids = [await world.submit() for _ in range(12)]
        await asyncio.wait_for(server.arrived.wait(), 60)
    # The endpoint is gone: the first attempt broke off, three more cannot reach it, and then it rests.
    here = await world.register("here", **MODEST)
    rest = ids[4:]
    for task_id in rest:
        await assigned(world, task_id, here)
    assert sorted(claim["task_id"] for claim in await polls(world, here)) == sorted(rest)
    ends = [(await world.ended(task_id))["error"]["code"] for task_id in ids[:4]]
    assert ends == ["ENDPOINT_FAILED", *["ENDPOINT_UNREACHABLE"] * 3]
    assert len((await world.admin.get(f"/api/v1/hebbian/history/{breaks}")).json()["history"]) == 4


@requirement("routing.offline-again")
async def test_the_most_urgent_move_first_and_no_page_misses_or_repeats_a_task(world: World) -> None:
    agent = await world.register()
    ids = [(await world.submit(metadata={"priority": name}), name) for name in ("low", "normal", "high") * 4]
    listed: list[store.Task] = []

    def page(tx: Tx) -> list[store.Task]:
        return store.list_reassignable(tx, "default", agent, listed[-1] if listed else None, 5)

    while part := await world.kernel.infra.db.read(page):
        listed += part
    urgency = ("high", "normal", "low")
    assert [task.task_id for task in listed] == [one for name in urgency for one, given in ids if given == name]


@requirement("tasks.long-queues")
@pytest.mark.only("sqlite", reason="the plan of PostgreSQL depends on its statistics")
async def test_a_page_of_the_tasks_that_may_move_sorts_no_queue(world: World) -> None:
    sql = Sql(f"explain query plan {store._LIST_REASSIGNABLE.text}")
    params = {"tenant": "t", "agent_id": "a", "priority": 2, "created_at": 0, "after": "", "parked": 1, "limit": 200}
    plan = await world.kernel.infra.db.read(lambda tx: tx.rows(sql, **params))
    assert ["INDEX tasks_by_agent_status" in row[-1] for row in plan] == [True]


async def take_one(world: World, agent: str) -> dict[str, Any]:
    (claim,) = (await world.admin.post(f"/api/v1/agents/{agent}/claims", json={"max": 1})).json()["tasks"]
    return dict(claim)


async def _nothing() -> int:
    return 0


async def assignments(world: World, task_ids: list[str]) -> list[str]:
    return [(await world.task(task_id))["assigned_agent"] for task_id in task_ids]


async def learn(world: World, agent: str, failures: int, count: int = 40) -> None:
    """Give an agent outcomes of a second each, the first ones failures."""
    lessons = [
        EligibleOutcome("default", f"{agent}-{n}", 1, agent, "echo", n >= failures, 1.0, 1000) for n in range(count)
    ]
    learning = world.kernel.agents.learning
    await world.kernel.infra.db.write(lambda tx: [learning.learn(tx, lesson, "root") for lesson in lessons])


@requirement("routing.busy-relieved")
async def test_a_worker_that_joins_shares_what_waits_for_a_busy_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = await world.register("busy")
    task_ids = [await world.submit() for _ in range(9)]
    await take_one(world, busy)
    here = await world.register("here")
    assert await polls(world, here) == []
    assert set(await assignments(world, task_ids)) == {busy}, "it has not waited for long"
    rerouter = world.kernel.tasks.rerouting
    relieve = rerouter._relieve_busy_agents
    with monkeypatch.context() as patch:
        patch.setattr(rerouter, "_relieve_busy_agents", _nothing)  # the job's own checks would move more
        await rerouter.tick()  # so that none is under way
        world.clock.advance(seconds=1)
        assert await relieve() == 1, "how fast it is may be seen first"
        (first,) = await polls(world, here)
    assert (await decisions(world, first["task_id"]))[-1]["rerouted_from"] == {
        "agent_id": busy, "agent_name": "busy", "reason": "busy",
    }  # fmt: skip
    claims = [first]
    for _ in range(6):
        world.clock.advance(seconds=1)
        for claim in claims:
            done = await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/complete", json={"epoch": 1, "result": 1})
            assert done.status_code == 200
        claims = await polls(world, here)
        await world.kernel.tasks.rerouting.tick()
    assert (await assignments(world, task_ids)).count(here) >= 3


@requirement("routing.busy-relieved")
async def test_an_agent_that_is_better_still_but_not_idle_keeps_nothing_from_the_idle_one(world: World) -> None:
    busy, third = await world.register("busy"), await world.register("third")
    for agent in (busy, third):
        await learn(world, agent, failures=1)
        await world.submit(agent_preference=agent)
        await take_one(world, agent)
    task_ids = [await world.submit() for _ in range(20)]
    await world.kernel.infra.db.write(
        lambda tx: tx.run(Sql("update tasks set assigned_agent = :a where status = 'queued'"), a=busy)
    )
    fair = await world.register("fair")
    await learn(world, fair, failures=5)
    world.clock.advance(seconds=2)
    assert await polls(world, fair) == []
    await world.kernel.tasks.rerouting.tick()
    assert fair in await assignments(world, task_ids)


@requirement("routing.busy-relieved")
async def test_a_task_that_waits_for_room_in_a_limit_waits_for_no_agent(world: World) -> None:
    busy = await world.register("busy")
    limited = [await world.submit(limit={"key": "k", "max": 1}) for _ in range(4)]
    await take_one(world, busy)
    free = await world.submit()
    assert await polls(world, busy) != []
    held, free = free, await world.submit()
    here = await world.register("here")
    for _ in range(4):
        world.clock.advance(seconds=1)
        await polls(world, here)
        await world.kernel.tasks.rerouting.tick()
    assert set(await assignments(world, [*limited, held])) == {busy}
    assert (await world.task(free))["assigned_agent"] == here


@requirement("routing.busy-relieved")
async def test_who_shares_no_capability_with_the_busy_agent_is_not_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = await world.register("busy")
    task_id = await world.submit()
    await take_one(world, busy)
    waiting = await world.submit()
    mailer = await world.register("mailer", capabilities=["mail"])
    monkeypatch.setattr(world.kernel.tasks.rerouting, "_relieve", None)  # would raise
    for _ in range(3):
        world.clock.advance(seconds=1)
        assert await polls(world, mailer) == []
        await stays(world, waiting, busy)
    assert (await world.task(task_id))["status"] == "executing"


async def moved_to(world: World, task_ids: list[str], agent: str) -> bool:
    return agent in await assignments(world, task_ids)


@requirement("routing.busy-relieved")
async def test_a_short_wait_for_the_better_agent_is_not_cut_short_but_a_long_one_is(world: World) -> None:
    good, fair = await world.register("good"), await world.register("fair")
    await learn(world, good, failures=1)
    await learn(world, fair, failures=7)
    held = await world.submit(agent_preference=good, timeout_seconds=3600)
    await take_one(world, good)
    task_id = await world.submit()
    assert (await world.task(task_id))["assigned_agent"] == good
    for seconds in (1, 1, 1):
        world.clock.advance(seconds=seconds)
        assert await polls(world, fair) == []
        await stays(world, task_id, good)
    for _ in range(12):
        world.clock.advance(seconds=5)
        await polls(world, fair)
        assert (await world.admin.post(f"/api/v1/tasks/{held}/heartbeat", json={"epoch": 1})).status_code == 200
        await world.kernel.tasks.rerouting.tick()
    await assigned(world, task_id, fair)
    made = (await decisions(world, task_id))[-1]["routing"]
    assert explain.check_decision(made).is_reproduced
    assert (await world.task(await world.submit()))["assigned_agent"] == fair, "nor does a new one wait for it"


@requirement("routing.busy-relieved")
async def test_what_is_pinned_or_was_begun_waits_for_the_busy_agent(world: World) -> None:
    busy = await world.register("busy")
    begun = await world.submit()
    assert (await take_one(world, busy))["task_id"] == begun
    world.clock.advance(seconds=120)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(begun))["status"] == "queued"
    assert (await take_one(world, busy))["epoch"] == 2
    waiting, pinned = await world.submit(), await world.submit(agent_preference=busy)
    world.clock.advance(seconds=2)
    never_there = await world.register("never there")
    await stays(world, waiting, busy)
    here = await world.register("here")
    assert await polls(world, here) == []
    await world.kernel.tasks.rerouting.tick()
    await assigned(world, waiting, here)
    assert never_there not in await assignments(world, [begun, waiting, pinned])
    assert (await world.task(pinned))["assigned_agent"] == busy


@requirement("routing.busy-relieved")
async def test_a_task_is_not_moved_to_the_agent_that_has_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    good, poor = await world.register("good"), await world.register("poor")
    await learn(world, good, failures=0)
    await learn(world, poor, failures=40)
    await world.submit(agent_preference=good, timeout_seconds=3600)
    await take_one(world, good)
    task_id = await world.submit()
    rerouter = world.kernel.tasks.rerouting
    agents = [rerouter._agents.find_in_any_tenant(each) for each in (good, poor)]
    # As if it had begun its task only after the idle agents were listed.
    monkeypatch.setattr(rerouter, "_list_idle", lambda tenant: agents)
    monkeypatch.setattr(rerouter, "_count_slots", lambda agent, decision: 1)
    world.clock.advance(seconds=10)
    await polls(world, poor)
    await rerouter.tick()
    decisions = [event for event in await world.events(task_id) if event["event_type"] == "routing_decision"]
    assert len(decisions) == 1


@requirement("routing.busy-relieved")
async def test_a_queue_of_which_nothing_moves_is_looked_at_less_and_less(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, poor = await world.register("good"), await world.register("poor")
    await learn(world, good, failures=0)
    await learn(world, poor, failures=40)
    held = await world.submit(agent_preference=good, timeout_seconds=3600)
    await take_one(world, good)
    task_id = await world.submit()
    looks = set()
    rerouter = world.kernel.tasks.rerouting
    relieve = rerouter._relieve

    async def counted(*given: Any) -> int:
        # The background job may look at the same time.
        looks.add(world.clock.now())
        return await relieve(*given)

    monkeypatch.setattr(rerouter, "_relieve", counted)
    for _ in range(120):
        world.clock.advance(seconds=1)
        await polls(world, poor)
        await world.admin.post(f"/api/v1/tasks/{held}/heartbeat", json={"epoch": 1})
        await rerouter.tick()
    assert 3 <= len(looks) <= 10
    assert (await world.task(task_id))["assigned_agent"] == good
