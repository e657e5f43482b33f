"""Agents that are a model with tools: the loop, its journal, its limits, and what it does after a crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from aiohttp import web

from stentor.core.db import Sql
from stentor.domains.sandbox.broker.http_tool import HttpRequest
from tests.conftest import Service, World
from tests.domains.execution.test_costs_of_failures import learned_cost, metered_cost
from tests.domains.llm.conftest import Gate
from tests.domains.llm.upstream import Upstream
from tests.domains.steps.test_steps import begin_attempt
from tests.patience import PATIENCE_SECONDS, soon
from tests.requirements import requirement
from tests.service import SHORT_LEASE


@dataclass
class Site:
    """A server that counts what it gets; it answers with its `words`, or never while `silent`."""

    port: int = 0
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    words: str = "42"
    silent: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/answer"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path, request.headers.get("Idempotency-Key")))
        if self.silent:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(text=self.words)


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    site.port = runner.addresses[0][1]
    yield site
    await runner.cleanup()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as made:
        yield made


@pytest.fixture
async def world(make_llm: Gate) -> World:
    return await make_llm(SERVICE_OUTBOUND_ALLOW="127.0.0.1")


class Script:
    """What the model does, turn by turn: a dict calls tools, a text answers."""

    def __init__(self, upstream: Upstream, *turns: dict[str, Any] | list[dict[str, Any]] | str) -> None:
        self.upstream, self.turns = upstream, list(turns)
        upstream.mood = self.answer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = self.upstream.calls[-1]["body"]
        self.upstream.mood = None
        try:
            turn = self.turns.pop(0)
            calls = [turn] if isinstance(turn, dict) else turn if isinstance(turn, list) else []
            self.upstream.tool = calls[0] if calls else None
            self.upstream.more_tools = calls[1:]
            if isinstance(turn, str):
                self.upstream.words = [turn]
            return await self.upstream.answer(request, body)
        finally:
            self.upstream.mood = self.answer


def get(site: Site, **more: Any) -> dict[str, Any]:
    return {"name": "http_request", "args": {"url": site.url, **more}}


def agent_body(site: Site | None = None, **options: Any) -> dict[str, Any]:
    """An agent with the tools to read from and write to a site."""
    whitelist = {
        "tools": [
            {"name": "http_request", "operations": ["get", "post"]},
            {"name": "read_file", "operations": ["read"]},
        ],
        "network": {"allowlist": ["127.0.0.1"], "ports": [site.port] if site else [443]},
    }
    runtime = {"kind": "llm", "options": {"model": "openai/sea-large", "system_prompt": "Think.", **options}}
    return {"name": "thinker", "capabilities": ["think"], "runtime": runtime, "sandbox_whitelist": whitelist}


async def thinker(world: World, site: Site | None = None, **options: Any) -> str:
    return await world.register(**agent_body(site, **options))


async def think(world: World, **fields: Any) -> dict[str, Any]:
    body = {"type": "think", "input": "What is it?", "required_capabilities": ["think"]} | fields
    return await world.ended(await world.submit(**body))


async def steps(world: World, task_id: str) -> list[dict[str, Any]]:
    answer = await world.admin.get(f"/api/v1/tasks/{task_id}/steps", params={"limit": 1000})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["steps"])


def messages(upstream: Upstream) -> list[dict[str, Any]]:
    return list(upstream.asked[-1]["body"]["messages"])


@requirement("execution.llm-tools")
async def test_a_model_calls_its_tools_and_answers_with_what_it_learned(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    Script(upstream, get(site), "It is 42.")
    task = await think(world)
    assert task["status"] == "completed", task
    result = task["result"]
    assert (result["text"], result["model_calls"], result["tool_calls"]) == ("It is 42.", 2, 1)
    assert result["usage"] == {"input_tokens": 22, "output_tokens": 14}
    assert site.requests == [("GET", "/answer", None)]
    first = upstream.asked[0]["body"]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["http_request", "read_file"]
    assert first["tools"][0]["function"]["parameters"]["required"] == ["url"]
    said = messages(upstream)
    assert [message["role"] for message in said] == ["system", "user", "assistant", "tool"]
    assert json.loads(said[-1]["content"])["body"] == "42"
    assert said[-1]["tool_call_id"] == said[-2]["tool_calls"][0]["id"]
    events = await world.events(task["task_id"])
    kinds = [event["event_type"] for event in events]
    assert kinds.count("llm_called") == 2
    assert kinds.count("tool_called") == 1
    assert [(s["key"], s["name"], s["kind"]) for s in await steps(world, task["task_id"])] == [
        ("model 1", "model 1", "step"),
        ("model 1/tool 1", "http_request", "step"),
        ("model 2", "model 2", "step"),
    ]


@requirement("execution.llm-tools")
async def test_several_calls_of_one_turn_are_made_in_their_order(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site)
    Script(upstream, [get(site), get(site, method="POST", body="x")], "Done.")
    task = await think(world)
    assert task["status"] == "completed", task
    (_, _, key) = site.requests[1]
    assert [request[0] for request in site.requests] == ["GET", "POST"]
    effect = (await steps(world, task["task_id"]))[2]
    assert (effect["kind"], effect["provenance_id"]) == ("effect", key)


@requirement("execution.llm-tools")
async def test_what_is_wrong_with_a_call_is_told_to_the_model(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site)
    file = {"name": "read_file", "args": {"path": "notes.md"}}
    Script(upstream, file, {"name": "http_request", "args": {"link": "x"}}, "I give up.")
    task = await think(world)
    assert task["result"]["text"] == "I give up."
    told = [json.loads(m["content"])["error"]["message"] for m in messages(upstream) if m["role"] == "tool"]
    assert "may not touch 'notes.md'" in told[0]
    assert "invalid" in told[1]


@requirement("execution.llm-tools", "sandbox.third-violation-ends-run")
async def test_a_model_that_goes_beyond_its_tools_is_quarantined(world: World, upstream: Upstream, site: Site) -> None:
    agent_id = await thinker(world, site)
    beyond = {"name": "write_file", "args": {"path": "/etc/passwd", "content": "x"}}
    Script(upstream, beyond, beyond, beyond, "Never said.")
    task = await think(world)
    assert (task["status"], task["error"]["code"]) == ("failed", "AGENT_QUARANTINED")
    agent = (await world.admin.get(f"/api/v1/registry/agents/{agent_id}")).json()
    assert agent["status"] == "quarantined"
    assert len(upstream.asked) == 3


@requirement("execution.llm-limits", "execution.metered-cost")
@pytest.mark.parametrize(
    ("options", "calls", "reached"),
    [
        ({"max_calls": 3}, 3, "max_calls"),
        ({"max_total_tokens": 30}, 2, "max_total_tokens"),
        ({"max_cost_usd": 0.05}, 2, "max_cost_usd"),
    ],
)
async def test_an_agent_stops_at_its_limits(
    make_llm: Gate, upstream: Upstream, site: Site, options: dict[str, Any], calls: int, reached: str
) -> None:
    world = await make_llm(SERVICE_OUTBOUND_ALLOW="127.0.0.1", SERVICE_LLM_PRICES="openai/*=1000/2000")
    await thinker(world, site, **options)
    Script(upstream, *(get(site) for _ in range(10)))
    task = await think(world)
    assert (task["status"], task["error"]["code"]) == ("failed", "LIMIT_REACHED")
    assert reached in task["error"]["message"]
    assert len(upstream.asked) == calls
    # What the calls cost counts against the agent, although it has no answer.
    assert await learned_cost(world, task["assigned_agent"]) == pytest.approx(
        await metered_cost(world, task["task_id"])
    )


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@requirement("execution.llm-schema")
async def test_an_answer_that_does_not_match_the_schema_is_asked_for_again(world: World, upstream: Upstream) -> None:
    await thinker(world, output_schema=SCHEMA)
    Script(upstream, '{"n": "many"}', '```json\n{"n": 42}\n```')
    task = await think(world)
    assert (task["status"], task["result"]["output"]) == ("completed", {"n": 42})
    assert upstream.asked[0]["body"]["response_format"]["json_schema"]["schema"] == SCHEMA
    assert "$.n: 'many' is not of type 'integer'" in messages(upstream)[-1]["content"]


@requirement("execution.llm-schema")
async def test_an_answer_that_never_matches_fails_with_what_is_wrong(world: World, upstream: Upstream) -> None:
    await thinker(world, output_schema=SCHEMA)
    Script(upstream, "I would rather not.", "[]", '{"n": 1, "m": 2}', '{"n": 1}')
    task = await think(world)
    assert (task["status"], task["error"]["code"]) == ("failed", "ANSWER_INVALID")
    assert "Additional properties are not allowed" in task["error"]["message"]
    assert len(upstream.asked) == 3
    told = upstream.asked[1]["body"]["messages"][-1]["content"]
    assert told.startswith("This answer does not match the schema: It is not valid JSON: ")


@requirement("execution.llm-schema")
async def test_a_key_with_nul_in_an_answer_that_does_not_match_is_named_in_the_failure(
    world: World, upstream: Upstream
) -> None:
    await thinker(world, output_schema={"additionalProperties": {"type": "integer"}})
    Script(upstream, *[r'{"k\u0000y": "many"}'] * 3)
    task = await think(world)
    assert (task["status"], task["error"]["code"], len(upstream.asked)) == ("failed", "ANSWER_INVALID", 3)
    assert "k\ufffdy" in task["error"]["message"]


@requirement("execution.llm-schema")
async def test_a_retry_asks_again_for_an_answer_that_matches(world: World, upstream: Upstream) -> None:
    await thinker(world, output_schema=SCHEMA)
    Script(upstream, "no", "no", "no", '{"n": 1}')
    task = await think(world)
    assert task["error"]["code"] == "ANSWER_INVALID"
    assert (await world.admin.post(f"/api/v1/tasks/{task['task_id']}/retry")).status_code == 202
    done = await world.ended(task["task_id"])
    assert (done["status"], done["result"]["output"], len(upstream.asked)) == ("completed", {"n": 1}, 4), done


@requirement("execution.llm-schema")
async def test_a_schema_that_cannot_be_applied_costs_one_call(world: World, upstream: Upstream) -> None:
    await thinker(world, output_schema={"$ref": "#"})
    Script(upstream, "1", "2", "3")
    task = await think(world)
    assert (task["error"]["code"], len(upstream.asked)) == ("AGENT_MISCONFIGURED", 1)


@requirement("execution.llm-limits")
async def test_a_limit_of_cost_needs_a_price(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site, max_cost_usd=0.01)
    Script(upstream, *(get(site) for _ in range(5)))
    task = await think(world)
    assert (task["error"]["code"], len(upstream.asked)) == ("PRICE_UNKNOWN", 1)


@requirement("execution.llm-tools")
async def test_a_reply_calls_a_hundred_tools_at_most(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site)
    Script(upstream, [get(site)] * 130, "Done.")
    task = await think(world)
    assert (task["status"], len(site.requests)) == ("completed", 100)
    assert "call the others later" in messages(upstream)[-1]["content"]


@requirement("execution.llm-tools")
@pytest.mark.parametrize(
    "call", [{"name": "a\0b", "args": {}}, {"name": "http_request", "args": {"url": "http://127.0.0.1\0/"}}]
)
async def test_a_call_with_nul_is_told_to_the_model(world: World, upstream: Upstream, call: dict[str, Any]) -> None:
    await thinker(world)
    Script(upstream, call, "Never mind.")
    task = await think(world)
    assert task["status"] == "completed", task
    assert "error" in json.loads(messages(upstream)[-1]["content"])


@requirement("execution.llm-resume")
async def test_an_outage_of_the_store_ends_the_attempt_and_not_the_task(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    script = Script(upstream, get(site), "It is 42.")

    async def answer(request: web.Request) -> web.StreamResponse:
        world.runlog.broken = len(script.turns) == 1 and len(upstream.asked) == 2
        response = await script.answer(request)
        upstream.mood = answer
        return response

    upstream.mood = answer
    task_id = await world.submit(type="think", input="What is it?", required_capabilities=["think"])
    await soon(lambda: world.runlog.broken)
    await soon(lambda: not world.kernel.tasks.dispatcher.count_running())
    world.runlog.broken = False
    assert (await world.task(task_id))["status"] == "executing"
    script.turns.append("It is 42.")
    world.clock.advance(seconds=120)
    await world.kernel.tasks.reconciler.tick(0)
    task = await world.ended(task_id)
    assert (task["status"], task["attempts"], len(site.requests)) == ("completed", 2, 1), task


@requirement("execution.llm-schema")
@pytest.mark.parametrize(
    "schema",
    [{"type": "text"}, {"$ref": "http://127.0.0.1:1/secret"}, {"properties": {"a": {"$ref": "file:///etc/passwd"}}}],
)
async def test_what_is_no_schema_is_refused_at_the_registration(world: World, schema: dict[str, Any]) -> None:
    runtime = {"kind": "llm", "options": {"output_schema": schema}}
    body = {"name": "x", "capabilities": ["x"], "runtime": runtime}
    answer = await world.admin.post("/api/v1/registry/agents", json=body)
    assert answer.status_code == 400
    assert "output_schema" in answer.text


@requirement("execution.llm-resume")
async def test_a_killed_service_goes_on_where_it_was(
    serve: Callable[..., Service], upstream: Upstream, site: Site
) -> None:
    environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": upstream.v1, "SERVICE_OUTBOUND_ALLOW": "127.0.0.1"}
    environ |= SHORT_LEASE
    service = await asyncio.to_thread(lambda: serve(**environ))
    script = Script(upstream, get(site, method="POST"), get(site), "It is 42.")
    arrived = asyncio.Event()

    async def halt_at_the_third(request: web.Request) -> web.StreamResponse:
        if len(script.turns) == 1:
            arrived.set()
            await asyncio.sleep(3600)
        response = await script.answer(request)
        upstream.mood = halt_at_the_third
        return response

    async with httpx.AsyncClient(base_url=service.address, headers={"X-API-Key": service.key}) as api:
        (await api.post("/api/v1/registry/agents", json=agent_body(site))).raise_for_status()
        upstream.mood = halt_at_the_third  # only now: a registration asks for the list of models
        body = {"type": "think", "input": "What is it?", "required_capabilities": ["think"]}
        task_id = (await api.post("/api/v1/tasks", json=body)).json()["task_id"]
    await asyncio.wait_for(arrived.wait(), PATIENCE_SECONDS)
    service.kill()
    upstream.mood = script.answer
    again = await asyncio.to_thread(lambda: serve(service.data_dir, **environ))
    async with httpx.AsyncClient(base_url=again.address, headers={"X-API-Key": again.key}) as api:

        async def ended() -> Any:
            task = (await api.get(f"/api/v1/tasks/{task_id}")).json()
            return task if task["status"] in ("completed", "failed") else None

        task = await soon(ended)
    assert (task["status"], task["attempts"]) == ("completed", 2), task
    assert (task["result"]["model_calls"], task["result"]["tool_calls"]) == (3, 2)
    assert [request[0] for request in site.requests] == ["POST", "GET"]
    # Three replies, and the third was asked for twice: the first time it did not arrive.
    assert len(upstream.asked) == 4


@requirement("execution.llm-resume")
async def test_a_call_that_may_have_had_its_effect_is_not_repeated(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    site.silent = True
    Script(upstream, get(site, method="POST"), "Paid.")
    task = await think(world)
    assert (task["status"], task["error"]["code"]) == ("failed", "EFFECT_UNKNOWN")
    assert task["error"]["message"].startswith("The request failed (")
    (held,) = (await world.admin.get("/api/v1/decisions")).json()["steps"]
    sent = len(site.requests)
    path = f"/api/v1/tasks/{task['task_id']}"
    # A retry alone does not send it again.
    assert (await world.admin.post(f"{path}/retry")).status_code == 202
    again = await world.ended(task["task_id"])
    assert (again["error"]["code"], len(site.requests)) == ("EFFECT_UNKNOWN", sent)
    body = {"happened": True, "value": {"status": 200}, "reason": "The bank says so."}
    answer = await world.admin.post(
        f"{path}/steps/{held['key'].replace('/', '%2F').replace(' ', '%20')}/resolve", json=body
    )
    assert answer.status_code == 200, answer.text
    assert (await world.admin.post(f"{path}/retry")).status_code == 202
    done = await world.ended(task["task_id"])
    assert (done["status"], done["result"]["text"]) == ("completed", "Paid.")
    assert len(site.requests) == sent
    assert json.loads(messages(upstream)[-1]["content"]) == {"status": 200}


@requirement("execution.llm-resume")
async def test_a_call_of_a_tool_that_has_changed_since_is_not_taken_for_answered(
    world: World, upstream: Upstream, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await thinker(world, site)
    site.silent = True
    Script(upstream, get(site, method="POST"), "Paid.")
    task = await think(world)
    assert task["error"]["code"] == "EFFECT_UNKNOWN"
    monkeypatch.setattr(HttpRequest, "is_repeatable", lambda *args: True)
    assert (await world.admin.post(f"/api/v1/tasks/{task['task_id']}/retry")).status_code == 202
    again = await world.ended(task["task_id"])
    assert (again["status"], again["error"]["code"]) == ("failed", "EFFECT_UNKNOWN")


@requirement("execution.llm-resume")
async def test_a_call_that_was_answered_with_a_too_long_body_is_known_to_have_been_answered(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    site.words = "x" * ((1 << 20) + 1)
    Script(upstream, [get(site, method="POST"), get(site)], "Done.")
    task = await think(world)
    assert (task["status"], task["result"]["text"]) == ("completed", "Done."), task
    posted, read = (json.loads(message["content"]) for message in messages(upstream)[-2:])
    assert (posted["status"], posted["body"], "has answered" in posted["notice"]) == (200, "", True)
    assert read == {"error": {"code": "TOOL_FAILED", "message": "The response is larger than 1048576 bytes."}}


@requirement("execution.llm-resume")
async def test_a_long_run_stores_each_message_once(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site, max_calls=200)
    site.words = "word " * 1_000
    Script(upstream, *(get(site) for _ in range(100)), "Done.")
    task = await think(world)
    assert task["status"] == "completed", task
    rows = await world.kernel.infra.db.read(lambda tx: tx.row(Sql("select sum(size), count(*) from task_steps")) or ())
    assert rows[1] == 201
    distinct = 100 * len(site.words)
    assert rows[0] < 1.2 * distinct


@requirement("tasks.rerun-from")
async def test_a_run_goes_on_from_a_step_with_another_model(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site)
    Script(upstream, get(site, method="POST"), "It is 41.", "It is 42.")
    first = await think(world)
    other = await world.register(
        **agent_body(site) | {"name": "other", "runtime": {"kind": "llm", "options": {"model": "openai/sea-small"}}}
    )
    path = f"/api/v1/tasks/{first['task_id']}/rerun"
    answer = await world.admin.post(path, json={"from_step": "model 2", "agent_preference": other})
    assert answer.status_code == 202, answer.text
    second = await world.ended(answer.json()["task_id"])
    assert (second["status"], second["result"]["text"]) == ("completed", "It is 42."), second
    assert [call["body"]["model"] for call in upstream.asked] == ["sea-large", "sea-large", "sea-small"]
    assert len(site.requests) == 1, "the request was not sent again"
    assert second["result"]["usage"] == {"input_tokens": 11, "output_tokens": 7}, "the first two were paid for before"
    assert [step["key"] for step in await steps(world, second["task_id"])] == ["model 1", "model 1/tool 1", "model 2"]


async def run_again(world: World, task_id: str, key: str, **more: Any) -> httpx.Response:
    return await world.admin.post(f"/api/v1/tasks/{task_id}/rerun", json={"from_step": key, **more})


@requirement("tasks.rerun-from")
async def test_a_reply_that_is_asked_for_again_gets_none_of_the_outcomes_of_the_calls_before(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    Script(upstream, get(site), "It is 42.", get(site, url=f"{site.url}/b"), "It is 43.")
    first = await think(world)
    second = await world.ended((await run_again(world, first["task_id"], "model 1")).json()["task_id"])
    assert (second["status"], second["result"]["text"]) == ("completed", "It is 43."), second
    assert [path for _, path, _ in site.requests] == ["/answer", "/answer/b"]


@requirement("tasks.rerun-from")
async def test_a_run_goes_on_from_a_call_after_its_reply_and_the_calls_before_it(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    calls = [get(site, method="POST", url=f"{site.url}/{letter}") for letter in "abc"]
    Script(upstream, calls, "It is 42.", "It is 43.")
    first = await think(world)
    second = await world.ended((await run_again(world, first["task_id"], "model 1/tool 2")).json()["task_id"])
    assert (second["status"], second["result"]["text"]) == ("completed", "It is 43."), second
    assert [path[-1] for _, path, _ in site.requests] == ["a", "b", "c", "b", "c"]
    assert len(upstream.asked) == 3, "the reply with the calls was not asked for again"


@requirement("tasks.rerun-from")
async def test_a_reply_of_which_a_call_had_its_effect_is_not_asked_for_again(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    Script(upstream, [get(site, method="POST"), get(site)], "It is 42.")
    first = await think(world)
    answer = await run_again(world, first["task_id"], "model 1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT"), answer.text
    assert "from 'model 1/tool 1'" in answer.json()["error"]["message"]


@requirement("tasks.rerun-from")
async def test_a_call_gets_no_outcome_that_another_program_recorded_in_its_place(
    world: World, upstream: Upstream, site: Site
) -> None:
    first = await begin_attempt(world, capabilities=["think"], task={"required_capabilities": ["think"]})
    await first.begin("model 1/tool 1")
    await first.step("model 1/tool 1", {"result": "paid"}, kind="effect")
    await first.step("model 1", 1)
    await first.fail()
    other = await thinker(world, site)
    Script(upstream, get(site, method="POST"), "It is 42.")
    answer = await run_again(world, first.task_id, "model 1", agent_preference=other)
    second = await world.ended(answer.json()["task_id"])
    assert (second["status"], second["error"]["code"]) == ("failed", "STEP_MISMATCH"), second
    assert site.requests == []


async def test_an_agent_without_tools_has_no_journal(world: World, upstream: Upstream) -> None:
    runtime = {"kind": "llm", "options": {"model": "openai/sea-large"}}
    await world.register("thinker", capabilities=["think"], runtime=runtime)
    task = await think(world)
    assert set(task["result"]) == {"text", "model", "usage", "finish_reason"}
    assert await steps(world, task["task_id"]) == []
