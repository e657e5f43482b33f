"""`model: "auto"` from outside: OpenAI's client, scripted providers, both databases."""

from __future__ import annotations

from collections import Counter

import openai

from tests.conftest import World
from tests.domains.llm.upstream import Upstream, status
from tests.domains.modelrouting.conftest import CODE, ask, grade
from tests.requirements import requirement


@requirement("modelrouting.learns")
async def test_a_model_that_always_fails_gets_at_most_5_of_the_first_60(
    client: openai.AsyncOpenAI, providers: dict[str, Upstream]
) -> None:
    providers["east"].mood = status(500)
    answers = [await ask(client) for _ in range(60)]
    assert {answer.model for answer in answers} == {"west/m"}
    assert 1 <= len(providers["east"].asked) <= 5
    assert len(providers["west"].asked) == 60


@requirement("modelrouting.learns", "modelrouting.grades")
async def test_a_model_that_is_graded_poor_for_code_is_left_for_code_alone(
    client: openai.AsyncOpenAI, world: World
) -> None:
    chosen: dict[str, Counter[str]] = {CODE: Counter(), "Why is the sea salty?": Counter()}
    for _ in range(40):
        for text, models in chosen.items():
            answer = await ask(client, text)
            models[answer.model] += 1
            worth = 0.1 if text == CODE and answer.model == "east/m" else 0.9
            worth = 0.6 if text != CODE and answer.model == "west/m" else worth
            assert (await grade(world, answer.id, worth)).status_code == 200
    assert chosen[CODE]["west/m"] >= 32
    assert chosen["Why is the sea salty?"]["east/m"] >= 28
