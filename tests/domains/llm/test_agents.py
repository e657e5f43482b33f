"""Agents and models: agents that are a model with a prompt, agents used as models, and ATP messages for models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from stentor.auth.principal import Principal
from stentor.core.db import Sql
from stentor.core.fanout import live
from stentor.domains.conversation.model import build_task_draft
from stentor.domains.llm.model import ChatRequest, LlmMessage, TextPart
from tests.conftest import MakeWorld, World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import Gate
from tests.domains.llm.test_chat import pieces
from tests.domains.llm.test_live import listening
from tests.domains.llm.test_openai_surface import client_of
from tests.domains.llm.upstream import ANSWER, Upstream
from tests.domains.streams import watched
from tests.patience import PATIENCE_SECONDS
from tests.requirements import requirement

PROMPT = "You are a sailor."
ASKED: Any = [{"role": "user", "content": "Why is the sea salty?"}]
CALLS = Sql("select event_id, agent_id, parent_id, task_id from events where event_type = 'llm_called'")
TASKS = Sql("select task_id from tasks")
STARTED = Sql("select event_id from events where event_type = 'task_started'")


async def sailor(world: World, tier: str = "monitored", **options: Any) -> str:
    """An agent of the runtime `llm` that can explain."""
    given = {"model": "openai/sea-large", "system_prompt": PROMPT, **options}
    runtime = {"kind": "llm", "options": given}
    return await world.register("sailor", capabilities=["explain"], runtime=runtime, trust_tier=tier)


async def explained(world: World, given: Any = "Why is the sea salty?") -> dict[str, Any]:
    """The end of a task for the sailor."""
    return await world.ended(await world.submit(type="explain", input=given, required_capabilities=["explain"]))


@requirement("routing.provider-failures")
async def test_an_agent_does_not_rest_for_all_because_of_one_keys_budget_or_session(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:writer:tokens/day=1,agent:*:tokens/day=1000")
    agent = await sailor(world)
    body: dict[str, Any] = {"type": "explain", "input": "Hi", "required_capabilities": ["explain"]}
    for code in [None, *["BUDGET_EXCEEDED"] * 3]:
        answer = await world.clients["WRITER"].post("/api/v1/tasks", json=body)
        task = await world.ended(answer.json()["task_id"])
        assert (task["error"] or {}).get("code") == code
    assert not world.kernel.agents.presence.is_resting(agent, 0)


@requirement("execution.llm-runtime")
async def test_an_agent_can_be_a_model_with_a_prompt(world: World, upstream: Upstream) -> None:
    await sailor(world, temperature=0.5, max_tokens=50)
    task = await explained(world)
    assert task["status"] == "completed"
    usage = {"input_tokens": 11, "output_tokens": 7}
    assert task["result"] == {"text": ANSWER, "model": "openai/sea-large", "usage": usage, "finish_reason": "stop"}
    asked = upstream.asked[-1]["body"]
    assert [(m["role"], m["content"]) for m in asked["messages"]] == [
        ("system", PROMPT),
        ("user", "Why is the sea salty?"),
    ]
    assert (asked["temperature"], asked["max_tokens"]) == (0.5, 50)


@requirement("execution.llm-runtime")
async def test_what_an_agent_asks_a_model_stands_in_its_tasks_trail_and_on_its_account(world: World) -> None:
    agent_id = await sailor(world)
    task = await explained(world)
    (call,) = await world.kernel.infra.db.read(lambda tx: tx.rows(CALLS))
    (started,) = await world.kernel.infra.db.read(lambda tx: tx.rows(STARTED))
    assert tuple(call[1:]) == (agent_id, started[0], task["task_id"])
    assert call[0] in [event["event_id"] for event in await world.events(task["task_id"])]


@requirement("execution.llm-runtime-cost")
async def test_what_an_agents_model_costs_is_learned_so_that_a_cheaper_one_is_preferred(make_llm: Any) -> None:
    world: World = await make_llm(SERVICE_LLM_PRICES="openai/*=1000/2000")
    await sailor(world)
    task = await explained(world)
    (learned,) = [e for e in await world.events(task["task_id"]) if e["event_type"] == "task_completed"]
    (call,) = (await world.admin.get("/api/v1/llm/calls")).json()["calls"]
    assert learned["metadata"]["cost"] == pytest.approx(call["cost_usd"])
    assert call["cost_usd"] > 0


@requirement("registry.unserved-model-notice")
async def test_an_agent_whose_model_no_provider_serves_is_registered_with_a_notice(world: World) -> None:
    async def register(name: str, **options: Any) -> dict[str, Any]:
        body = {"name": name, "capabilities": [name], "runtime": {"kind": "llm", "options": options}}
        answer = await world.admin.post("/api/v1/registry/agents", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    assert (await register("good", model="openai/sea-large"))["notice"] is None
    assert (await register("auto", model="auto"))["notice"] is None
    notices = {}
    for name, model in (("gone", "gone/m"), ("unlisted", "openai/river"), ("bare", "river")):
        agent = await register(name, model=model)
        notices[agent["agent_id"]] = agent["notice"]
        assert agent["notice"].startswith(f"model {model!r} is not served by any provider.")
        assert "llm.models" in agent["notice"]
        record = (await world.admin.get(f"/api/v1/registry/agents/{agent['agent_id']}")).json()
        assert record["notice"] == agent["notice"]
    listed = (await world.admin.get("/api/v1/registry/agents")).json()["agents"]
    assert {a["agent_id"]: a["notice"] for a in listed if a["notice"]} == notices
    no_default = await register("none")
    assert "SERVICE_LLM_DEFAULT_MODEL" in no_default["notice"]

    task = await world.ended(await world.submit(required_capabilities=["gone"]))
    assert (task["status"], task["error"]["code"]) == ("failed", "MODEL_NOT_FOUND")
    assert "'gone/m'" in task["error"]["message"]
    assert "llm.models" in task["error"]["message"]


async def test_without_any_provider_the_notice_says_how_to_configure_one(make_world: MakeWorld) -> None:
    world: World = await make_world()
    body = {"name": "a", "runtime": {"kind": "llm", "options": {"model": "openai/x"}}}
    notice = (await world.admin.post("/api/v1/registry/agents", json=body)).json()["notice"]
    assert notice.startswith("No LLM provider is configured for the model 'openai/x': set OPENAI_API_KEY")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text": "Salt?"}, [("user", "Salt?")]),
        ({"grams": 3}, [("user", '{"grams":3}')]),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            [("user", "a"), ("assistant", "b")],
        ),
    ],
)
async def test_an_input_of_any_shape_reaches_the_model(
    world: World, upstream: Upstream, given: Any, said: list[tuple[str, str]]
) -> None:
    await sailor(world, system_prompt="")
    assert (await explained(world, given))["status"] == "completed"
    assert [(m["role"], m["content"]) for m in upstream.asked[-1]["body"]["messages"]] == said


@pytest.mark.parametrize(
    "given",
    [
        "  ",
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": [], "content": "x"}]},
        {"messages": ["x"]},
    ],
)
async def test_an_input_that_says_nothing_is_the_agents_failure_and_calls_nobody(
    world: World, upstream: Upstream, given: Any
) -> None:
    await sailor(world)
    task = await explained(world, given)
    assert (task["status"], task["error"]["code"]) == ("failed", "INPUT_INVALID")
    assert not upstream.asked


@requirement("llm.provider-failure-is-not-agents")
@pytest.mark.parametrize("mood", [moods.status(500), moods.status(429), moods.raw(b"<html>"), moods.hanging_up])
async def test_a_providers_failure_is_not_the_agents(world: World, upstream: Upstream, mood: Any) -> None:
    agent_id = await sailor(world)
    await world.admin.put(f"/api/v1/trust/{agent_id}", json={"score": 0.8})
    upstream.mood = mood
    task = await explained(world)
    assert task["status"] == "failed"
    trail = (await world.admin.get(f"/api/v1/tasks/{task['task_id']}/activity")).json()
    assert (trail["outcome_class"], trail["learning_eligible"]) == ("provider_failure", False)
    weights = (await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent_id})).json()["weights"]
    assert weights == {}
    trust = (await world.admin.get(f"/api/v1/trust/{agent_id}")).json()["data"]
    assert trust["score"] == 0.8


@requirement("llm.budgets")
@pytest.mark.parametrize("budgets", ["agent:*:tokens/day=15", "key:admin:tokens/day=15"])
async def test_what_an_agent_spends_is_bounded_on_its_own_account_and_on_that_of_the_key_that_asked(
    make_llm: Gate, upstream: Upstream, budgets: str
) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS=budgets)
    await sailor(world, system_prompt="", max_tokens=1)
    assert (await explained(world, "Hi"))["status"] == "completed"
    task = await explained(world, "Hi")
    assert task["error"]["code"] == "BUDGET_EXCEEDED"
    answer = await world.admin.post("/v1/chat/completions", json={"model": "agent:explain", "messages": ASKED})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "budget_exceeded")
    assert int(answer.headers["Retry-After"]) >= 3600
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    "options",
    [{"model": "agent:explain"}, {"model": ""}, {"temperature": 3}, {"prompt": "x"}, {"max_tokens": 0}, {"stop": "x"}],
)
async def test_options_that_do_not_hold_are_refused_at_registration(world: World, options: dict[str, Any]) -> None:
    body = {"name": "a", "capabilities": ["x"], "runtime": {"kind": "llm", "options": options}}
    answer = await world.admin.post("/api/v1/registry/agents", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("llm.agents-as-models")
async def test_openais_client_talks_to_the_best_agent_of_a_capability(world: World, upstream: Upstream) -> None:
    agent_id = await sailor(world)
    client = client_of(world.admin)
    answer: Any = await client.chat.completions.create(
        model="agent:explain", messages=[{"role": "system", "content": "Be brief."}, *ASKED], max_tokens=9
    )
    assert (answer.choices[0].message.content, answer.model) == (ANSWER, "agent:explain")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 7)
    work = answer.stentor
    assert (work["agent_id"], work["agent_name"]) == (agent_id, "sailor")
    asked = upstream.asked[-1]["body"]
    assert [m["content"] for m in asked["messages"]] == [PROMPT, "Be brief.", "Why is the sea salty?"]
    assert asked["max_tokens"] == 9
    world.admin.headers["X-API-Key"] = "admin-key-7c1e"
    trail = (await world.admin.get(f"/api/v1/tasks/{work['task_id']}/activity")).json()
    assert answer.id == f"chatcmpl-{trail['provenance_id']}"
    kinds = [event["event_type"] for event in trail["events"]]
    for kind in ("prompt_received", "routing_decision", "llm_called", "task_completed", "learning_updated"):
        assert kind in kinds
    weights = (await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent_id})).json()["weights"]
    assert weights["explain"] > 1


@requirement("llm.agents-as-models")
async def test_why_the_model_of_an_agent_ended_its_answer_is_passed_on(world: World, upstream: Upstream) -> None:
    await sailor(world)
    client = client_of(world.admin)
    for finish in ("stop", "length", "content_filter"):
        upstream.finish = finish
        answer = await client.chat.completions.create(model="agent:explain", messages=ASKED)
        assert answer.choices[0].finish_reason == finish


@requirement("llm.agents-as-models")
async def test_an_agents_answer_is_streamed_token_by_token(world: World, upstream: Upstream) -> None:
    await sailor(world)
    upstream.halting = True
    upstream.go.clear()
    options: Any = {"include_usage": True}
    chunks: list[Any] = []
    said: list[str] = []
    async with listening(world) as http:
        stream = await client_of(http).chat.completions.create(
            model="agent:explain", messages=ASKED, stream=True, stream_options=options
        )
        async for chunk in stream:
            chunks.append(chunk)
            if chunk.choices and chunk.choices[0].delta.content:
                said.append(chunk.choices[0].delta.content)
                upstream.go.set()  # the first one was read before there was a second
    assert said == ["The sea ", "is salty."]
    assert chunks[-1].usage.total_tokens == 18
    assert chunks[0].stentor["agent_name"] == "sailor"


@requirement("llm.agents-as-models")
async def test_every_route_for_text_takes_an_agent_and_the_list_of_models_names_it(world: World) -> None:
    await sailor(world)
    talk = {"model": "agent:explain", "messages": ASKED}
    ours = await world.admin.post("/api/v1/llm/chat", json=talk)
    assert (ours.json()["data"]["content"], ours.json()["data"]["model"]) == (ANSWER, "agent:explain")
    task = await world.task(ours.json()["data"]["task_id"])
    assert task["status"] == "completed"
    done = await world.admin.post("/api/v1/llm/complete", json={"model": "agent:explain", "prompt": "Salt?"})
    assert done.json()["data"]["content"] == ANSWER
    lines = (await world.admin.post("/api/v1/llm/stream", json=talk)).text.split("\n\n")
    *deltas, last = [line.removeprefix("data: ") for line in lines if line]
    assert ("".join(json.loads(delta)["delta"] for delta in deltas), last) == (ANSWER, "[DONE]")
    client = client_of(world.admin)
    completion = await client.completions.create(model="agent:explain", prompt="Salt?")
    assert completion.choices[0].text == ANSWER
    response = await client.responses.create(model="agent:explain", input="Salt?")
    assert response.output_text == ANSWER
    names = [model.id async for model in client.models.list()]
    assert "agent:explain" in names


@requirement("llm.agents-as-models")
async def test_an_agent_without_tokens_says_its_answer_at_once(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_BUILTIN_AGENTS="1")
    text = "The sea is salty. Rivers carry salt to the sea. Boats float on it."
    talk = {"model": "agent:summarize", "messages": [{"role": "user", "content": text}]}
    answer = await world.admin.post("/v1/chat/completions", json=talk)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == text
    assert answer.json()["usage"]["prompt_tokens"] > 0


@requirement("llm.agents-as-models")
@pytest.mark.parametrize(
    ("model", "more", "status", "code"),
    [
        ("agent:fly", {}, 422, "routing_capability_unavailable"),
        ("agent:", {}, 400, "invalid_request"),
        ("agent:explain", {"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "invalid_request"),
        ("agent:explain", {"response_format": {"type": "json_object"}}, 400, "invalid_request"),
    ],
)
async def test_what_no_agent_can_do_is_refused_in_openais_form(
    world: World, model: str, more: dict[str, Any], status: int, code: str
) -> None:
    await sailor(world)
    answer = await world.admin.post("/v1/chat/completions", json={"model": model, "messages": ASKED, **more})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@requirement("llm.agents-as-models")
def test_a_response_format_of_text_asks_an_agent_for_nothing_special() -> None:
    asked = ChatRequest("agent:explain", (LlmMessage("user", (TextPart("Why?"),)),), response_format={"type": "text"})
    assert build_task_draft("explain", asked).type == "explain"


@requirement("llm.agents-as-models", "llm.responses-tools")
async def test_tools_for_an_agent_are_400_and_the_message_says_where_tools_are_taken(world: World) -> None:
    await sailor(world)
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    for body in ({"tools": [tool]}, {"tools": [tool], "stream": True}):
        answer = await world.admin.post("/v1/responses", json={"model": "agent:explain", "input": "Why?", **body})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "tools")
        assert "GET /v1/models" in error["message"]


@requirement("llm.agents-as-models")
async def test_an_agents_stream_says_exactly_its_answer(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_BUILTIN_AGENTS="1")
    text = "The sea is salty. Rivers carry salt to the sea. Boats float on it."
    talk = {"model": "agent:summarize", "input": text}
    whole = (await world.admin.post("/v1/responses", json=talk)).json()
    last = pieces((await world.admin.post("/v1/responses", json={**talk, "stream": True})).text)[-1]["response"]
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert whole["output"][0]["content"][0]["text"] == text
    assert set(whole["stentor"]) == {"task_id", "agent_id", "agent_name"}
    assert last["stentor"]["agent_name"] == whole["stentor"]["agent_name"]


async def test_agents_take_no_images_and_embed_nothing(world: World) -> None:
    await sailor(world)
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/sea.png"}}
    talk = {"model": "agent:explain", "messages": [{"role": "user", "content": [picture]}]}
    assert (await world.admin.post("/v1/chat/completions", json=talk)).status_code == 400
    body = {"model": "agent:explain", "input": "salt"}
    assert (await world.admin.post("/v1/embeddings", json=body)).status_code == 400


@requirement("llm.agents-as-models")
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agents_failure_is_told_without_its_words(world: World, upstream: Upstream, streamed: bool) -> None:
    await sailor(world)
    upstream.mood = moods.status(500, {"error": {"message": "canary"}})
    client = client_of(world.admin)

    async def asking() -> None:
        stream: Any = await client.chat.completions.create(model="agent:explain", messages=ASKED, stream=streamed)
        [_ async for _ in stream]

    with pytest.raises(openai.APIError) as failed:
        await asking()
    assert "canary" not in str(failed.value)
    assert failed.value.code == "provider_error"


@requirement("llm.agents-as-models")
async def test_a_task_that_waits_for_a_person_answers_where_its_answer_will_be(world: World) -> None:
    await sailor(world, tier="human")
    answer = await world.admin.post("/v1/chat/completions", json={"model": "agent:explain", "messages": ASKED})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "approval_pending")
    listed = (await world.admin.get("/api/v1/tasks", params={"status": "pending_approval"})).json()["tasks"]
    assert listed[0]["task_id"] in answer.json()["error"]["message"]


@requirement("llm.agents-as-models")
async def test_openais_client_submits_a_task_once_that_no_agent_may_execute(world: World) -> None:
    agent = await sailor(world)
    await world.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "ill"})
    client = client_of(world.admin).with_options(max_retries=2)
    with pytest.raises(openai.ConflictError) as failed:
        await client.chat.completions.create(model="agent:explain", messages=ASKED)
    assert failed.value.code == "routing_agent_unavailable"
    assert len(await world.kernel.infra.db.read(lambda tx: tx.rows(TASKS))) == 1


@requirement("llm.agents-as-models")
@pytest.mark.parametrize("status", [409, 502, 503])
async def test_openais_client_submits_a_task_once_though_it_repeats_requests_that_fail(
    world: World, upstream: Upstream, status: int
) -> None:
    await sailor(world, tier="human" if status == 409 else "monitored")
    upstream.mood = moods.status(500)
    if status == 503:
        upstream.mood = moods.held(upstream)
        upstream.go.clear()
    client = client_of(world.admin).with_options(max_retries=2)
    asking = asyncio.ensure_future(client.chat.completions.create(model="agent:explain", messages=ASKED))
    if status == 503:
        await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_SECONDS)
        world.kernel.infra.hub.closing.set()
    with pytest.raises(openai.APIStatusError) as failed:
        await asking
    upstream.go.set()
    assert failed.value.status_code == status
    assert "Retry-After" not in failed.value.response.headers
    assert len(await world.kernel.infra.db.read(lambda tx: tx.rows(TASKS))) == 1


@requirement("llm.agents-as-models")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_caller_that_leaves_cancels_the_task_and_the_providers_work(
    world: World, upstream: Upstream, streamed: bool
) -> None:
    await sailor(world)
    upstream.halting = True
    upstream.go.clear()
    talk = {"model": "agent:explain", "messages": ASKED, "stream": streamed}
    async with listening(world) as client:
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json=talk))
        await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_SECONDS)
        asking.cancel()
        await asyncio.wait_for(upstream.broken_off.wait(), PATIENCE_SECONDS)
    (task,) = (await world.admin.get("/api/v1/tasks")).json()["tasks"]
    assert task["status"] == "cancelled"


@requirement("llm.agents-as-models")
async def test_a_caller_that_leaves_while_its_task_is_being_stored_leaves_none_behind(
    world: World, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sailor(world)
    upstream.halting = True
    upstream.go.clear()
    read, stored, go = world.kernel.tasks.reader.get, asyncio.Event(), asyncio.Event()

    async def slow(principal: Principal, task_id: str) -> Any:
        stored.set()
        await go.wait()
        return await read(principal, task_id)

    monkeypatch.setattr(world.kernel.tasks.reader, "get", slow)
    talk = {"model": "agent:explain", "messages": ASKED}
    async with listening(world) as client:
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json=talk))
        await asyncio.wait_for(stored.wait(), PATIENCE_SECONDS)
        await asyncio.wait_for(upstream.arrived.wait(), PATIENCE_SECONDS)
        asking.cancel()
        await asyncio.sleep(0.2)  # the service sees that the caller left
        go.set()
        await asyncio.wait_for(upstream.broken_off.wait(), PATIENCE_SECONDS)
    monkeypatch.undo()
    (task,) = (await world.admin.get("/api/v1/tasks")).json()["tasks"]
    assert task["status"] == "cancelled"


MESSAGE = {
    "header": {
        "mode": "direct",
        "context": "trace-7",
        "priority": "high",
        "actionType": "query",
        "targetZone": "memory",
    },
    "payload": {"content": "Why is the sea salty?"},
}


@requirement("llm.atp")
async def test_a_model_answers_a_message_under_its_own_header_and_never_reads_the_header(
    world: World, upstream: Upstream
) -> None:
    agent_id = await sailor(world)
    body = {"atpMessage": MESSAGE, "model": "openai/sea-large", "agentId": agent_id}
    answer = await world.admin.post("/api/v1/llm/atp", json=body)
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    header = {**MESSAGE["header"], "senderId": "admin"}
    assert data["atp"] == {**header, "header": header}
    assert (data["model"], data["content"]) == ("openai/sea-large", ANSWER)
    assert data["usage"] == {"input_tokens": 11, "output_tokens": 7}
    (call,) = await world.kernel.infra.db.read(lambda tx: tx.rows(CALLS))
    assert tuple(call) == (data["provenance_id"], agent_id, None, None)
    sent = upstream.asked[-1]["body"]
    assert sent["messages"] == [{"role": "user", "content": "Why is the sea salty?"}]
    assert "trace-7" not in str(sent)


@requirement("llm.atp")
async def test_a_message_can_ask_the_agents_of_a_capability(world: World) -> None:
    await sailor(world)
    answer = await world.admin.post("/api/v1/llm/atp", json={"atpMessage": MESSAGE, "model": "agent:explain"})
    data = answer.json()["data"]
    assert (data["content"], data["atp"]["header"]["senderId"]) == (ANSWER, "admin")
    assert (await world.task(data["task_id"]))["status"] == "completed"


@requirement("llm.atp", "atp.pasted-head")
async def test_a_head_that_was_pasted_into_a_message_reaches_no_model(world: World, upstream: Upstream) -> None:
    content = "#Mode: direct\n#Context: trace-9\n#Priority: low\n#ActionType: execute\n#TargetZone: kernel\n\nWhy?"
    body = {"atpMessage": {**MESSAGE, "payload": {"content": content}}, "model": "openai/sea-large"}
    assert (await world.admin.post("/api/v1/llm/atp", json=body)).status_code == 200
    assert upstream.asked[-1]["body"]["messages"] == [{"role": "user", "content": "Why?"}]


@requirement("llm.atp")
async def test_a_message_that_does_not_hold_and_an_agent_of_somebody_else_are_refused(
    world: World, upstream: Upstream
) -> None:
    agent_id = await sailor(world)
    wrong = {"header": {**MESSAGE["header"], "priority": "urgent"}, "payload": {}}
    answer = await world.admin.post("/api/v1/llm/atp", json={"atpMessage": wrong, "model": "openai/sea-large"})
    assert answer.status_code == 400
    wanted = {"atpMessage.header.priority", "atpMessage.payload.content"}
    assert wanted <= set(answer.json()["error"]["details"]["fields"])
    body = {"atpMessage": MESSAGE, "model": "openai/sea-large", "agentId": agent_id}
    assert (await world.clients["BOB"].post("/api/v1/llm/atp", json=body)).status_code == 403
    assert (await world.clients["OTHER"].post("/api/v1/llm/atp", json=body)).status_code == 404
    forged = {**MESSAGE, "header": {**MESSAGE["header"], "senderId": "nobody"}}
    assert (await world.admin.post("/api/v1/llm/atp", json={**body, "atpMessage": forged})).status_code == 403
    assert not upstream.asked


@requirement("llm.agents-as-models")
@pytest.mark.parametrize("told", ["whole", "other"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_tokens_that_come_faster_than_they_are_read_leave_no_hole_in_the_answer(
    world: World, told: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_QUEUED", 1_000)
    agent = await world.register()
    body = {"model": "agent:echo", "messages": ASKED, "stream": streamed}
    asking = asyncio.create_task(world.admin.post("/v1/chat/completions", json=body))
    claim = await world.claim(agent, wait_seconds=60)
    hub, task_id = world.kernel.infra.hub, claim["task_id"]
    words = [f"{n} " for n in range(5_000)]
    await watched(world)
    for word in words:
        hub.append_token("default", task_id, "attempt", word)
    hub.drop_tokens("default", task_id)  # as its end does: a reader who comes back before that would find them all
    result = {"whole": "".join(words), "other": "Something else."}[told]
    done = {"epoch": claim["epoch"], "result": result}
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=done)).status_code == 200
    answer = await asking
    assert answer.status_code == 200
    if not streamed:
        assert answer.json()["choices"][0]["message"]["content"] == result
        return
    lines = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    said = "".join(one["choices"][0]["delta"].get("content") or "" for one in lines if one.get("choices"))
    if told == "whole":
        assert said == result
    else:
        assert (lines[-1]["error"]["code"], "data: [DONE]" in answer.text) == ("agent_failed", False)
    assert (await world.task(task_id))["status"] == "completed"
