"""What a task takes over that is run again from a step: see `steps/reruns.py`."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.domains.steps.rerun_store import OrderedStep
from stentor.domains.steps.reruns import find_places
from tests.conftest import World
from tests.domains.steps.test_steps import Attempt, begin_attempt, refused, retry
from tests.domains.steps.test_waits import wait
from tests.requirements import requirement

DECLINED = {"type": "EffectFailed", "message": "declined"}


async def effect(attempt: Attempt, name: str, **outcome: Any) -> dict[str, Any]:
    """Send an effect; return how it began."""
    began = dict((await attempt.begin(name)).json())
    answer = await attempt.step(name, kind="effect", **outcome)
    assert answer.status_code == 200, answer.text
    return began


async def rerun(attempt: Attempt, key: str) -> Attempt:
    answer = await attempt.world.admin.post(f"/api/v1/tasks/{attempt.task_id}/rerun", json={"from_step": key})
    assert answer.status_code == 202, answer.text
    return Attempt(attempt.world, answer.json()["task_id"], 1)


async def claimed(attempt: Attempt) -> Attempt:
    """Claim the agent's tasks up to this one."""
    while (task := await attempt.world.task(attempt.task_id))["status"] == "queued":
        await attempt.world.claim(task["assigned_agent"])
    return attempt


async def taken(attempt: Attempt) -> dict[str, Any]:
    """Return what a task has recorded, with its value; without failed steps that run again."""
    steps = (await attempt.journal())["steps"]
    return {step["key"]: step["value"] for step in steps if not step["superseded"]}


async def paid_by_the_second_attempt(world: World) -> Attempt:
    """An attempt in which a payment was declined and a note was recorded; the next one paid."""
    first = await begin_attempt(world)
    await effect(first, "pay", error=DECLINED)
    await first.step("note", 1)
    second = await retry(first)
    await effect(second, "pay", value="paid")
    return second


@requirement("tasks.rerun-from")
async def test_an_effect_that_was_sent_again_keeps_its_place_before_later_steps(world: World) -> None:
    second = await paid_by_the_second_attempt(world)
    await second.fail()
    again = await rerun(second, "note")
    assert await taken(again) == {"pay": "paid"}
    # Its place is the same in the journal of the new task, from which another one may go on.
    await claimed(again)
    await again.step("note", 2)
    await again.fail()
    assert await taken(await rerun(again, "note")) == {"pay": "paid"}


@requirement("tasks.rerun-from-a-question")
@pytest.mark.parametrize("key", ["BOB", "BOSS"])
async def test_a_persons_answer_is_taken_over_only_by_a_person(world: World, key: str) -> None:
    attempt = await begin_attempt(world, key_name=key.lower())
    await wait(attempt, "question", question="Pay 500?", options=["yes", "no"])
    path = f"/api/v1/tasks/{attempt.task_id}"
    assert (await world.admin.post(f"{path}/steps/question/answer", json={"value": "yes"})).status_code == 200
    await effect(attempt, "pay", value="paid")
    await attempt.step("note", 1)
    await attempt.fail()
    agent = world.clients[key]
    for step in ("pay", "note"):
        refused(await agent.post(f"{path}/rerun", json={"from_step": step}), 403, "FORBIDDEN")
    # From the question on it is asked again.
    again = await agent.post(f"{path}/rerun", json={"from_step": "question"})
    assert await taken(Attempt(world, again.json()["task_id"], 1)) == {}
    assert await taken(await rerun(attempt, "pay")) == {"question": "yes"}


@requirement("tasks.rerun-from")
async def test_what_came_after_a_step_that_was_repeated_is_not_taken_over_to_before_it(world: World) -> None:
    second = await paid_by_the_second_attempt(world)
    await second.fail()
    assert await taken(await rerun(second, "pay")) == {}


@requirement("tasks.rerun-from")
async def test_an_effect_of_which_nothing_is_known_since_it_was_sent_again_is_not_left_behind(world: World) -> None:
    first = await begin_attempt(world)
    await effect(first, "pay", error=DECLINED)
    await first.step("note", 1)
    second = await retry(first)
    await second.begin("pay")
    await second.fail()
    path = f"/api/v1/tasks/{first.task_id}/rerun"
    refused(await world.admin.post(path, json={"from_step": "note"}), 409, "CONFLICT")


@requirement("tasks.rerun-from")
async def test_an_effect_that_a_retry_sent_within_a_step_is_taken_over_with_its_place(world: World) -> None:
    first = await begin_attempt(world)
    await first.step("charge", error={"type": "E", "message": "no"})
    await first.step("note", 1)
    second = await retry(first)
    await effect(second, "charge/pay", value="paid")
    await second.step("end", 1)
    await second.fail()
    for key in ("note", "charge"):
        again = await rerun(second, key)
        assert await taken(again) == {"charge/pay": "paid"}
    # Once more from a copy, in which the effect is newer than the note.
    again = await claimed(await rerun(second, "end"))
    await again.fail()
    assert await taken(await rerun(again, "note")) == {"charge/pay": "paid"}


@requirement("tasks.rerun-from")
async def test_a_step_that_a_new_effect_may_have_come_before_is_refused(world: World) -> None:
    first = await begin_attempt(world)
    await first.step("login", error={"type": "E", "message": "no"})
    await first.step("note", 1)
    second = await retry(first)
    await second.step("login", 1)
    await effect(second, "pay", value="paid")
    await second.step("end", 1)
    await second.fail()
    path = f"/api/v1/tasks/{first.task_id}/rerun"
    refused(await world.admin.post(path, json={"from_step": "note"}), 409, "CONFLICT")
    assert await taken(await rerun(second, "login")) == {}
    assert await taken(await rerun(second, "end")) == {"login": 1, "note": 1, "pay": "paid"}


@requirement("tasks.rerun-from")
async def test_a_failed_step_runs_again_as_after_a_retry(world: World) -> None:
    first = await begin_attempt(world)
    declined = await effect(first, "pay", error=DECLINED)
    await first.begin("refund")
    await first.fail()
    body = {"happened": False, "reason": "The bank says so."}
    assert (await world.admin.post(f"/api/v1/tasks/{first.task_id}/steps/refund/resolve", json=body)).status_code == 200
    again = await rerun(first, "refund")
    steps = (await again.journal())["steps"]
    assert [(step["key"], step["superseded"]) for step in steps] == [("pay", True), ("refund", True)]
    await claimed(again)
    renewed = await effect(again, "pay", value="paid")
    assert (renewed["recorded"], renewed["idempotency_key"] != declined["idempotency_key"]) == (True, True)
    assert (await again.begin("refund")).json()["idempotency_key"] == steps[1]["provenance_id"]


@requirement("tasks.rerun-from", "steps.children")
async def test_a_child_that_was_started_before_the_step_is_waited_for_after_it(world: World) -> None:
    first = await begin_attempt(world)
    child = await world.submit(metadata={"parent_task_id": first.task_id})
    await first.step("start", child)
    await first.step("note", 1)
    await first.fail()
    again = await claimed(await rerun(first, "note"))
    await again.step("note", 1)
    again = await claimed(await rerun(again, "note"))
    answer = await wait(again, "child", child_task_id=child)
    assert answer.json()["state"] == "started"
    plain = (await world.admin.post(f"/api/v1/tasks/{first.task_id}/rerun", json={})).json()["task_id"]
    refused(await wait(await claimed(Attempt(world, plain, 1)), "child", child_task_id=child), 400, "INVALID_REQUEST")


@requirement("tasks.rerun-from", "steps.children")
async def test_a_child_of_the_first_task_goes_on_when_the_rerun_is_cancelled(world: World) -> None:
    first = await begin_attempt(world)
    child = await world.submit(metadata={"parent_task_id": first.task_id})
    await first.step("start", child)
    await first.step("note", 1)
    await first.fail()
    again = await claimed(await rerun(first, "note"))
    await wait(again, "child", child_task_id=child)
    before = (await world.task(child))["status"]
    assert (await world.admin.post(f"/api/v1/tasks/{again.task_id}/cancel")).status_code == 200
    await world.kernel.tasks.wakeups.tick()
    (waited,) = (step for step in (await again.journal())["steps"] if step["kind"] == "child")
    assert waited["error"] == {"type": "ParentCancelled", "message": "The task was cancelled."}
    assert (await world.task(child))["status"] == before


@requirement("tasks.rerun-from", "steps.children")
async def test_from_the_wait_for_a_child_the_child_is_not_started_again(world: World) -> None:
    first = await begin_attempt(world)
    child = await world.submit(metadata={"parent_task_id": first.task_id})
    await first.step("start", child)
    await first.step("note", 1)
    await wait(first, "child", key="start/child", child_task_id=child)
    await first.fail()
    again = await rerun(first, "start/child")
    assert await taken(again) == {"start": child, "note": 1}
    await claimed(again)
    assert (await wait(again, "child", key="start/child", child_task_id=child)).json()["recorded"]


async def refuse_rerun(attempt: Attempt, key: str) -> None:
    path = f"/api/v1/tasks/{attempt.task_id}/rerun"
    refused(await attempt.world.admin.post(path, json={"from_step": key}), 409, "CONFLICT")


async def resolve_as_not_sent(attempt: Attempt, key: str) -> None:
    path = f"/api/v1/tasks/{attempt.task_id}/steps/{key}/resolve"
    answer = await attempt.world.admin.post(path, json={"happened": False, "reason": "The bank says so."})
    assert answer.status_code == 200, answer.text


@requirement("tasks.rerun-from")
@pytest.mark.parametrize("is_retried", [False, True])
async def test_an_effect_that_a_rerun_sent_again_keeps_its_place_before_later_steps(
    world: World, is_retried: bool
) -> None:
    first = await begin_attempt(world)
    await effect(first, "pay", error=DECLINED)
    await first.step("note", 1)
    await first.step("end", error={"type": "E", "message": "no"})
    await first.fail()
    again = await claimed(await rerun(first, "end"))
    await again.begin("pay")
    await again.fail()
    await refuse_rerun(again, "note")
    await resolve_as_not_sent(again, "pay")
    if is_retried:
        again = await retry(again)
    else:
        again = await claimed(await rerun(again, "end"))
    await effect(again, "pay", value="paid")
    await again.step("end", 1)
    await again.fail()
    third = await rerun(again, "note")
    assert await taken(third) == {"pay": "paid"}
    await claimed(third)
    await third.step("note", 2)
    await third.fail()
    assert await taken(await rerun(third, "note")) == {"pay": "paid"}


@requirement("tasks.rerun-from")
async def test_an_effect_that_did_not_happen_keeps_its_last_key_and_its_first_place(world: World) -> None:
    first = await begin_attempt(world)
    declined = (await effect(first, "pay", error=DECLINED))["idempotency_key"]
    await first.step("note", 1)
    second = await retry(first)
    unknown = (await second.begin("pay")).json()["idempotency_key"]
    await second.fail()
    await resolve_as_not_sent(first, "pay")
    for key in ("pay", "note"):
        again = await rerun(first, key)
        # Once more from a copy.
        again = await claimed(again if key == "pay" else await rerun(await failed(again, "note"), "note"))
        renewed = await effect(again, "pay", value="paid")
        assert (renewed["recorded"], renewed["idempotency_key"]) == (True, unknown)
        assert unknown != declined
    assert await taken(await rerun(await failed(again, "note"), "note")) == {"pay": "paid"}


async def failed(attempt: Attempt, key: str) -> Attempt:
    """Record a step, unless it is recorded, and let the attempt fail."""
    await claimed(attempt)
    await attempt.step(key, 1)
    await attempt.fail()
    return attempt


@requirement("tasks.rerun-from")
async def test_a_step_that_an_effect_of_the_first_task_may_have_come_before_is_refused(world: World) -> None:
    first = await begin_attempt(world)
    await first.step("login", error={"type": "E", "message": "no"})
    await first.step("note", 1)
    second = await retry(first)
    await second.step("login", 1)
    await effect(second, "pay", value="paid")
    await second.step("end", 1)
    await second.fail()
    again = await failed(await rerun(second, "end"), "end")
    await refuse_rerun(again, "note")
    # By another agent, with which the order of its own steps is known.
    helper = await world.register(name="helper", runtime={"kind": "builtin", "name": "summarizer"})
    path = f"/api/v1/tasks/{again.task_id}/rerun"
    answer = await world.admin.post(path, json={"from_step": "end", "agent_preference": helper})
    assert answer.status_code == 202, answer.text
    await refuse_rerun(Attempt(world, answer.json()["task_id"], 1), "note")
    assert await taken(await rerun(again, "end")) == {"login": 1, "note": 1, "pay": "paid"}


@requirement("tasks.rerun-from")
async def test_a_step_that_an_effect_of_the_rerun_may_have_come_before_is_refused(world: World) -> None:
    first = await begin_attempt(world)
    await first.step("login", error={"type": "E", "message": "no"})
    await first.step("note", 1)
    await first.step("end", error={"type": "E", "message": "no"})
    await first.fail()
    again = await claimed(await rerun(first, "end"))
    await again.step("login", 1)
    await effect(again, "pay", value="paid")
    await again.fail()
    await refuse_rerun(again, "note")


@requirement("tasks.rerun-from")
async def test_what_a_retry_sent_before_a_step_within_a_step_that_had_failed_is_taken_over(world: World) -> None:
    first = await begin_attempt(world)
    await effect(first, "charge/pay", error=DECLINED)
    await first.step("charge", error={"type": "E", "message": "no"})
    second = await retry(first)
    await effect(second, "charge/pay", value="paid")
    await effect(second, "charge/ship", value="shipped")
    await effect(second, "charge/mail", value="mailed")
    await second.step("charge", 1)
    await effect(second, "thank", value="thanked")
    await second.fail()
    assert await taken(await rerun(second, "charge/mail")) == {"charge/pay": "paid", "charge/ship": "shipped"}
    sent = {"charge/pay": "paid", "charge/ship": "shipped", "charge/mail": "mailed"}
    assert await taken(await rerun(second, "charge")) == sent


@requirement("tasks.rerun-from")
async def test_within_a_step_that_had_failed_the_order_is_that_of_its_steps(world: World) -> None:
    error = {"type": "E", "message": "no"}
    first = await begin_attempt(world)
    for name in ("order/login", "order/charge"):
        await first.step(name, error=error)
    await first.step("order/note", 1)
    await first.step("order", error=error)
    second = await retry(first)
    await effect(second, "order/charge/pay", value="paid")
    await second.fail()
    assert await taken(await claimed(await rerun(second, "order/note"))) == {"order/charge/pay": "paid"}
    third = await retry(second)
    await third.step("order/login", 1)
    await effect(third, "order/ship", value="shipped")
    await third.fail()
    await refuse_rerun(third, "order/note")


@requirement("tasks.rerun-from")
async def test_an_effect_before_a_step_within_one_that_had_failed_before_is_taken_over(world: World) -> None:
    first = await begin_attempt(world)
    for name in ("login", "order"):
        await first.step(name, error={"type": "E", "message": "no"})
    second = await retry(first)
    await second.step("login", 1)
    await effect(second, "pay", value="paid")
    await second.step("order/note", 1)
    await second.fail()
    assert await taken(await rerun(second, "order/note")) == {"login": 1, "pay": "paid"}


@requirement("tasks.rerun-from")
async def test_a_step_that_an_effect_of_the_step_around_it_may_have_come_before_is_refused(world: World) -> None:
    first = await begin_attempt(world)
    await first.step("order/login", error={"type": "E", "message": "no"})
    await effect(first, "order/ship", value="shipped")
    await first.step("order", 1)
    await first.fail()
    again = await claimed(await rerun(first, "order"))
    await again.step("order/login", 1)
    await effect(again, "order/pay", value="paid")
    await again.step("order", 1)
    await effect(again, "thank", value="thanked")
    await again.fail()
    await refuse_rerun(again, "order/ship")
    assert await taken(await rerun(again, "order/login")) == {"order/ship": "shipped"}
    # Of another one that went on from it too.
    last = await failed(await rerun(again, "thank"), "end")
    await refuse_rerun(last, "order/ship")


@requirement("tasks.rerun-from")
async def test_the_order_of_an_effect_that_is_sent_again_within_a_step_is_known(world: World) -> None:
    first = await begin_attempt(world)
    await effect(first, "order/ship", value="shipped")
    await effect(first, "order/tip", error=DECLINED)
    await first.step("order", error={"type": "E", "message": "no"})
    await first.fail()
    again = await claimed(await rerun(first, "order"))
    await effect(again, "order/tip", value="paid")
    await again.step("order", 1)
    await again.fail()
    assert await taken(await rerun(again, "order/ship")) == {}


@requirement("tasks.rerun-from")
async def test_around_an_effect_within_the_step_the_program_may_take_another_path(world: World) -> None:
    first = await begin_attempt(world)
    await first.step("order/login", 1, position=0)
    await first.begin("order/pay", position=1)
    await first.step("order/pay", "paid", kind="effect", position=1)
    await first.step("order", 1, position=0)
    await first.fail()
    (step,) = (await (await rerun(first, "order")).journal())["steps"]
    assert (step["key"], step["position"]) == ("order/pay", None)


@requirement("tasks.rerun-from")
def test_places_are_found_in_time_that_grows_with_the_length_of_the_keys() -> None:
    # Minutes, if all steps that might be around each one were looked up.
    keys = ["a", "a!", *("a" + "/b" * 100_000 + f"/{n}" for n in range(100)), "a/c"]
    steps = [OrderedStep(key, key, "step", "completed", str(n), str(n)) for n, key in enumerate(keys, 100)]
    places = find_places(steps, {"a/c": "050"}, steps[1])
    assert [places[key].at for key in keys[:2]] == ["100", "101"]
    assert {places[key].at for key in keys[2:-1]} == {"100"}
    assert places["a/c"] == ("050", "101", "050")
