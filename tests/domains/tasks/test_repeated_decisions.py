"""A decision whose response was lost is sent again: the same one by the same person gets the first outcome."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import World
from tests.domains.steps.test_steps import Attempt, begin_attempt, refused
from tests.domains.steps.test_waits import resume, suspend, wait
from tests.requirements import requirement


async def post(world: World, path: str, key: str = "ADMIN", **body: Any) -> Any:
    return await world.clients[key].post(f"/api/v1/tasks/{path}", json=body)


async def asking(world: World) -> tuple[Attempt, str]:
    """A task that waits for an answer, and the path of the answer."""
    attempt = await begin_attempt(world)
    await wait(attempt, "question", question="Pay 500?", options=["yes", "no"])
    await suspend(attempt, "question")
    return attempt, f"{attempt.task_id}/steps/question/answer"


async def count_events(world: World, task_id: str) -> int:
    return len(await world.events(task_id))


@requirement("steps.decided-again")
@pytest.mark.parametrize("goes_on", [False, True])
async def test_an_answer_that_is_repeated_is_the_one_that_is_recorded(world: World, goes_on: bool) -> None:
    attempt, path = await asking(world)
    first = (await post(world, path, value="yes")).json()
    if goes_on:
        assert (await (await resume(attempt)).post("complete", result=1)).status_code == 200
    events = await count_events(world, attempt.task_id)
    again = await post(world, path, value="yes")
    assert again.status_code == 200, again.text
    assert (first["recorded"], again.json()["recorded"]) == (True, False)
    assert (again.json()["state"], again.json()["value"]) == ("completed", "yes")
    assert await count_events(world, attempt.task_id) == events
    refused(await post(world, path, value="no"), 409, "CONFLICT")
    refused(await post(world, path, "SECOND", value="yes"), 409, "CONFLICT")


@requirement("steps.decided-again")
async def test_an_answer_in_time_is_not_the_one_of_a_question_that_nobody_answered(world: World) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "question", question="Pay?", seconds=60)
    await suspend(attempt, "question")
    world.clock.advance(seconds=61)
    await world.kernel.tasks.wakeups.tick()
    for _ in range(2):
        refused(await post(world, f"{attempt.task_id}/steps/question/answer", value="yes"), 409, "CONFLICT")


@requirement("steps.decided-again")
@pytest.mark.parametrize(
    "body",
    [{"happened": True, "value": {"paid": 5}, "reason": "seen"}, {"happened": False}, {"happened": True}],
)
async def test_what_was_found_out_about_an_effect_is_recorded_once(world: World, body: dict[str, Any]) -> None:
    attempt = await begin_attempt(world)
    await attempt.begin("pay")
    await attempt.fail()
    path = f"{attempt.task_id}/steps/pay/resolve"
    first = (await post(world, path, **body)).json()
    again = await post(world, path, **body)
    assert again.status_code == 200, again.text
    assert (first["recorded"], again.json()["recorded"]) == (True, False)
    assert again.json()["state"] == ("completed" if body["happened"] else "failed")
    others: list[dict[str, Any]] = [{"happened": not body["happened"]}, {**body, "reason": "heard"}]
    for other in others:
        refused(await post(world, path, **other), 409, "CONFLICT")
    refused(await post(world, path, "SECOND", **body), 409, "CONFLICT")


@requirement("steps.decided-again")
async def test_what_was_said_of_an_effect_that_was_sent_again_since_is_not_said_again(world: World) -> None:
    attempt = await begin_attempt(world)
    await attempt.begin("pay")
    await attempt.fail()
    path = f"{attempt.task_id}/steps/pay/resolve"
    assert (await post(world, path, happened=False)).status_code == 200
    assert (await post(world, f"{attempt.task_id}/retry")).status_code == 202
    second = await resume(attempt)
    await second.begin("pay")
    await second.post("steps", key="pay", name="pay", kind="effect", value="paid")
    refused(await post(world, path, happened=False), 409, "CONFLICT")


@requirement("steps.decided-again")
async def test_a_signal_with_an_idempotency_key_is_sent_once(world: World) -> None:
    attempt = await begin_attempt(world)
    path, headers = f"/api/v1/tasks/{attempt.task_id}/signals", {"Idempotency-Key": "order 7"}
    for _ in range(2):
        answer = await world.admin.post(path, json={"name": "paid", "value": 1}, headers=headers)
        assert (answer.status_code, answer.json()["received"]) == (200, False)
    other = await world.admin.post(path, json={"name": "paid", "value": 2}, headers=headers)
    refused(other, 422, "IDEMPOTENCY_KEY_REUSED")
    assert (await wait(attempt, "signal", key="first", signal="paid")).json()["value"] == 1
    assert (await wait(attempt, "signal", key="second", signal="paid")).json()["state"] == "started"
    await attempt.post("complete", result=1)
    again = await world.admin.post(path, json={"name": "paid", "value": 1}, headers=headers)
    assert again.status_code == 200, "the response that was lost, although the task has ended since"
    refused(
        await world.clients["OTHER"].post(path, json={"name": "paid", "value": 1}, headers=headers), 404, "NOT_FOUND"
    )
