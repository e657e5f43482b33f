"""Requests about steps and waits that a careless or hostile client makes: what is stored, and what the error says."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from stentor.domains.steps.operations import Recorded, StepOut
from tests.conftest import World
from tests.domains.steps.test_steps import Attempt, begin_attempt, refused
from tests.domains.steps.test_waits import suspend, wait
from tests.requirements import requirement

ODD_KEYS = ["/", "//x/", "a/../b", "x/answer", "%", "%2F", "%zz", "a+b", "a b", " ", "?x=1#y", "\\", "'; --", "null"]
ODD_KEYS += ["...", " .. ", "e\u0301", "\u00e9", "\U0001f98a" * 1024, "http://x/y?z=1"]


@requirement("steps.keys")
async def test_each_step_is_read_under_its_key_however_odd_and_none_has_a_key_that_no_path_can_have(
    world: World,
) -> None:
    attempt = await begin_attempt(world)
    for key in ODD_KEYS:
        assert (await attempt.step("odd", key, key=key)).status_code == 200
    for key in ODD_KEYS:
        answer = await world.admin.get(f"/api/v1/tasks/{attempt.task_id}/steps/{quote(key, safe='')}")
        assert (answer.json()["key"], answer.json()["value"]) == (key, key)
    for key in (
        ".",
        "..",
        "",
        "x" * 1025,
        "\u202eabc",
        "a\nb",
        "\ufeff",
        "\U0001f468\u200d\U0001f469",
        "#start",
        "#after/x",
    ):
        refused(await attempt.step("odd", 1, key=key), 400, "INVALID_REQUEST")
        refused(await wait(attempt, "question", key=key, question="Now?"), 400, "INVALID_REQUEST")
    assert len((await attempt.journal())["steps"]) == len(ODD_KEYS)


async def answer_late(attempt: Attempt) -> Any:
    path = f"/api/v1/tasks/{attempt.task_id}/steps/question/answer"
    return await attempt.world.admin.post(path, json={"value": "yes"})


@requirement("steps.waits")
@pytest.mark.parametrize("end", ["cancel", "complete"])
async def test_the_question_of_a_task_that_will_not_go_on_is_not_answered(world: World, end: str) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "question", question="Now?")
    if end == "cancel":
        await suspend(attempt, "question")
        await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/cancel")
    else:
        assert (await attempt.post("complete", result=1)).status_code == 200
    late = await answer_late(attempt)
    refused(late, 409, "CONFLICT")
    assert "its question needs no answer" in late.json()["error"]["message"]
    [question] = (await attempt.journal())["steps"]
    assert (question["state"], question["value"]) == ("started", None)


@requirement("steps.waits")
async def test_the_question_of_a_failed_task_is_answered_for_the_attempt_after_a_retry(world: World) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "question", question="Now?")
    await attempt.fail()
    assert (await answer_late(attempt)).status_code == 200
    assert (await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/retry")).status_code == 202
    agent = (await world.task(attempt.task_id))["assigned_agent"]
    second = Attempt(world, attempt.task_id, (await world.claim(agent))["epoch"])
    assert (await wait(second, "question", question="Now?")).json()["value"] == "yes"


@requirement("http.error-envelope")
async def test_errors_of_lengths_say_what_is_counted_in_plain_words(world: World) -> None:
    attempt = await begin_attempt(world)
    long = await wait(attempt, "question", question="x" * 4_097)
    assert long.json()["error"]["message"] == "question: must have at most 4096 characters, not 4097"
    none = await attempt.post("suspend", keys=[])
    assert none.json()["error"]["message"] == "keys: must have at least 1 item, not 0"


@requirement("steps.values")
@pytest.mark.filterwarnings("error")
async def test_what_is_sent_of_each_kind_of_step_is_what_its_schema_declares(world: World) -> None:
    attempt = await begin_attempt(world)
    sent = [
        await attempt.step("step", {"n": [1, None]}, position=0),
        await attempt.step("bytes", "AAE=", encoding="base64"),
        await attempt.step("long", "x" * 5_000),
        await attempt.step("failed", error={"message": "no", "code": "NO"}),
        await attempt.step("step", 2),
        await attempt.begin("effect"),
        await wait(attempt, "sleep", seconds=3600),
        await wait(attempt, "signal", signal="paid"),
        await wait(attempt, "question", question="Now?", options=["yes", "no"]),
        await answer_late(attempt),
    ]
    written = [answer.json() for answer in sent]
    assert written == [Recorded.model_validate(step).model_dump(mode="json") for step in written]
    listed = (await attempt.journal())["steps"]
    assert len(listed) == len(sent) - 2
    for step in (*written, *listed):
        declared = StepOut.model_validate({name: step[name] for name in StepOut.model_fields if name in step})
        assert list(declared.model_dump()) == [name for name in step if name in StepOut.model_fields]
