"""Workers: claim, heartbeat, tokens, complete and fail, each fenced by the epoch of the claim."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

import pytest

from stentor.core.clock import SECOND, format_iso
from stentor.core.db import Sql, Tx
from stentor.domains.tasks.model import TaskClaim
from stentor.domains.tasks.queues import lease_store
from tests.conftest import World
from tests.domains.streams import watch, watched
from tests.patience import soon
from tests.requirements import requirement

NOBODY = "00000000-0000-4000-8000-000000000000"


async def claims(world: World, agent: str, key: str = "ADMIN", **fields: Any) -> Any:
    return await world.clients[key].post(f"/api/v1/agents/{agent}/claims", json=fields)


async def tell(world: World, task_id: str, verb: str, key: str = "ADMIN", **body: Any) -> Any:
    return await world.clients[key].post(f"/api/v1/tasks/{task_id}/{verb}", json=body)


def reports(epoch: int) -> list[tuple[str, dict[str, Any]]]:
    """Every call that a worker makes about a task it holds."""
    return [
        ("heartbeat", {"epoch": epoch}),
        ("tokens", {"epoch": epoch, "tokens": ["x"]}),
        ("complete", {"epoch": epoch, "result": 1}),
        ("fail", {"epoch": epoch, "error": {"message": "no"}}),
    ]


@requirement("execution.claim-answer", "execution.idempotency-key-to-agent")
async def test_a_claim_hands_over_the_task_with_what_its_agent_needs(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(input={"a": 1}, timeout_seconds=77)
    claim = await world.claim(agent, lease_seconds=10)
    assert (claim["task_id"], claim["epoch"], claim["type"], claim["input"]) == (task_id, 1, "echo", {"a": 1})
    assert (claim["timeout_seconds"], claim["idempotency_key"]) == (77, f"{task_id}:1")
    assert claim["lease_until"] == format_iso(world.clock.now() + 10 * SECOND)
    assert (await world.task(task_id))["status"] == "executing"
    assert (await claims(world, agent)).json() == {"tasks": []}


WIRE = "#Mode: direct\n#Context: secret\n#Priority: low\n#ActionType: execute\n#TargetZone: kernel\n\n"


@requirement("atp.input-without-head", "atp.headers-hidden-from-agents")
async def test_an_input_in_the_wire_form_reaches_the_worker_without_its_head(world: World) -> None:
    agent = await world.register()
    await world.submit(input=f"{WIRE}#Mode: of transport\n")
    assert (await world.claim(agent))["input"] == "#Mode: of transport\n"


@requirement("atp.input-without-head")
@pytest.mark.parametrize(
    "text",
    [
        "# A heading\n\nText.",
        "#Mode: of transport\n\nBy train.",
        f" {WIRE}x",
        WIRE.replace("low", "lowest"),
        "#",
        {"text": f"{WIRE}x"},
    ],
)
async def test_an_input_that_is_no_message_reaches_the_worker_as_it_is(world: World, text: Any) -> None:
    agent = await world.register()
    await world.submit(input=text)
    assert (await world.claim(agent))["input"] == text


async def test_a_task_that_may_take_a_day_is_handed_over(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(timeout_seconds=86_400)
    assert (await world.claim(agent))["task_id"] == task_id


@requirement("execution.claim-answer")
async def test_a_claim_takes_at_most_max_and_none_twice(world: World) -> None:
    agent = await world.register()
    made = [await world.submit() for _ in range(5)]
    answers = await asyncio.gather(*(claims(world, agent, max=2) for _ in range(4)))
    taken = [[task["task_id"] for task in answer.json()["tasks"]] for answer in answers]
    assert sorted(len(part) for part in taken) == [0, 1, 2, 2]
    assert sorted(task for part in taken for task in part) == sorted(made)


@requirement("execution.priority-order")
async def test_tasks_come_by_priority_and_then_in_the_order_of_submission(world: World) -> None:
    agent = await world.register()
    made = {}
    for i, priority in enumerate(["low", "normal", "high", "low", "high", None]):
        made[await world.submit(metadata={"priority": priority} if priority else {})] = (priority, i)
        world.clock.advance(seconds=1)
    taken = [task["task_id"] for task in (await claims(world, agent, max=10)).json()["tasks"]]
    assert [made[task_id][1] for task_id in taken] == [2, 4, 1, 5, 0, 3]


async def test_many_tasks_are_claimed_in_few_statements_and_in_their_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await world.register()
    ids = [await world.submit(metadata={"priority": priority}) for priority in ("low", "high") for _ in range(10)]
    statements = list[Sql]()
    rows = Tx.rows

    def counted(tx: Tx, sql: Sql, **params: Any) -> list[Any]:
        statements.append(sql)
        return rows(tx, sql, **params)

    monkeypatch.setattr(Tx, "rows", counted)
    answer = await claims(world, agent, max=19)
    assert [claim["task_id"] for claim in answer.json()["tasks"]] == [*ids[10:], *ids[:9]]
    assert sum("status = 'executing'" in sql.text and sql.writes for sql in statements) == 2


@requirement("execution.claim-long-poll")
async def test_a_waiting_claim_answers_as_soon_as_work_is_there(world: World) -> None:
    agent = await world.register()
    waiting = asyncio.create_task(claims(world, agent, wait_seconds=60))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    task_id = await world.submit()
    answer = await asyncio.wait_for(waiting, 60)
    assert [task["task_id"] for task in answer.json()["tasks"]] == [task_id]


@requirement("execution.claim-long-poll")
async def test_a_claim_without_work_answers_an_empty_array_after_its_wait(world: World) -> None:
    agent = await world.register()
    answer = await claims(world, agent, wait_seconds=0.05)
    assert (answer.status_code, answer.json()) == (200, {"tasks": []})


@pytest.mark.parametrize(
    "fields",
    [{"max": 0}, {"max": 101}, {"wait_seconds": 61}, {"wait_seconds": -1}, {"lease_seconds": 0}, {"who": 1}],
    ids=str,
)
async def test_a_claim_out_of_range_is_refused(world: World, fields: dict[str, Any]) -> None:
    assert (await claims(world, await world.register(), **fields)).status_code == 400


async def test_only_a_known_worker_claims(world: World) -> None:
    assert (await claims(world, NOBODY)).status_code == 404
    builtin = await world.register(runtime={"kind": "builtin", "name": "summarizer"})
    assert (await claims(world, builtin)).status_code == 409


@requirement("execution.heartbeat-extends-lease")
async def test_a_heartbeat_moves_the_end_of_the_lease(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    epoch = (await world.claim(agent, lease_seconds=10))["epoch"]
    for _ in range(5):
        world.clock.advance(seconds=8)
        renewed = await tell(world, task_id, "heartbeat", epoch=epoch, lease_seconds=10)
        assert renewed.json()["lease_until"] == format_iso(world.clock.now() + 10 * SECOND)
        await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "executing"


@requirement("execution.tokens")
async def test_tokens_reach_the_readers_of_the_stream(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    epoch = (await world.claim(agent))["epoch"]
    reading = asyncio.create_task(watch(world, task_id))
    answer = await tell(world, task_id, "tokens", epoch=epoch, tokens=["one ", "two"])
    assert (answer.json()["task_id"], answer.json()["accepted"]) == (task_id, 2)
    await tell(world, task_id, "tokens", epoch=epoch, tokens=[" three"])
    await watched(world)
    await tell(world, task_id, "complete", epoch=epoch, result="one two three")
    frames = await reading
    assert "".join(f.data["text"] for f in frames if f.event == "token") == "one two three"


@requirement("execution.complete-and-fail")
async def test_complete_and_fail_end_the_task_with_what_they_bring(world: World) -> None:
    agent = await world.register()
    done = await world.submit()
    epoch = (await world.claim(agent))["epoch"]
    world.clock.advance(seconds=1.5)
    ended = (await tell(world, done, "complete", epoch=epoch, result={"x": 1}, performance=0.5)).json()
    assert ended == {"task_id": done, "status": "completed", "outcome_class": "success", "duration_ms": 1500}
    assert (await world.task(done))["result"] == {"x": 1}
    failed = await world.submit()
    epoch = (await world.claim(agent))["epoch"]
    error = {"message": "it broke", "code": "BROKE"}
    ended = (await tell(world, failed, "fail", epoch=epoch, error=error)).json()
    assert (ended["status"], ended["outcome_class"]) == ("failed", "agent_failure")
    task = await world.task(failed)
    assert (task["error"], task["result"]) == (error, None)


@requirement("execution.complete-and-fail")
@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("complete", {}),
        ("complete", {"result": 1, "performance": 0}),
        ("complete", {"result": 1, "performance": 1.1}),
        ("fail", {"error": {}}),
        ("fail", {"error": {"message": ""}}),
        ("fail", {"error": {"message": "x"}, "outcome_class": "timeout"}),
    ],
    ids=str,
)
async def test_a_report_of_another_shape_is_refused(world: World, verb: str, body: dict[str, Any]) -> None:
    agent = await world.register()
    task_id = await world.submit()
    epoch = (await world.claim(agent))["epoch"]
    assert (await tell(world, task_id, verb, epoch=epoch, **body)).status_code == 400
    assert (await world.task(task_id))["status"] == "executing"


@requirement("execution.stale-epoch-409", "execution.lost-lease")
async def test_an_epoch_that_is_not_the_tasks_current_one_changes_nothing(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    stale = (await world.claim(agent, lease_seconds=5))["epoch"]
    world.clock.advance(seconds=6)
    await world.kernel.tasks.reconciler.tick(0)
    current = (await world.claim(agent))["epoch"]
    assert current == stale + 1
    before = await world.task(task_id), await world.events(task_id)
    for epoch in (stale, current + 1):
        for verb, body in reports(epoch):
            answer = await tell(world, task_id, verb, **body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "LEASE_LOST"), verb
    assert (await world.task(task_id), await world.events(task_id)) == before
    assert (await tell(world, task_id, "complete", epoch=current, result=1)).status_code == 200


@requirement("execution.agent-key-bound-to-agent")
async def test_an_agents_key_claims_and_reports_only_for_its_own_agent(world: World) -> None:
    own = await world.register("bob", capabilities=["own"], key_name="BOB")
    other = await world.register("ann")
    refused = await claims(world, other, "BOB")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
    task_id = await world.submit()
    epoch = (await world.claim(other))["epoch"]
    for verb, body in reports(epoch):
        answer = await tell(world, task_id, verb, "BOB", **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND"), verb
    assert (await world.task(task_id))["status"] == "executing"
    asked = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    seen = (await world.clients["BOB"].post("/api/v1/tasks", json=asked)).json()["task_id"]
    answer = await tell(world, seen, "complete", "BOB", epoch=1, result=1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN"), "seen, but another agent's"
    mine = await world.submit(required_capabilities=["own"])
    (claim,) = (await claims(world, own, "BOB")).json()["tasks"]
    assert claim["task_id"] == mine
    assert (await tell(world, mine, "complete", "BOB", epoch=claim["epoch"], result=1)).status_code == 200


async def test_no_key_reports_on_a_task_of_another_tenant(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    epoch = (await world.claim(agent))["epoch"]
    for verb, body in reports(epoch):
        assert (await tell(world, task_id, verb, "OTHER", **body)).status_code == 404
    assert (await claims(world, agent, "OTHER")).status_code == 404


@requirement("activity.log-is-fail-closed")
async def test_a_claim_that_cannot_be_recorded_leaves_the_task_waiting(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    world.runlog.broken = True
    assert (await claims(world, agent)).status_code == 503
    world.runlog.broken = False
    assert (await world.task(task_id))["status"] == "queued"
    assert (await world.claim(agent))["task_id"] == task_id


@requirement("execution.worker-agent")
async def test_worker_reads_the_name_and_capabilities_of_its_own_agent_only(world: World) -> None:
    agent = await world.register("ann", key_name="BOB")
    other = await world.register("bob", key_name="SECOND")
    response = await world.clients["BOB"].get(f"/api/v1/agents/{agent}")
    assert response.json() == {"agent_id": agent, "name": "ann", "capabilities": ["echo"]}
    assert (await world.clients["BOB"].get(f"/api/v1/agents/{other}")).status_code == 403
    assert (await world.clients["BOB"].get("/api/v1/agents/none")).status_code == 404


@requirement("execution.worker-agent")
async def test_worker_finds_its_agent_by_name_and_another_keys_agent_not(world: World) -> None:
    agent = await world.register("ann", key_name="BOB")
    await world.register("bob", key_name="SECOND")
    bob = world.clients["BOB"]
    assert (await bob.get("/api/v1/agents/ann")).json()["agent_id"] == agent
    assert (await bob.get("/api/v1/agents/bob")).status_code == 404
    second = await world.register("ann", key_name="SECOND")
    assert (await bob.get("/api/v1/agents/ann")).json()["agent_id"] == agent
    ambiguous = await world.admin.get("/api/v1/agents/ann")
    assert ambiguous.status_code == 409
    assert "2 agents have the name 'ann'" in ambiguous.json()["error"]["message"]
    assert second in ambiguous.json()["error"]["message"]
    suspended = await world.admin.post(f"/api/v1/registry/agents/{second}/suspend", json={"reason": "a mistake"})
    assert suspended.status_code == 200
    assert (await world.admin.get("/api/v1/agents/ann")).json()["agent_id"] == agent
    missing = await world.admin.get("/api/v1/agents/none")
    assert "No agent has the id or the name 'none'" in missing.json()["error"]["message"]


async def is_online(world: World, agent: str) -> bool:
    return bool((await world.admin.get(f"/api/v1/registry/agents/{agent}")).json()["online"])


@requirement("execution.worker-leaves")
async def test_a_worker_that_leaves_is_offline_at_once_and_online_again_with_its_next_claim(world: World) -> None:
    agent = await world.register()
    await claims(world, agent)
    left = await world.admin.post(f"/api/v1/agents/{agent}/leave")
    assert left.json() == {"agent_id": agent, "online": False}
    assert not await is_online(world, agent)
    assert (await world.task(await world.submit()))["notice"] == "no worker online"
    assert len((await claims(world, agent)).json()["tasks"]) == 1
    assert await is_online(world, agent)


@requirement("execution.worker-leaves")
async def test_an_agent_stays_online_while_another_worker_of_it_waits_or_works(world: World) -> None:
    agent = await world.register()
    waiting = asyncio.create_task(claims(world, agent, wait_seconds=60))
    assert await soon(lambda: world.kernel.agents.presence.last_seen(agent) is not None)
    assert (await world.admin.post(f"/api/v1/agents/{agent}/leave")).json()["online"] is True
    task_id = await world.submit()
    (claim,) = (await waiting).json()["tasks"]
    # The task may have been claimed at another process: the row counts.
    assert (await world.admin.post(f"/api/v1/agents/{agent}/leave")).json()["online"] is True
    assert (await tell(world, task_id, "complete", epoch=claim["epoch"], result=1)).status_code == 200
    assert (await world.admin.post(f"/api/v1/agents/{agent}/leave")).json()["online"] is False


@requirement("execution.worker-leaves")
async def test_only_who_may_act_for_a_worker_says_that_it_leaves(world: World) -> None:
    agent, other = await world.register("ann", key_name="BOB"), await world.register("bob", key_name="SECOND")
    service = await world.register("service", runtime={"kind": "llm", "options": {"model": "sea/x"}})
    assert (await world.clients["BOB"].post(f"/api/v1/agents/{other}/leave")).status_code == 403
    assert (await world.admin.post(f"/api/v1/agents/{NOBODY}/leave")).status_code == 404
    assert (await world.admin.post(f"/api/v1/agents/{service}/leave")).status_code == 409
    await world.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "a mistake"})
    assert (await world.clients["BOB"].post(f"/api/v1/agents/{agent}/leave")).json()["online"] is False


async def test_an_id_with_a_slash_is_reached_by_the_fast_routes_and_labelled_by_its_template(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(id="a/b c%2F")
    claim = await world.claim(agent)
    assert claim["task_id"] == task_id
    path = f"/api/v1/tasks/{quote(task_id, safe='')}"
    for verb, body in reports(claim["epoch"])[:3]:
        assert (await world.admin.post(f"{path}/{verb}", json=body)).status_code == 200, verb
    assert (await world.task(quote(task_id, safe="")))["status"] == "completed"
    for odd in ("/api/v1/tasks//heartbeat", "/api/v1/tasks/heartbeat", "/api/v1//heartbeat"):
        assert (await world.admin.post(odd, json={"epoch": 1})).status_code in (404, 405), odd
    metrics = (await world.admin.get("/metrics")).text
    assert 'route="/api/v1/tasks/{task_id}/heartbeat"' in metrics
    assert "a/b" not in metrics


@requirement("execution.agent-key-bound-to-agent")
async def test_who_may_not_claim_changes_nothing_of_what_is_known_of_an_agent(world: World) -> None:
    agent = await world.register(key_name="SECOND")
    presence = world.kernel.agents.presence
    presence.record_poll(agent, "a poll", 3)
    assert (await claims(world, NOBODY, "BOB")).status_code == 404
    assert (await claims(world, agent, "BOB")).status_code == 403
    assert presence.concurrency(agent) == 3
    assert set(presence._slots) == {agent}


class Busy:
    """A queue of an agent from which others take each task."""

    async def claim(self, limit: int, lease: int) -> list[TaskClaim]:
        return []

    async def wait(self, seconds: float) -> bool:
        await asyncio.sleep(0)
        return True


@requirement("execution.claim-long-poll")
async def test_a_poll_ends_in_time_however_often_it_is_woken_for_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await world.register()
    monkeypatch.setattr(world.kernel.tasks.dispatcher, "poll", lambda _: nullcontext(Busy()))
    async with asyncio.timeout(200):
        assert (await claims(world, agent, wait_seconds=0.2)).json() == {"tasks": []}


@requirement("execution.stale-epoch-409")
async def test_a_lease_that_could_not_be_renewed_is_told_as_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await world.register()
    await world.submit()
    claim = await world.claim(agent)
    monkeypatch.setattr(lease_store, "renew_lease", lambda *_: False)
    answer = await tell(world, claim["task_id"], "heartbeat", epoch=claim["epoch"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "LEASE_LOST")


COUNTS = Sql("select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables where relname = 'tasks'")


@pytest.mark.only("postgresql", reason="it counts the updates that left all indexes as they were")
@requirement("execution.heartbeat-extends-lease")
async def test_a_renewal_of_a_lease_changes_no_index(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    claim = await world.claim(agent)

    def renew(tx: Tx) -> list[int]:
        (before,) = tx.rows(COUNTS)
        assert lease_store.renew_lease(tx, "default", task_id, claim["epoch"], SECOND)
        (after,) = tx.rows(COUNTS)
        return [new - old for old, new in zip(before, after, strict=True)]

    assert await world.kernel.infra.db.write(renew) == [1, 1]
