"""Grades of answers: who may give them, once, and what they change."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from stentor.core.db import Sql
from tests.conftest import World
from tests.domains.llm.conftest import chat
from tests.domains.llm.upstream import status
from tests.domains.modelrouting.conftest import Make, Providers, ask, grade, openai_client, status_of
from tests.requirements import requirement


async def rewards(world: World) -> list[tuple[str, str]]:
    sql = Sql("select model, rewards from model_weights order by model")
    return [(row[0], row[1]) for row in await world.kernel.infra.db.read(lambda tx: tx.rows(sql))]


@requirement("modelrouting.grades")
async def test_a_grade_takes_the_place_of_the_success_and_is_given_once(
    client: openai.AsyncOpenAI, world: World
) -> None:
    answer = await ask(client)
    assert await rewards(world) == [(answer.model, "ff")]
    first = await grade(world, answer.id, 0.4, comment="Too long.")
    assert first.status_code == 200
    shown = first.json()
    assert (shown["model"], shown["kind"], shown["grade"], shown["graded_by"], shown["learned"]) == (
        answer.model,
        "question/short",
        0.4,
        "admin",
        True,
    )
    assert await rewards(world) == [(answer.model, "66")]
    assert (await grade(world, answer.id, 0.4, comment="Too long.")).json() == shown, "the same again"
    for other in (
        await grade(world, answer.id, 0.5),
        await grade(world, answer.id, 0.4, "SECOND", comment="Too long."),
    ):
        assert (other.status_code, other.json()["error"]["code"]) == (409, "CONFLICT")
    assert await rewards(world) == [(answer.model, "66")]
    read = (await world.admin.get(f"/api/v1/llm/answers/{answer.id}")).json()
    assert {name: read[name] for name in shown} == shown


@requirement("modelrouting.grades")
@pytest.mark.parametrize("value", [-0.1, 1.1, "1", None, True, 2**70])
async def test_a_grade_out_of_range_is_400_and_changes_nothing(
    client: openai.AsyncOpenAI, world: World, value: Any
) -> None:
    answer = await ask(client)
    assert (await grade(world, answer.id, value)).status_code == 400
    assert await rewards(world) == [(answer.model, "ff")]


@requirement("modelrouting.grades")
async def test_an_answer_of_another_tenant_of_no_auto_and_of_nobody_is_404(
    client: openai.AsyncOpenAI, world: World
) -> None:
    answer = await ask(client)
    named = (await chat(world, "east/m")).json()["data"]["provenance_id"]
    decision = answer.stentor["decision_id"]
    tries = [(answer.id, "OTHER"), (named, "ADMIN"), ("nobody", "ADMIN"), (decision, "ADMIN"), ("chatcmpl-", "ADMIN")]
    for answer_id, key in tries:
        found = await grade(world, answer_id, 0.5, key)
        assert (found.status_code, found.json()["error"]["code"]) == (404, "NOT_FOUND"), answer_id
        assert (await world.clients[key].get(f"/api/v1/llm/answers/{answer_id}")).status_code == 404
    assert await rewards(world) == [(answer.model, "ff")]


@requirement("modelrouting.grades")
async def test_a_key_of_an_agent_grades_answers_to_itself_alone(world: World) -> None:
    bobs, persons = await ask(openai_client(world, "BOB")), await ask(openai_client(world))
    assert (await grade(world, persons.id, 0.0, "BOB")).status_code == 404, "it does not see it"
    assert (await grade(world, persons.id, 0.0, "BOSS")).status_code == 403, "it sees it, and judges nobody"
    assert (await grade(world, bobs.id, 0.0, "BOSS")).status_code == 403
    assert (await grade(world, bobs.id, 0.7, "BOB")).status_code == 200
    assert (await grade(world, persons.id, 0.7, "READER")).status_code == 403, "it may read alone"
    assert (await grade(world, persons.id, 0.7, "WRITER")).status_code == 200


@requirement("modelrouting.grades", "registry.stopped-key")
async def test_the_key_of_a_stopped_agent_grades_no_answer(world: World) -> None:
    agent_id = await world.register(key_name="bob")
    answer = await ask(openai_client(world, "BOB"))
    await world.admin.post(f"/api/v1/registry/agents/{agent_id}/suspend", json={"reason": "x"})
    assert (await grade(world, answer.id, 0.0, "BOB")).status_code == 403
    await world.admin.post(f"/api/v1/registry/agents/{agent_id}/activate")
    assert (await grade(world, answer.id, 0.0, "BOB")).status_code == 200


@requirement("modelrouting.grades")
async def test_a_grade_of_an_outcome_that_is_forgotten_takes_the_place_of_the_newest_ungraded_one(
    make_auto: Make,
) -> None:
    world = await make_auto(SERVICE_LLM_GROUPS="auto=east/m")
    client = openai_client(world)
    first = await ask(client)
    for _ in range(50):
        await ask(client)
    assert (await grade(world, first.id, 0.0)).json()["learned"] is True
    assert await rewards(world) == [("east/m", "ff" * 49 + "00")]


@requirement("modelrouting.grades")
async def test_a_grade_after_an_outage_of_all_models_does_not_bring_its_failures_back(
    client: openai.AsyncOpenAI, world: World, providers: Providers
) -> None:
    answers = {}
    for failing, name in (("east", "west"), ("west", "east")):
        providers[failing].mood = status(401)
        for _ in range(5):
            answers[f"{name}/m"] = await ask(client)
        providers[failing].mood = None
    before = dict(await rewards(world))
    for name in ("east", "west"):
        providers[name].mood = status(401)
    for _ in range(20):
        await status_of(ask(client))
    for name in ("east", "west"):
        providers[name].mood = None
    ending = (await ask(client)).model
    (other,) = answers.keys() - {ending}
    assert (await grade(world, answers[other].id, 0.4)).json()["learned"] is True
    assert dict(await rewards(world))[other].replace("66", "ff") == before[other]


@requirement("modelrouting.grades")
async def test_the_run_log_has_the_grade_under_the_answer(client: openai.AsyncOpenAI, world: World) -> None:
    answer = await ask(client)
    await grade(world, answer.id, 0.2, comment="No.")
    sql = Sql("select event_type, message from events where parent_id = :id order by event_id")
    rows = await world.kernel.infra.db.read(lambda tx: tx.rows(sql, id=answer.id.removeprefix("chatcmpl-")))
    assert [row[0] for row in rows] == ["learning_updated", "answer_graded"]
    assert rows[1][1] == "Graded 0.2."
