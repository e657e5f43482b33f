"""Requests in OpenAI's format that continue a session: what the model gets, what is kept, and who may."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from stentor.domains.llm import providers
from tests.conftest import World
from tests.domains.llm.conftest import Gate
from tests.domains.llm.test_conversations import conversation, ok
from tests.domains.llm.test_tool_loop import Script, agent_body, messages
from tests.domains.llm.upstream import Upstream
from tests.requirements import requirement

MODEL = "openai/sea-large"


@pytest.fixture
async def world(make_llm: Gate) -> World:
    made = await make_llm()
    await ok(made, "POST", "/sessions", {"id": "s"})
    return made


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def post(
    world: World, *said: dict[str, Any], who: str = "ADMIN", path: str = "chat/completions", **options: Any
) -> Any:
    headers = options.pop("headers", {})
    body = {"model": MODEL, ("input" if path == "responses" else "messages"): list(said), **options}
    return await world.clients[who].post(f"/v1/{path}", json=body, headers=headers)


async def ask(world: World, *said: dict[str, Any], **options: Any) -> dict[str, Any]:
    answer = await post(world, *said, **{"conversation": "s", **options})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@requirement("llm.sessions")
async def test_a_request_continues_the_conversation_and_adds_to_it(world: World, upstream: Upstream) -> None:
    Script(upstream, "Because of rivers.", "About 3.5 %.", "Yes.")
    await ask(world, {"role": "system", "content": "Be brief."}, user("Why is the sea salty?"))
    await ask(world, user("How much?"), conversation=None, headers={"X-Session-Id": "s"})
    await ask(world, user("Everywhere?"), conversation={"id": "s"}, path="responses", instructions="Be brief.")
    expected = [
        ("user", "Why is the sea salty?"),
        ("assistant", "Because of rivers."),
        ("user", "How much?"),
        ("assistant", "About 3.5 %."),
        ("user", "Everywhere?"),
        ("assistant", "Yes."),
    ]
    assert await conversation(world) == expected, "what the caller says as system is not kept"
    assert [(m["role"], m["content"]) for m in messages(upstream)] == [("system", "Be brief."), *expected[:-1]]


@requirement("llm.sessions")
async def test_calls_of_tools_and_their_results_are_kept(world: World, upstream: Upstream) -> None:
    Script(upstream, {"name": "look", "args": {"n": 1}}, "It is 7.")
    called = (await ask(world, user("Look.")))["choices"][0]["message"]["tool_calls"][0]
    await ask(world, {"role": "tool", "tool_call_id": called["id"], "content": "7"})
    assert [role for role, _ in await conversation(world)] == ["user", "assistant", "tool", "assistant"]
    sent = messages(upstream)
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == called["id"]


@requirement("llm.sessions", "llm.responses-tools")
async def test_a_response_continues_after_a_call_with_nothing_but_its_output(world: World, upstream: Upstream) -> None:
    Script(upstream, {"name": "look", "args": {"n": 1}}, "It is 7.")
    called = (await ask(world, user("Look."), path="responses"))["output"][0]
    output = {"type": "function_call_output", "call_id": called["call_id"], "output": "7"}
    await ask(world, output, path="responses")
    assert [role for role, _ in await conversation(world)] == ["user", "assistant", "tool", "assistant"]
    sent = messages(upstream)
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == called["call_id"]


@requirement("llm.sessions")
async def test_an_agent_gets_the_texts_of_a_conversation_that_has_calls_of_tools(
    world: World, upstream: Upstream
) -> None:
    await world.register(**agent_body() | {"sandbox_whitelist": dict[str, Any]()})
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [
        user("Look."),
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
        {"role": "assistant", "content": None, "tool_calls": [call | {"id": "d"}]},
        {"role": "tool", "tool_call_id": "d", "content": "7"},
        {"role": "assistant", "content": "It is 7."},
    ]
    await ok(world, "POST", "/sessions/s/items", {"items": [{"value": value} for value in said]})
    Script(upstream, "Yes.")
    await ask(world, user("Sure?"), model="agent:think")
    sent = [(m["role"], m["content"], "tool_calls" in m) for m in messages(upstream) if m["role"] != "system"]
    texts = ("user", "Look."), ("assistant", "Let me see."), ("assistant", "It is 7."), ("user", "Sure?")
    assert sent == [(*text, False) for text in texts]
    assert (await conversation(world))[len(said) :] == [("user", "Sure?"), ("assistant", "Yes.")]


@requirement("llm.sessions")
async def test_the_reasoning_before_a_call_of_a_tool_is_kept_with_it(
    make_llm: Gate, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "REASONING_HOSTS", ("127.0.0.1",))
    world = await make_llm()
    await ok(world, "POST", "/sessions", {"id": "s"})
    upstream.reasoning = "Hm."
    Script(upstream, {"name": "look", "args": {"n": 1}}, "It is 7.", "Yes.")
    called = (await ask(world, user("Look.")))["choices"][0]["message"]["tool_calls"][0]
    await ask(world, {"role": "tool", "tool_call_id": called["id"], "content": "7"})
    await ask(world, user("Sure?"))
    assert [m["reasoning_content"] for m in messages(upstream) if m["role"] == "assistant"] == ["Hm.", " "]


async def break_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "tw"}}]}\n\n')
    assert request.transport is not None
    request.transport.close()
    return response


@requirement("llm.sessions")
async def test_a_stream_is_kept_when_it_is_complete_and_not_before(world: World, upstream: Upstream) -> None:
    Script(upstream, "one", "two")
    answer = await post(world, user("1"), conversation="s", stream=True)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert await conversation(world) == [("user", "1"), ("assistant", "one")]
    upstream.mood = break_off
    broken = await post(world, user("2"), conversation="s", stream=True)
    assert "[DONE]" not in broken.text
    assert await conversation(world) == [("user", "1"), ("assistant", "one")]


@requirement("llm.sessions")
async def test_a_request_that_fails_or_is_wrong_adds_nothing_and_costs_nothing(
    world: World, upstream: Upstream
) -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
    wrong: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (404, "not_found", {"conversation": "nowhere"}),
        (400, "invalid_request", {"conversation": ""}),
        (400, "invalid_request", {"conversation": "s", "headers": {"X-Session-Id": "t"}}),
        (400, "invalid_request", {"headers": {"X-Session-Id": "x" * 256}}),
    )
    for status, code, options in wrong:
        answer = await post(world, user("Hello"), **options)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    refused = await post(world, image, conversation="s")
    assert (refused.status_code, "a session keeps texts only" in refused.text) == (400, True)
    await ok(world, "POST", "/sessions", {"id": "odd"})
    await ok(world, "POST", "/sessions/odd/items", {"items": [{"value": 3}]})
    unreadable = await post(world, user("Hello"), conversation="odd")
    assert (unreadable.status_code, "is not a message for a model" in unreadable.text) == (400, True)
    assert upstream.asked == []
    assert await conversation(world) == []


@requirement("llm.sessions")
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_a_session_of_opencode_itself_is_not_one_of_stentor(world: World, upstream: Upstream, path: str) -> None:
    Script(upstream, "one")
    headers = {"X-Session-Id": "ses_dd1fa1af9ffe", "X-Session-Affinity": "ses_dd1fa1af9ffe"}
    text = {"input": "1"} if path == "responses" else {"messages": [user("1")]}
    answer = await world.admin.post(f"/v1/{path}", json={"model": MODEL, **text}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert await conversation(world) == []


@requirement("llm.sessions")
async def test_of_two_answers_to_the_same_conversation_one_is_kept(world: World, upstream: Upstream) -> None:
    async def change() -> None:
        await ok(world, "POST", "/sessions/s/items", {"items": [{"value": user("meanwhile")}]})

    async def answer_late(request: web.Request) -> web.StreamResponse:
        await change()
        return await upstream.answer(request, upstream.calls[-1]["body"])

    upstream.mood = answer_late
    answer = await post(world, user("Hello"), conversation="s")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert answer.headers["X-Should-Retry"] == "false", "OpenAI's clients would pay the model for two more answers"
    assert await conversation(world) == [("user", "meanwhile")]


@requirement("llm.sessions")
@pytest.mark.parametrize(("how", "body"), [("pop", None), ("clear", {"items": True})])
async def test_an_answer_is_not_added_to_a_conversation_that_was_shortened(
    world: World, upstream: Upstream, how: str, body: dict[str, Any] | None
) -> None:
    Script(upstream, "Hello.")
    await ask(world, user("Hello"))

    async def answer_late(request: web.Request) -> web.StreamResponse:
        await ok(world, "POST", f"/sessions/s/{how}", body)
        return await upstream.answer(request, upstream.calls[-1]["body"])

    upstream.mood = answer_late
    answer = await post(world, user("And now?"), conversation="s")
    assert answer.status_code == 409, answer.text
    assert await conversation(world) in ([("user", "Hello")], [])


@requirement("llm.sessions")
async def test_values_that_change_meanwhile_do_not_lose_an_answer(world: World, upstream: Upstream) -> None:
    async def answer_late(request: web.Request) -> web.StreamResponse:
        await ok(world, "PUT", "/sessions/s/values", {"values": {"a": 1}})
        return await upstream.answer(request, upstream.calls[-1]["body"])

    upstream.mood = answer_late
    await ask(world, user("Hello"))
    assert len(await conversation(world)) == 2


async def task_of_session(world: World) -> tuple[str, dict[str, str]]:
    """Register an agent of the key bob, and let it claim a task of the session; return the task, and its header."""
    agent = await world.register("bob", key_name="bob")
    task_id = await world.submit(session="s")
    claimed = await world.clients["BOB"].post(f"/api/v1/agents/{agent}/claims", json={})
    assert [task["task_id"] for task in claimed.json()["tasks"]] == [task_id], claimed.text
    return task_id, {"X-Task-Id": task_id}


@requirement("sessions.own-task", "llm.sessions")
async def test_a_worker_uses_the_session_of_its_task_while_it_has_it_and_no_other_one(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm()
    for session in ("s", "other"):
        await ok(world, "POST", "/sessions", {"id": session})
    await ok(world, "POST", "/sessions/s/items", {"items": [{"value": user("My name is Eve.")}]})
    await world.register("other", capabilities=["other"], key_name="proposer")

    async def status(who: str, method: str, path: str, **options: Any) -> int:
        return int((await world.clients[who].request(method, f"/api/v1/sessions/{path}", **options)).status_code)

    one = {"items": [{"value": user("noted")}]}
    assert await status("BOB", "GET", "s/items") == 404, "it has no task of the session yet"
    task_id, header = await task_of_session(world)
    assert await status("BOB", "GET", "s/items") == 200
    assert await status("BOB", "POST", "s/items", json=one) == 200
    assert await status("BOB", "GET", "other/items") == 404
    for verb in ("pop", "clear"):
        assert await status("BOB", "POST", f"s/{verb}", json={"items": True}) == 404
    assert await status("PROPOSER", "GET", "s/items") == 404
    assert await status("PROPOSER", "POST", "s/items", json=one) == 404
    Script(upstream, "Eve.")
    for headers in ({}, header):
        stranger = await post(world, user("Who am I?"), who="PROPOSER", conversation="s", headers=headers)
        assert stranger.status_code in (403, 404), stranger.text
    busy = await post(world, user("Who am I?"), conversation="s")
    assert (busy.status_code, task_id in busy.text) == (409, True)
    assert upstream.asked == []
    answer = await post(world, user("Who am I?"), who="BOB", conversation="s", headers=header)
    assert answer.json()["choices"][0]["message"]["content"] == "Eve."
    assert [text for _, text in await conversation(world)] == ["My name is Eve.", "noted", "Who am I?", "Eve."]
    done = await world.clients["BOB"].post(f"/api/v1/tasks/{task_id}/complete", json={"epoch": 1, "result": 1})
    assert done.status_code == 200
    assert await status("BOB", "GET", "s/items") == 404
    assert (await post(world, user("And now?"), who="BOB", conversation="s")).status_code == 404
    assert json.loads(done.content)["status"] == "completed"
