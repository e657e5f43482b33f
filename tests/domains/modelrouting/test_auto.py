"""`model: "auto"` from outside: OpenAI's client, scripted providers, both databases."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import openai
import pytest

from stentor.core.db import Sql
from stentor.domains.modelrouting.learning import GRADING_DAYS
from stentor.domains.routing import explain
from tests.conftest import World
from tests.domains.keys.test_keys import client_of
from tests.domains.keys.test_keys import make as make_key
from tests.domains.llm.conftest import asking
from tests.domains.llm.test_chat import pieces
from tests.domains.llm.upstream import ANSWER, raw, status
from tests.domains.modelrouting.conftest import (
    CODE,
    GROUPS,
    QUESTION,
    Make,
    Providers,
    ask,
    events,
    grade,
    openai_client,
    outcomes,
    status_of,
)
from tests.patience import soon
from tests.requirements import requirement

TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@requirement("modelrouting.learns")
async def test_a_model_that_always_fails_gets_at_most_5_of_the_first_60(
    client: openai.AsyncOpenAI, providers: Providers
) -> None:
    providers["east"].mood = status(500)
    answers = [await ask(client) for _ in range(60)]
    assert {answer.model for answer in answers} == {"west/m"}
    assert 1 <= len(providers["east"].asked) <= 5
    assert len(providers["west"].asked) == 60


@requirement("modelrouting.learns")
async def test_the_same_holds_where_no_breaker_helps(client: openai.AsyncOpenAI, providers: Providers) -> None:
    """A key that is refused is no outage, after which a provider is left alone: here only what was learned counts."""
    providers["east"].mood = status(401)
    answers = [await ask(client) for _ in range(60)]
    assert {answer.model for answer in answers} == {"west/m"}
    assert 1 <= len(providers["east"].asked) <= 5


@requirement("modelrouting.learns")
async def test_many_requests_at_once_do_not_all_try_the_same_model(
    client: openai.AsyncOpenAI, providers: Providers
) -> None:
    for one in providers.values():
        one.halting = True
        one.go.clear()
    asked = [asyncio.create_task(_read(client)) for _ in range(8)]

    async def all_arrived() -> bool:
        return sum(len(one.asked) for one in providers.values()) == 8

    await soon(all_arrived)
    assert min(len(providers[name].asked) for name in ("east", "west")) >= 2
    for one in providers.values():
        one.go.set()
    await asyncio.gather(*asked)


async def _read(client: openai.AsyncOpenAI) -> None:
    async for _ in await ask(client, stream=True):
        pass


@requirement("modelrouting.learns", "modelrouting.kinds")
async def test_a_model_that_is_graded_poor_for_code_is_left_for_code_alone(
    client: openai.AsyncOpenAI, world: World
) -> None:
    chosen: dict[str, Counter[str]] = {CODE: Counter(), QUESTION: Counter()}
    worth = {(CODE, "east/m"): 0.1, (CODE, "west/m"): 0.9, (QUESTION, "east/m"): 0.9, (QUESTION, "west/m"): 0.6}
    for _ in range(40):
        for text, models in chosen.items():
            answer = await ask(client, text)
            models[answer.model] += 1
            assert (await grade(world, answer.id, worth[text, answer.model])).status_code == 200
    assert chosen[CODE]["west/m"] >= 32
    assert chosen[QUESTION]["east/m"] >= 28


@requirement("modelrouting.learns")
async def test_a_model_that_recovers_is_found_again(client: openai.AsyncOpenAI, world: World) -> None:
    """At first east is worth less; then west gets worse, and east is the best."""
    for at in range(80):
        answer = await ask(client)
        worth = {"east/m": 0.3, "west/m": 0.9} if at < 30 else {"east/m": 0.9, "west/m": 0.1}
        assert (await grade(world, answer.id, worth[answer.model])).status_code == 200
        if at >= 60:
            assert answer.model == "east/m", at


@requirement("modelrouting.preference")
async def test_what_costs_more_is_chosen_less_by_who_prefers_what_is_cheap(make_auto: Make) -> None:
    world = await make_auto(SERVICE_LLM_PRICES="east/*=2000/2000,west/*=100/100")
    client = openai_client(world)
    cheap, quality = Counter[str](), Counter[str]()
    for _ in range(12):
        answer = await ask(client, metadata={"prefer": "cheap"})
        cheap[answer.model] += 1
        assert answer.stentor["prefer"] == "cheap"
        await grade(world, answer.id, 0.6 if answer.model == "west/m" else 0.9)
    for _ in range(30):
        answer = await ask(client, metadata={"prefer": "quality"})
        quality[answer.model] += 1
        await grade(world, answer.id, 0.6 if answer.model == "west/m" else 0.9)
    assert cheap["west/m"] >= 10
    assert quality["east/m"] >= 24


@requirement("modelrouting.preference")
@pytest.mark.parametrize("word", ["best", "", 5, None, ["cheap"], {"a": 1}])
async def test_another_word_for_what_is_preferred_is_400(client: openai.AsyncOpenAI, word: Any) -> None:
    code, body = await status_of(ask(client, extra_body={"metadata": {"prefer": word}}))
    assert code == 400
    assert "quality, balanced, fast, cheap" in body["message"]


@requirement("modelrouting.preference")
async def test_no_provider_reads_what_is_preferred_and_it_is_the_callers_own_word_elsewhere(
    client: openai.AsyncOpenAI, providers: Providers
) -> None:
    await ask(client, metadata={"prefer": "fast", "trace": "7"})
    sent = [one.asked[0]["body"] for one in providers.values() if one.asked]
    assert [body["metadata"] for body in sent] == [{"trace": "7"}]
    await ask(client, model="north/m", metadata={"prefer": "whatever"})
    assert providers["north"].asked[0]["body"]["metadata"] == {"prefer": "whatever"}


@requirement("modelrouting.everywhere")
async def test_every_route_for_text_takes_auto_and_says_which_model_answered_and_why(
    client: openai.AsyncOpenAI, world: World
) -> None:
    models = ("east/m", "west/m")
    whole = await ask(client)
    streamed = [chunk async for chunk in await ask(client, stream=True)]
    text = await client.completions.create(model="auto", prompt=QUESTION)
    response = await client.responses.create(model="auto", input=QUESTION, metadata={"prefer": "quality"})
    chat = (await world.admin.post("/api/v1/llm/chat", json=asking("auto", options={"prefer": "fast"}))).json()["data"]
    lines = pieces((await world.admin.post("/api/v1/llm/stream", json=asking("auto"))).text)
    names = [whole.model, streamed[0].model, text.model, response.model, chat["model"], lines[0]["model"]]
    assert set(names) <= set(models)
    assert "".join(line.get("delta", "") for line in lines[:-1]) == ANSWER
    why: list[Any] = [whole.stentor, streamed[0].stentor, response.stentor, chat["routing"], lines[0]["routing"]]  # pyrefly: ignore[missing-attribute] - a field beyond OpenAI's
    assert [each["kind"] for each in why] == ["question/short"] * 5
    assert [each["prefer"] for each in why] == ["balanced", "balanced", "quality", "fast", "balanced"]
    assert all(each["why"] and each["decision_id"] for each in why)
    ids = [whole.id, streamed[0].id, text.id, response.id, chat["provenance_id"], lines[0]["provenance_id"]]
    for answer_id in ids:
        assert (await grade(world, answer_id, 0.5)).status_code == 200, answer_id


@requirement("modelrouting.everywhere")
async def test_models_list_auto_and_the_groups_and_embeddings_are_not_for_it(
    client: openai.AsyncOpenAI, world: World
) -> None:
    listed = [model.id async for model in await client.models.list()]
    assert listed[:5] == ["auto", "auto:pair", "auto:all", "pair", "all"]
    for name in ("auto:pair", "pair"):
        assert (await client.models.retrieve(name)).id == name
    code, _ = await status_of(client.embeddings.create(model="auto", input="salt"))
    assert code == 400


@requirement("modelrouting.everywhere")
async def test_a_group_that_cannot_be_called_by_its_name_is_not_listed(make_auto: Make) -> None:
    world = await make_auto(SERVICE_LLM_GROUPS="pair=east/m|west/m,agent:a=east/m,auto:b=east/m")
    listed = {model["id"] for model in (await world.admin.get("/v1/models")).json()["data"]}
    assert {"pair", "auto:pair"} <= listed
    assert not {"agent:a", "auto:b"} & listed


@requirement("modelrouting.candidates")
async def test_a_group_has_its_own_models_and_an_unknown_one_is_404_with_the_known_names(
    client: openai.AsyncOpenAI, world: World, providers: Providers
) -> None:
    for _ in range(9):
        await grade(world, (await ask(client, model="auto:all")).id, 0.3)
    assert all(len(one.asked) >= 1 for one in providers.values())
    for name in ("auto:nothing", "auto:", "auto:ALL"):
        code, body = await status_of(ask(client, model=name))
        assert (code, body["code"]) == (404, "model_not_found")
        assert "auto:pair" in body["message"]


@requirement("modelrouting.candidates")
async def test_without_a_group_auto_has_the_default_models_and_those_of_the_groups(
    make_auto: Make, providers: Providers
) -> None:
    world = await make_auto(SERVICE_LLM_GROUPS="fast=west/small", SERVICE_LLM_LOCAL_BASELINE="1")
    body = {"provider": "east", "options": {"default_model": "large"}}
    assert (await world.admin.post("/api/v1/llm/provider", json=body)).status_code == 200
    client = openai_client(world)
    answers = []
    for _ in range(8):
        answers.append(await ask(client))
        await grade(world, answers[-1].id, 0.3)
    assert {answer.model for answer in answers} == {"east/large", "west/small"}
    assert not providers["north"].asked, "it has no default model"


@requirement("modelrouting.candidates")
async def test_without_a_model_to_choose_from_it_is_404_and_says_what_to_do(make_auto: Make) -> None:
    world = await make_auto(SERVICE_LLM_GROUPS="", SERVICE_LLM_LOCAL_BASELINE="1")
    code, body = await status_of(ask(openai_client(world)))
    assert code == 404
    assert "SERVICE_LLM_GROUPS" in body["message"]
    assert "auto" not in [model.id async for model in await openai_client(world).models.list()]


@requirement("modelrouting.candidates")
async def test_what_is_no_model_is_passed_over_and_recorded(make_auto: Make, providers: Providers) -> None:
    groups = "odd=agent:echo|gone/m|local/extractive|east/m"
    world = await make_auto(SERVICE_LLM_GROUPS=groups, SERVICE_LLM_LOCAL_BASELINE="1")
    await world.register(capabilities=["echo"])
    answer = await ask(openai_client(world), model="auto:odd", tools=[TOOL])
    assert answer.model == "east/m"
    denied = (await events(world, "model_chosen"))[0]["routing"]["denied"]
    codes = {each["name"]: each["code"] for each in denied}
    assert codes == {
        "agent:echo": "AGENT_IS_NO_MODEL",
        "gone/m": "MODEL_NOT_FOUND",
        "local/extractive": "TEXT_ONLY",
    }


@requirement("modelrouting.candidates")
async def test_what_the_callers_money_does_not_reach_for_is_not_chosen_while_another_model_is_there(
    make_auto: Make,
) -> None:
    world = await make_auto(
        SERVICE_LLM_BUDGETS="key:admin:usd/day=0.05", SERVICE_LLM_PRICES="east/*=1000/1000,west/*=1/1"
    )
    client = openai_client(world)
    assert {(await ask(client, metadata={"prefer": "quality"})).model for _ in range(4)} == {"west/m"}


@requirement("modelrouting.candidates", "llm.teams")
async def test_what_the_money_of_the_callers_team_does_not_reach_for_is_not_chosen(make_auto: Make) -> None:
    world = await make_auto(
        SERVICE_LLM_BUDGETS="team:research:usd/day=0.05", SERVICE_LLM_PRICES="east/*=1000/1000,west/*=1/1"
    )
    world.clients["ann"] = client_of(world, (await make_key(world, "ann", team="research"))["key"])
    client = openai_client(world, "ann")
    assert {(await ask(client, metadata={"prefer": "quality"})).model for _ in range(4)} == {"west/m"}


@requirement("modelrouting.decision")
async def test_a_decision_is_in_the_run_log_and_is_computed_again_from_it(
    client: openai.AsyncOpenAI, world: World
) -> None:
    answers = [await ask(client, text, model="auto:all") for text in (QUESTION, CODE) * 5]
    read: dict[str, Any] = {}
    for answer in answers:
        read = (await world.admin.get(f"/api/v1/llm/answers/{answer.id}")).json()
        check = explain.check_decision(read["decision"])
        assert check.is_reproduced, check
        assert read["decision"]["agent_name"] == read["model"] == answer.model
        assert (read["requested"], read["asked_by"]) == ("auto:all", "admin")
        assert read["decision_id"] == answer.stentor["decision_id"]
    changed = json.loads(json.dumps(read["decision"]))
    changed["candidates"][0]["rewards"] += 1
    assert not explain.check_decision(changed).is_reproduced
    parents = Sql("select parent_id from events where event_type = 'llm_called' order by event_id")
    rows = await world.kernel.infra.db.read(lambda tx: tx.rows(parents))
    assert [row[0] for row in rows] == [answer.stentor["decision_id"] for answer in answers]


@requirement("modelrouting.kept")
async def test_what_was_learned_and_what_may_be_graded_outlive_a_restart(make_auto: Make, providers: Providers) -> None:
    world = await make_auto()
    client = openai_client(world)
    providers["east"].mood = status(500)
    answers = [await ask(client) for _ in range(20)]
    tried = len(providers["east"].asked)
    again = await make_auto()
    for _ in range(5):
        assert (await ask(openai_client(again))).model == "west/m"
    assert len(providers["east"].asked) == tried
    assert (await grade(again, answers[0].id, 0.4)).json()["learned"] is True


@requirement("modelrouting.kept")
async def test_two_processes_learn_from_each_other(make_auto: Make, providers: Providers) -> None:
    one, two = await make_auto(), await make_auto()
    providers["east"].mood = status(500)
    for _ in range(10):
        await ask(openai_client(one))
    tried = len(providers["east"].asked)
    await two.kernel.views.refresh(0)
    for _ in range(10):
        assert (await ask(openai_client(two))).model == "west/m"
    assert len(providers["east"].asked) == tried
    await asyncio.gather(*(ask(openai_client(world)) for world in (one, two) for _ in range(10)))
    sql = Sql("select sum(samples) from model_weights where model = 'west/m'")
    assert (await one.kernel.infra.db.read(lambda tx: tx.rows(sql)))[0][0] == 40, (
        "no outcome is lost between two processes"
    )


@requirement("modelrouting.kept")
async def test_an_answer_may_be_graded_for_a_while_and_is_forgotten_then(make_auto: Make) -> None:
    world = await make_auto()
    old = await ask(openai_client(world))
    world.clock.advance(seconds=GRADING_DAYS * 86_400 + 1)
    again = await make_auto()
    assert (await grade(again, old.id, 0.5)).status_code == 200
    await ask(openai_client(again))
    assert (await grade(again, old.id, 0.5)).status_code == 404


@requirement("modelrouting.learns")
async def test_tenants_learn_apart(make_auto: Make, providers: Providers) -> None:
    world = await make_auto()
    for name, upstream in providers.items():
        body = {"provider": name, "apiKey": "canary-other", "baseUrl": upstream.v1}
        assert (await world.clients["OTHER"].post("/api/v1/llm/provider", json=body)).status_code == 200
    providers["east"].mood = status(500)
    for _ in range(10):
        await ask(openai_client(world))
    providers["east"].mood = None
    assert (await ask(openai_client(world, "OTHER"))).model == "east/m", "it failed the other tenant alone"


@requirement("modelrouting.learns")
async def test_an_agents_key_teaches_so_much_a_day_and_no_more(make_auto: Make, providers: Providers) -> None:
    world = await make_auto(SERVICE_LEARNING_DAILY_LIMIT="3", SERVICE_LLM_GROUPS="auto=east/m")
    bob = openai_client(world, "BOB")
    answers = [await ask(bob) for _ in range(5)]
    assert len(await outcomes(world)) == 3
    graded = [(await grade(world, answer.id, 1.0)).json()["learned"] for answer in answers]
    assert graded == [True, True, True, False, False]


@requirement("modelrouting.everywhere")
async def test_a_request_that_names_no_model_may_go_to_auto_too(make_auto: Make) -> None:
    world = await make_auto(SERVICE_LLM_DEFAULT_MODEL="auto")
    body = {"messages": [{"role": "user", "content": QUESTION}]}
    data = (await world.admin.post("/api/v1/llm/chat", json=body)).json()["data"]
    assert data["model"] in ("east/m", "west/m")
    assert data["routing"]["kind"] == "question/short"


@requirement("modelrouting.everywhere", "modelrouting.decision")
async def test_an_agent_that_is_a_prompt_may_use_auto_and_its_trail_has_the_decision(world: World) -> None:
    await world.register("sailor", capabilities=["explain"], runtime={"kind": "llm", "options": {"model": "auto"}})
    task_id = await world.submit(type="explain", input="Why is the sea salty?", required_capabilities=["explain"])
    task = await world.ended(task_id)
    assert task["result"]["model"] in ("east/m", "west/m")
    trail = [event["event_type"] for event in await world.events(task_id)]
    assert [kind for kind in trail if kind in ("model_chosen", "llm_called")] == ["model_chosen", "llm_called"]


@requirement("modelrouting.preference")
async def test_a_new_price_of_a_model_counts_from_the_next_request_on(make_auto: Make) -> None:
    """The service starts again with other prices, after both models have answered."""
    groups, cheap = f"{GROUPS},one=west/m", {"prefer": "cheap"}
    world = await make_auto(SERVICE_LLM_GROUPS=groups, SERVICE_LLM_PRICES="east/*=100/100,west/*=3000/3000")
    client = openai_client(world)
    await ask(client, model="auto:one")
    assert [(await ask(client, metadata=cheap)).model for _ in range(3)] == ["east/m"] * 3
    world = await make_auto(SERVICE_LLM_PRICES="east/*=100/100,west/*=1/1")
    assert (await ask(openai_client(world), metadata=cheap)).model == "west/m"
    routing = (await events(world, "model_chosen"))[-1]["routing"]
    costs = {each["name"]: each["cost"] for each in routing["candidates"]}
    assert costs["east/m"] > 50 * costs["west/m"]


@requirement("modelrouting.preference")
async def test_a_model_whose_replies_are_long_counts_as_dear_as_they_are(make_auto: Make, providers: Providers) -> None:
    world = await make_auto(SERVICE_LLM_PRICES="east/*=100/100,west/*=100/100")
    reply: dict[str, Any] = {"id": "r", "object": "chat.completion", "created": 1, "model": "m"}
    reply["choices"] = [{"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}]
    reply["usage"] = {"prompt_tokens": 8, "completion_tokens": 4_000, "total_tokens": 4_008}
    providers["east"].mood = raw(json.dumps(reply).encode())
    client = openai_client(world)
    chosen = [(await ask(client, metadata={"prefer": "cheap"})).model for _ in range(20)]
    assert chosen.count("east/m") <= 2
