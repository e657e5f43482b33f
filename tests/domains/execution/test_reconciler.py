"""Repairs: lost leases, tasks past their time, restarts. Time is the fixed clock's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stentor.core.clock import SECOND
from stentor.core.db import Sql
from stentor.domains.execution import reconciler
from stentor.domains.execution.model import choose_repair, requeue_or_fail
from stentor.domains.tasks.model import Task, TaskMetadata
from tests.conftest import MakeWorld, World
from tests.requirements import requirement

TASK = Task(
    tenant="default",
    task_id="t",
    status="executing",
    type="echo",
    priority=2,
    assigned_agent="a",
    runtime_kind="worker",
    created_at=0,
    queued_at=0,
    start_time=0,
    completion_time=None,
    timeout_seconds=300,
    epoch=1,
    attempt_epoch=0,
    lease_until=30 * SECOND,
    deadline_at=300 * SECOND,
    outcome_class=None,
    learning_eligible=None,
    learning_pending=False,
    performance=None,
    provenance_id="p",
    head_id="h",
    parent_task_id=None,
    submitted_by="admin",
    submitted_status="queued",
    estimated_start=0,
    estimated_completion=0,
    body_hash="",
    required_capabilities=(),
    agent_preference=None,
    metadata=TaskMetadata(),
    error=None,
    result=None,
)


@pytest.mark.parametrize(
    ("now", "epoch", "expected"),
    [(29, 1, None), (30, 1, "requeue"), (30, 4, "requeue"), (30, 5, "fail"), (299, 5, "fail"), (300, 1, "abort")],
)
def test_a_repair_is_decided_by_lease_attempts_and_deadline(now: int, epoch: int, expected: str | None) -> None:
    assert choose_repair(msgspec.structs.replace(TASK, epoch=epoch), now * SECOND, 5) == expected


def test_a_retry_counts_its_attempts_anew() -> None:
    assert requeue_or_fail(msgspec.structs.replace(TASK, epoch=9, attempt_epoch=5), 5) == "requeue"
    assert requeue_or_fail(msgspec.structs.replace(TASK, epoch=10, attempt_epoch=5), 5) == "fail"


async def kinds(world: World, task_id: str) -> list[str]:
    return [event["event_type"] for event in await world.events(task_id)]


@requirement("execution.lost-lease")
async def test_a_lost_lease_puts_the_task_back_and_its_next_claim_has_a_higher_epoch(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    first = await world.claim(agent, lease_seconds=30)
    world.clock.advance(seconds=29)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "executing"
    world.clock.advance(seconds=2)
    await world.kernel.tasks.reconciler.tick(0)
    task = await world.task(task_id)
    assert (task["status"], task["start_time"], task["assigned_agent"]) == ("queued", None, agent)
    assert (await kinds(world, task_id))[-1] == "task_requeued"
    again = await world.claim(agent)
    assert (again["task_id"], again["epoch"]) == (task_id, first["epoch"] + 1)


@requirement("execution.lost-lease")
async def test_when_no_attempts_are_left_a_lost_lease_fails_the_task(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_TASK_MAX_ATTEMPTS="2")
    agent = await world.register()
    task_id = await world.submit()
    for _ in range(2):
        await world.claim(agent, lease_seconds=5)
        world.clock.advance(seconds=6)
        await world.kernel.tasks.reconciler.tick(0)
    task = await world.task(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "LEASE_LOST")
    assert (task["outcome_class"], task["attempts"]) == ("agent_failure", 2)
    weights = await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent})
    assert weights.json()["weights"] == {"echo": 0.9}
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/retry")).status_code == 202
    assert (await world.claim(agent))["epoch"] == 3


@requirement("tasks.timeout-aborts")
async def test_a_task_past_its_timeout_is_aborted_whatever_its_lease(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(timeout_seconds=60)
    epoch = (await world.claim(agent, lease_seconds=3600))["epoch"]
    world.clock.advance(seconds=61)
    await world.kernel.tasks.reconciler.tick(0)
    task = await world.task(task_id)
    assert (task["status"], task["error"]["code"], task["outcome_class"]) == ("aborted", "TIMEOUT", "timeout")
    assert task["learning_eligible"] is True
    assert "task_aborted" in await kinds(world, task_id)
    late = await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json={"epoch": epoch, "result": 1})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "LEASE_LOST")
    weights = await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent})
    assert weights.json()["weights"] == {"echo": 0.9}


@requirement("tasks.timeout-aborts")
async def test_waiting_in_the_queue_uses_up_no_timeout(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(timeout_seconds=5)
    world.clock.advance(seconds=60)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.claim(agent, lease_seconds=60))["task_id"] == task_id


@requirement("tasks.timeout-aborts")
async def test_what_is_overdue_before_the_next_tick_is_repaired_on_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "seconds_until_tick", lambda seconds: 1.0)
    agent = await world.register()
    runs, renews = await world.submit(timeout_seconds=60), await world.submit(timeout_seconds=86_400)
    await world.claim(agent, lease_seconds=3600)
    epoch = (await world.claim(agent, lease_seconds=60))["epoch"]
    waits = await world.submit(queue_timeout_seconds=60)
    job = world.kernel.tasks.reconciler
    world.clock.advance(seconds=58)
    assert await job.tick(0) == []
    world.clock.advance(seconds=1.5)
    begun = asyncio.get_running_loop().time()
    repairs = await job.tick(0)
    assert len(repairs) == 3
    assert all(at - begun > 0.4 for at, _ in repairs)
    assert [(await world.task(each))["status"] for each in (runs, renews, waits)] == [
        "executing",
        "executing",
        "queued",
    ]
    beat = await world.admin.post(f"/api/v1/tasks/{renews}/heartbeat", json={"epoch": epoch, "lease_seconds": 3600})
    assert beat.status_code == 200, beat.text
    world.clock.advance(seconds=600)
    await job.repair_on_time(repairs)
    assert [(await world.task(each))["status"] for each in (runs, renews, waits)] == ["aborted", "executing", "aborted"]


@requirement("tasks.timeout-aborts")
async def test_an_agent_that_renews_its_lease_all_the_time_does_not_outlive_its_timeout(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "seconds_until_tick", lambda seconds: 1.0)
    agent = await world.register()
    task_id = await world.submit(timeout_seconds=60)
    epoch = (await world.claim(agent, lease_seconds=3600))["epoch"]
    job = world.kernel.tasks.reconciler
    world.clock.advance(seconds=59.5)
    repairs = await job.tick(0)
    beat = await world.admin.post(f"/api/v1/tasks/{task_id}/heartbeat", json={"epoch": epoch, "lease_seconds": 3600})
    assert beat.status_code == 200, beat.text
    world.clock.advance(seconds=0.6)
    await job.repair_on_time(repairs)
    task = await world.task(task_id)
    assert (task["status"], (task["error"] or {}).get("code")) == ("aborted", "TIMEOUT")


@requirement("tasks.timeout-aborts")
@pytest.mark.parametrize("seconds", [59.5, 61])
async def test_repairs_that_are_due_at_the_same_time_are_written_together(
    world: World, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(reconciler, "seconds_until_tick", lambda seconds: 1.0)
    agent = await world.register()
    tasks = [await world.submit(timeout_seconds=60) for _ in range(5)]
    for _ in tasks:
        await world.claim(agent, lease_seconds=3600)
    job, db, running = world.kernel.tasks.reconciler, world.kernel.infra.db, [0]
    write = db.write

    async def counted(work: Any, *args: Any) -> Any:
        if not work.__qualname__.startswith("Reconciler._repair"):
            return await write(work, *args)  # of another job
        running.append(running[-1] + 1)
        result = await write(work, *args)
        running.append(running[-1] - 1)
        return result

    monkeypatch.setattr(db, "write", counted)
    world.clock.advance(seconds=seconds)
    repairs = await job.tick(0)
    world.clock.advance(seconds=1)
    await job.repair_on_time(repairs)
    # Twice as many if the service's own tick found them too.
    assert max(running) >= len(tasks)
    assert {(await world.task(each))["status"] for each in tasks} == {"aborted"}


async def test_two_reconcilers_repair_a_task_once(make_world: MakeWorld) -> None:
    world, second = await make_world(), await make_world()
    agent = await world.register()
    task_id = await world.submit()
    await world.claim(agent, lease_seconds=5)
    world.clock.advance(seconds=6)
    await world.kernel.tasks.reconciler.tick(0)
    await second.kernel.tasks.reconciler.tick(0)
    assert (await kinds(world, task_id)).count("task_requeued") == 1


@requirement("activity.log-is-fail-closed")
async def test_a_repair_that_cannot_be_recorded_is_done_later(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    await world.claim(agent, lease_seconds=5)
    world.runlog.broken = True
    world.clock.advance(seconds=6)
    with pytest.raises(Exception, match="run log"):
        await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "executing"
    world.runlog.broken = False
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "queued"


@requirement("execution.claim-long-poll")
@pytest.mark.only("sqlite", reason="only a process that is alone keeps what waits in memory")
async def test_what_a_scan_offers_again_does_not_hide_what_waits_behind_it(world: World) -> None:
    agent = await world.register()
    first, second = [await world.submit() for _ in range(2)]
    take_up = await world.kernel.infra.db.read(world.kernel.tasks.dispatcher.refill_query())
    assert (await world.claim(agent))["task_id"] == first
    take_up()
    assert (await world.claim(agent))["task_id"] == second


async def test_a_forgotten_queue_entry_is_found_again(make_world: MakeWorld) -> None:
    world = await make_world()
    agent = await world.register()
    task_id = await world.submit()
    later = await make_world()
    claims = await later.admin.post(f"/api/v1/agents/{agent}/claims", json={})
    assert [task["task_id"] for task in claims.json()["tasks"]] == [task_id]


async def interrupted(world: World, **fields: Any) -> str:
    """A builtin agent's task that was executing when its process went away."""
    await world.register("sum", capabilities=["sum"], runtime={"kind": "builtin", "name": "summarizer"})
    await world.kernel.tasks.dispatcher.close(0, asyncio.Event())
    task_id = await world.submit(input="One sentence. Another one.", required_capabilities=["sum"], **fields)
    executing = Sql(
        "update tasks set status = 'executing', epoch = epoch + 1, start_time = queued_at, "
        "lease_until = queued_at + 60000000, deadline_at = queued_at + 300000000 where task_id = :task_id"
    )
    count = Sql("update task_counts set status = 'executing' where status = 'queued'")
    await world.kernel.infra.db.write(lambda tx: (tx.run(executing, task_id=task_id), tx.run(count)))
    return task_id


@requirement("execution.survives-restart")
@pytest.mark.only("sqlite", reason="only there is a process that starts known to be alone")
async def test_work_that_ran_inside_the_service_is_taken_up_at_the_next_start(make_world: MakeWorld) -> None:
    task_id = await interrupted(await make_world())
    later = await make_world()
    task = await later.ended(task_id)
    assert (task["status"], task["attempts"]) == ("completed", 2)
    assert (await kinds(later, task_id)).count("task_requeued") == 1
    assert (await later.admin.get("/api/v1/tasks", params={"status": "completed"})).json()["total"] == 1


@requirement("execution.survives-restart")
async def test_a_start_beside_other_processes_takes_up_only_what_lost_its_lease(make_world: MakeWorld) -> None:
    task_id = await interrupted(await make_world())
    later = await make_world()
    if later.kernel.infra.db.driver.shared:
        assert (await later.task(task_id))["status"] == "executing"
        later.clock.advance(seconds=61)
        await later.kernel.tasks.reconciler.tick(0)
    assert (await later.ended(task_id))["status"] == "completed"


@requirement("scale.drain")
async def test_what_a_leaving_process_gives_back_is_no_attempt_that_its_agent_lost(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_TASK_MAX_ATTEMPTS="2")
    agent = await world.register()
    task_id = await world.submit()
    reconciler = world.kernel.tasks.reconciler
    for _ in range(3):
        claim = await world.claim(agent)
        held = SimpleNamespace(tenant="default", task_id=task_id, epoch=claim["epoch"])
        await reconciler.release_claims([held])
    await world.claim(agent, lease_seconds=5)
    world.clock.advance(seconds=6)
    await reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "queued", "one of two attempts is lost"
    await world.claim(agent, lease_seconds=5)
    world.clock.advance(seconds=6)
    await reconciler.tick(0)
    assert (await world.task(task_id))["error"]["code"] == "LEASE_LOST"
