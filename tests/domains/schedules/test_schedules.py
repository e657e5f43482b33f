"""Schedules: tasks that are submitted again and again. Time is the fixed clock's."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import httpx
import pytest

from stentor.auth.principal import Principal
from stentor.bootstrap.parts.tasks import open_schedules
from stentor.core.db import Sql
from stentor.domains.keys import store as key_store
from stentor.domains.keys.service import reserve_name
from stentor.domains.schedules import model, scheduler, store
from tests.conftest import MakeWorld, World
from tests.requirements import requirement

PATH = "/api/v1/schedules"
TASK = {"type": "echo", "input": "hello", "required_capabilities": ["echo"]}
MINUTE, HOUR = 60, 3600


async def create(world: World, name: str = "s", who: str = "ADMIN", status: int = 201, **fields: Any) -> Any:
    body = {"name": name, "cron": "* * * * *", "task": TASK, **fields}
    answer = await world.clients[who].post(PATH, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def change(world: World, name: str = "s", who: str = "ADMIN", status: int = 200, **fields: Any) -> Any:
    answer = await world.clients[who].patch(f"{PATH}/{name}", json=fields)
    assert answer.status_code == status, answer.text
    return answer.json()


async def read(world: World, name: str = "s") -> Any:
    return ok(await world.admin.get(f"{PATH}/{name}"))


async def runs(world: World, name: str = "s") -> list[dict[str, Any]]:
    return list(ok(await world.admin.get(f"{PATH}/{name}/runs", params={"limit": 200}))["runs"])


async def tasks(world: World) -> list[dict[str, Any]]:
    return list(ok(await world.admin.get("/api/v1/tasks"))["tasks"])


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


async def later(world: World, seconds: float) -> None:
    world.clock.advance(seconds=seconds)
    await world.kernel.schedules.scheduler.tick()


@requirement("schedules.times")
async def test_a_task_is_submitted_at_each_time_and_not_before(world: World) -> None:
    agent = await world.register()
    made = await create(world)
    assert made["description"] == "Every minute"
    assert made["next_at"] == made["next_times"][0] < made["next_times"][1]
    await world.kernel.schedules.scheduler.tick()
    assert await runs(world) == []
    for count in (1, 2, 3):
        due = (await read(world))["next_at"]
        await later(world, MINUTE)
        (last, *_) = found = await runs(world)
        assert (len(found), last["outcome"], last["due_at"], last["reason"]) == (count, "submitted", due, None)
        await world.kernel.schedules.scheduler.tick()
    task = await world.task(last["task_id"])
    assert (task["assigned_agent"], task["type"], task["metadata"]) == (agent, "echo", {"schedule": "s"})
    assert len(await tasks(world)) == 3


@requirement("schedules.once")
async def test_several_schedulers_submit_one_task_for_each_time(world: World) -> None:
    await world.register()
    for number in range(5):
        await create(world, f"s{number}", missed="all")
    others = [
        open_schedules(
            world.kernel.infra, world.kernel.tasks.submission, world.kernel.agents.routing.is_active
        ).scheduler
        for _ in range(3)
    ]
    world.clock.advance(seconds=10 * MINUTE)
    await asyncio.gather(*(each.tick() for each in (world.kernel.schedules.scheduler, *others)))
    for number in range(5):
        due = [run["due_at"] for run in await runs(world, f"s{number}")]
        assert len(due) == len(set(due)) == 10
    assert len(await tasks(world)) == 50


@requirement("schedules.once")
async def test_a_run_that_could_not_be_stored_is_made_later(world: World) -> None:
    await world.register()
    await create(world)
    world.runlog.broken = True
    world.clock.advance(seconds=MINUTE)
    with pytest.raises(Exception, match="injected"):
        await world.kernel.schedules.scheduler.tick()
    assert (await runs(world), await tasks(world)) == ([], [])
    world.runlog.broken = False
    await world.kernel.schedules.scheduler.tick()
    assert (len(await runs(world)), len(await tasks(world))) == (1, 1)


@requirement("schedules.missed")
async def test_missed_times_are_made_up_for_as_the_schedule_says(world: World) -> None:
    await world.register()
    for missed in ("skip", "one", "all"):
        await create(world, missed, missed=missed, cron="0 * * * *")
    first = (await read(world, "all"))["next_at"]
    await later(world, until(await read(world, "all")) - world.clock.now() / 1e6 + 5 * HOUR + 30 * MINUTE)
    counted = {name: len(await runs(world, name)) for name in ("skip", "one", "all")}
    assert counted == {"skip": 1, "one": 1, "all": 6}
    (skipped,) = await runs(world, "skip")
    assert (skipped["outcome"], skipped["due_at"], skipped["task_id"]) == ("skipped", first, None)
    assert skipped["reason"] == "Missed: no service ran at this time."
    assert {(await read(world, name))["next_at"] for name in counted} == {(await read(world, "one"))["next_at"]}
    assert len(await tasks(world)) == counted["all"] + 1


@requirement("schedules.overlap")
async def test_a_run_is_skipped_while_the_task_before_has_not_ended(world: World) -> None:
    agent = await world.register()
    await create(world, overlap="skip")
    await later(world, MINUTE)
    await later(world, MINUTE)
    skipped, first = await runs(world)
    assert (first["outcome"], skipped["outcome"], skipped["task_id"]) == ("submitted", "skipped", None)
    assert skipped["reason"] == f"The task of the previous run, {first['task_id']}, has not ended."
    claim = await world.claim(agent)
    ok(
        await world.admin.post(
            f"/api/v1/tasks/{first['task_id']}/complete", json={"epoch": claim["epoch"], "result": 1}
        )
    )
    await later(world, MINUTE)
    assert (await runs(world))[0]["outcome"] == "submitted"


@requirement("schedules.overlap")
async def test_a_task_that_lasts_is_remembered_however_many_runs_are_skipped(world: World) -> None:
    await world.register()
    await create(world, overlap="skip")
    for _ in range(210):
        await later(world, MINUTE)
    assert len(await tasks(world)) == 1
    # A run at once is another matter.
    ran = (await world.admin.post(f"{PATH}/s/run")).json()["task_id"]
    await world.admin.post(f"/api/v1/tasks/{ran}/cancel")
    await later(world, MINUTE)
    assert len(await tasks(world)) == 2


@requirement("schedules.once")
async def test_a_schedule_whose_times_cannot_be_computed_stops_no_other(world: World, monkeypatch: Any) -> None:
    await world.register()
    await create(world, "broken", cron="* * * * *")
    await create(world, "other", cron="* * * * *")
    whole = model.find_occurrence

    def find(schedule: model.Schedule, now: int) -> model.Occurrence:
        if schedule.name == "broken":
            raise OverflowError("date value out of range")
        return whole(schedule, now)

    monkeypatch.setattr(model, "find_occurrence", find)
    await later(world, MINUTE)
    assert len(await runs(world, "other")) == 1
    assert "cannot be computed" in (await read(world, "broken"))["paused_reason"]


@requirement("schedules.once")
async def test_a_schedule_that_is_made_anew_while_the_old_one_is_due_stays_as_it_is(world: World) -> None:
    await world.register()
    await create(world, "s")
    db = world.kernel.infra.db
    due = await db.read(lambda tx: store.find(tx, "default", "s"))
    assert due is not None
    world.clock.advance(seconds=0.001)  # the new one is made later
    await world.admin.delete(f"{PATH}/s")
    made = await create(world, "s", "WRITER", cron="@yearly", task={**TASK, "input": "new"})
    # Not before: the scheduler itself would run the old one.
    world.clock.advance(seconds=MINUTE)
    await world.kernel.schedules.scheduler._run(due, world.clock.now())
    assert await read(world) == made
    assert await tasks(world) == []


async def test_a_denied_task_is_a_run_with_its_reason(world: World) -> None:
    await create(world)
    await later(world, MINUTE)
    (run,) = await runs(world)
    assert run["outcome"] == "denied"
    assert "echo" in run["reason"]
    assert (await world.task(run["task_id"]))["status"] == "failed"


@requirement("schedules.key")
async def test_a_schedule_whose_key_was_revoked_is_paused_and_says_why(world: World) -> None:
    await world.register()
    body = {"name": "nightly", "role": "operator"}
    key = (await world.admin.post("/api/v1/keys", json=body)).json()["key"]
    headers = {"X-API-Key": key}
    made = await world.admin.post(PATH, json={"name": "s", "cron": "* * * * *", "task": TASK}, headers=headers)
    assert made.json()["runs_as"] == "nightly"
    await later(world, MINUTE)
    (task,) = await tasks(world)
    assert (await world.admin.get("/api/v1/tasks", params={"submitted_by": "nightly"})).json()["total"] == 1
    ok(await world.admin.post("/api/v1/keys/nightly/revoke"))
    await later(world, 2 * MINUTE)
    paused = await read(world)
    assert (paused["paused"], paused["next_at"], paused["next_times"]) == (True, None, [])
    assert paused["paused_reason"] == "It runs as the key 'nightly', which is invalid or lacks the permission write."
    assert [each["task_id"] for each in await tasks(world)] == [task["task_id"]]
    # Whoever says anew what is submitted is whose task it becomes.
    assert (await change(world, task=TASK, paused=False))["runs_as"] == "admin"
    await later(world, MINUTE)
    assert len(await tasks(world)) == 2


@requirement("schedules.key")
@pytest.mark.parametrize("loss", [{"role": "viewer"}, {"expires_at": "soon"}])
async def test_a_key_that_expired_or_may_not_write_any_more_submits_nothing(world: World, loss: dict[str, str]) -> None:
    await world.register()
    key = (await world.admin.post("/api/v1/keys", json={"name": "k", "role": "operator"})).json()["key"]
    headers = {"X-API-Key": key}
    await world.admin.post(PATH, json={"name": "s", "cron": "* * * * *", "task": TASK}, headers=headers)
    if "expires_at" in loss:
        loss = {"expires_at": (await read(world))["next_at"]}
    ok(await world.admin.patch("/api/v1/keys/k", json=loss))
    await later(world, 2 * MINUTE)
    assert (await tasks(world), (await read(world))["paused"]) == ([], True)


@requirement("schedules.key")
async def test_a_key_that_another_process_has_just_made_is_waited_for(world: World) -> None:
    await world.register()
    await create(world, who="WRITER")
    roles, writer = world.kernel.infra.roles, Principal("writer", "admin", frozenset(("read", "write")))
    roles.set_role(writer, is_active=False, expires_at=None)
    await later(world, until(await read(world)) - world.clock.now() / 1e6 + 1)
    assert ((await read(world))["paused"], await runs(world)) == (False, [])
    roles.set_role(writer, is_active=True, expires_at=None)
    await world.kernel.schedules.scheduler.tick()
    assert len(await runs(world)) == 1


def until(schedule: Any) -> float:
    """The next time of a schedule, in seconds since 1970."""
    return datetime.fromisoformat(schedule["next_at"]).timestamp()


@requirement("schedules.key")
async def test_a_key_that_only_other_processes_know_is_left_to_them(world: World) -> None:
    await world.register()
    await create(world, who="WRITER")
    del world.kernel.infra.roles._keys["default", "writer"]
    await later(world, 2 * MINUTE)
    assert (await read(world))["paused"] is False
    await later(world, 10 * MINUTE)
    assert ((await read(world))["paused"], await tasks(world)) == (True, [])


@requirement("schedules.key")
async def test_a_key_that_left_the_environment_is_waited_for_as_long_and_its_name_is_taken(world: World) -> None:
    holder = Principal("ops", "operator", frozenset({"read", "write"}))
    now = world.clock.now()
    await world.kernel.infra.db.write(lambda tx: key_store.insert_missing(tx, [reserve_name(holder, now)]))
    await world.kernel.views.refresh(0)
    await world.register()
    await create(world, who="WRITER")
    change = Sql("update schedules set runs_as = 'ops'")
    await world.kernel.infra.db.write(lambda tx: tx.run(change))
    await later(world, 2 * MINUTE)
    assert (await read(world))["paused"] is False
    await later(world, 10 * MINUTE)
    assert (await read(world))["paused"] is True
    answer = await world.admin.post("/api/v1/keys", json={"name": "ops", "role": "viewer"})
    assert answer.status_code == 409
    assert "'ops' belongs or belonged to a key of the environment" in answer.json()["error"]["message"]


@requirement("schedules.key")
async def test_schedules_whose_keys_are_waited_for_hold_up_no_other_however_many_they_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "BATCH_SIZE", 2)
    await world.register()
    for number in range(5):
        await create(world, f"s{number}", "WRITER", missed="all")
    await create(world, "t")
    await create(world, "u")
    key = world.kernel.infra.roles._keys.pop(("default", "writer"))
    await later(world, MINUTE)
    assert [len(await runs(world, name)) for name in ("s0", "s4", "t", "u")] == [0, 0, 1, 1]
    world.kernel.infra.roles._keys["default", "writer"] = key
    await later(world, MINUTE)
    assert [len(await runs(world, name)) for name in ("s0", "s4", "t", "u")] == [2, 2, 2, 2]


@requirement("schedules.change")
async def test_a_paused_schedule_rests_and_makes_up_for_nothing(world: World) -> None:
    await world.register()
    await create(world, missed="all")
    paused = await change(world, paused=True)
    assert (paused["next_at"], paused["paused_reason"]) == (None, None)
    await later(world, HOUR)
    assert await runs(world) == []
    await change(world, paused=False)
    await world.kernel.schedules.scheduler.tick()
    assert await runs(world) == []
    await later(world, MINUTE)
    assert len(await runs(world)) == 1
    events = ok(await world.admin.get("/api/v1/audit", params={"category": "changes"}))["events"]
    changes = [event["metadata"]["change"] for event in events if event["event_type"] == "schedule_changed"]
    assert changes == ["resumed", "paused", "created"]


@requirement("schedules.change")
async def test_a_change_counts_from_the_next_time(world: World) -> None:
    await world.register()
    await create(world, cron="0 0 1 1 *")
    changed = await change(world, cron="* * * * *", timezone="Asia/Kathmandu", task={**TASK, "title": "Other"})
    assert (changed["timezone"], changed["task"]["title"]) == ("Asia/Kathmandu", "Other")
    await later(world, MINUTE)
    (task,) = await tasks(world)
    assert task["title"] == "Other"
    # The same expression again does not shift its next time.
    due = (await read(world))["next_at"]
    assert (await change(world, overlap="skip", cron="* * * * *"))["next_at"] == due
    wrong: list[dict[str, Any]] = [
        {},
        {"cron": "never"},
        {"cron": "0 0 30 2 *"},
        {"cron": "0 0 */31 * MON#2"},
        {"timezone": "Mars/Phobos"},
        {"name": "t"},
        {"task": {"type": "x"}},
    ]
    for fields in wrong:
        await change(world, status=400, **fields)
    await change(world, "none", status=404, paused=True)


@requirement("schedules.visibility")
async def test_a_bound_key_has_its_own_schedules_alone(world: World) -> None:
    await create(world, "admins")
    await create(world, "bobs", "BOB")
    await create(world, "others", "OTHER")
    for who, expected in (("ADMIN", ["admins", "bobs"]), ("READER", ["admins", "bobs"]), ("BOB", ["bobs"])):
        listed = ok(await world.clients[who].get(PATH))
        assert [each["name"] for each in listed["schedules"]] == expected
        assert listed["total"] == len(expected)
    bob = world.clients["BOB"]
    for answer in (
        await bob.get(f"{PATH}/admins"),
        await bob.get(f"{PATH}/admins/runs"),
        await bob.patch(f"{PATH}/admins", json={"paused": True}),
        await bob.post(f"{PATH}/admins/run"),
        await world.admin.get(f"{PATH}/others"),
    ):
        assert answer.status_code == 404, answer.text
    await create(world, "readers", "READER", 403)
    # Whatever a key of an agent made it may pause; to delete needs the permission for it, as everywhere.
    assert (await bob.delete(f"{PATH}/bobs")).status_code == 403
    assert (await change(world, "bobs", "BOB", paused=True))["paused"] is True


@requirement("schedules.visibility", "schedules.key")
async def test_an_agents_schedule_whose_task_an_admin_changed_is_the_admins(world: World) -> None:
    await create(world, who="BOB")
    assert (await change(world, task={**TASK, "input": "secret"}))["runs_as"] == "admin"
    bob = world.clients["BOB"]
    assert ok(await bob.get(PATH))["total"] == 0
    for answer in (await bob.get(f"{PATH}/s"), await bob.patch(f"{PATH}/s", json={"cron": "* * * * *"})):
        assert answer.status_code == 404, answer.text


@requirement("schedules.run-now")
async def test_a_schedule_is_run_at_once_as_the_callers_task(world: World) -> None:
    await world.register()
    await create(world, paused=True)
    answer = await world.clients["WRITER"].post(f"{PATH}/s/run")
    assert answer.status_code == 202, answer.text
    (run,) = await runs(world)
    assert (run["task_id"], run["outcome"]) == (answer.json()["task_id"], "submitted")
    found = ok(await world.admin.get("/api/v1/tasks", params={"submitted_by": "writer"}))
    assert [task["task_id"] for task in found["tasks"]] == [run["task_id"]]
    assert (await read(world))["paused"] is True
    assert ok(await world.admin.get(PATH))["schedules"][0]["last_run"]["task_id"] == run["task_id"]


async def test_a_denied_run_at_once_is_denied_and_listed(world: World) -> None:
    await create(world)
    answer = await world.admin.post(f"{PATH}/s/run")
    assert answer.status_code == 422, answer.text
    (run,) = await runs(world)
    assert (run["outcome"], run["task_id"]) == ("denied", answer.json()["error"]["details"]["task_id"])


@requirement("schedules.limits")
async def test_a_deleted_schedule_leaves_its_tasks_and_its_name(world: World) -> None:
    await world.register()
    await create(world)
    await create(world, status=409)
    await later(world, MINUTE)
    assert ok(await world.admin.delete(f"{PATH}/s")) == {"name": "s", "deleted": True}
    await later(world, HOUR)
    assert len(await tasks(world)) == 1
    assert (await world.admin.get(f"{PATH}/s/runs")).status_code == 404
    await create(world)
    assert await runs(world) == []


@requirement("schedules.limits")
async def test_schedules_of_a_key_and_runs_of_a_schedule_are_limited(world: World) -> None:
    for number in range(200):
        await create(world, f"s{number}", "BOB", paused=True)
    await create(world, "more", "BOB", 409)
    await create(world, "admins", missed="all")
    await world.register()
    await later(world, 250 * MINUTE)
    found = await runs(world, "admins")
    assert len(found) == 200
    assert found == sorted(found, key=lambda run: run["due_at"], reverse=True)
    (count,) = await world.kernel.infra.db.read(lambda tx: tx.row(Sql("select count(*) from schedule_runs")) or ())
    assert count == 200


async def test_bad_schedules_are_refused(world: World) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": "Ümlaut"}, "name:"),
        ({"name": ""}, "name"),
        ({"cron": "every day"}, "cron:"),
        ({"timezone": "Mars/Phobos"}, "timezone:"),
        ({"missed": "some"}, "missed"),
        ({"task": {"type": "echo"}}, "input"),
        ({"task": {**TASK, "id": "mine"}}, "id"),
        ({"task": {**TASK, "metadata": {"grant_id": "0190f5f0-0000-7000-8000-000000000000"}}}, "grant_id"),
    ]
    for fields, problem in wrong:
        refused = await create(world, status=400, **fields)
        assert problem in str(refused), (fields, refused)


@requirement("schedules.once")
async def test_a_schedule_survives_a_restart(make_world: MakeWorld) -> None:
    world: World = await make_world()
    await world.register()
    await create(world)
    again: World = await make_world()
    await later(again, MINUTE)
    assert len(await tasks(again)) == 1


@requirement("schedules.times")
async def test_a_schedule_whose_task_no_agent_can_do_is_made_with_a_notice(world: World) -> None:
    assert "None has 'echo'" in (await create(world))["notice"]
    await world.register()
    assert (await read(world))["notice"] is None


@requirement("schedules.times")
async def test_schedules_that_are_due_together_do_not_wait_for_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.register()
    names = ["a", "b", "c"]
    for name in names:
        await create(world, name)
    here, are_all_here, prepare_run = list[str](), asyncio.Event(), scheduler.Scheduler._prepare

    async def prepare(self: scheduler.Scheduler, schedule: model.Schedule, *args: Any) -> Any:
        here.append(schedule.name)
        if len(here) == len(names):
            are_all_here.set()
        await asyncio.wait_for(are_all_here.wait(), 60)
        return await prepare_run(self, schedule, *args)

    monkeypatch.setattr(scheduler.Scheduler, "_prepare", prepare)
    await later(world, MINUTE)
    for name in names:
        assert [run["outcome"] for run in await runs(world, name)] == ["submitted"]
