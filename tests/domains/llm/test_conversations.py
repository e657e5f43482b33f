"""Tasks of an `llm` agent that continue a session: what the model gets, what is kept, once, and how much is stored."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from aiohttp import web

from stentor.core.db import Sql
from stentor.domains.contents import store as contents
from stentor.domains.llm import providers
from stentor.domains.steps import store as step_store
from tests.conftest import World
from tests.domains.llm.conftest import Gate
from tests.domains.llm.test_tool_loop import Script, Site, agent_body, get, messages, steps
from tests.domains.llm.test_tool_loop import site as site
from tests.domains.llm.upstream import Upstream
from tests.patience import soon
from tests.requirements import requirement

SAY = {"type": "think", "required_capabilities": ["think"], "session": "s"}


@pytest.fixture
async def world(make_llm: Gate) -> World:
    made = await make_llm(SERVICE_OUTBOUND_ALLOW="127.0.0.1")
    await ok(made, "POST", "/sessions", {"id": "s"})
    return made


async def ok(world: World, method: str, path: str, body: Any = None, who: str = "ADMIN") -> Any:
    answer = await world.clients[who].request(method, f"/api/v1{path}", json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


async def talker(world: World, **options: Any) -> str:
    """Register an agent without tools, whose task is one call of the model."""
    return await world.register(**agent_body(**options) | {"sandbox_whitelist": dict[str, Any]()})


async def say(world: World, words: Any) -> dict[str, Any]:
    return await world.ended(await world.submit(**SAY, input=words))


async def items(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = await ok(world, "GET", f"/sessions/s/items?limit=1000&after={after}")
        found += page["items"]
        after = page["next_after"]
    return found


async def conversation(world: World) -> list[tuple[str, Any]]:
    return [(item["value"]["role"], item["value"]["content"]) for item in await items(world)]


@requirement("sessions.model")
async def test_a_task_continues_the_conversation_of_those_before_it(world: World, upstream: Upstream) -> None:
    await talker(world)
    Script(upstream, "Because of rivers.", "About 3.5 %.", "Yes.")
    task = await say(world, "Why is the sea salty?")
    assert task["metadata"] == {"session": "s", "limit": {"key": "session/s", "max": 1}}
    await say(world, {"text": "How much?"})
    await say(world, {"messages": [{"role": "user", "content": "Everywhere?"}]})
    expected = [
        ("user", "Why is the sea salty?"),
        ("assistant", "Because of rivers."),
        ("user", "How much?"),
        ("assistant", "About 3.5 %."),
        ("user", "Everywhere?"),
        ("assistant", "Yes."),
    ]
    assert await conversation(world) == expected
    assert [(m["role"], m["content"]) for m in messages(upstream)] == [("system", "Think."), *expected[:-1]]
    assert [item["task_id"] for item in await items(world)][:2] == [task["task_id"]] * 2


@requirement("sessions.model", "atp.headers-hidden-from-agents")
async def test_of_an_atp_message_only_the_body_is_part_of_it(world: World, upstream: Upstream) -> None:
    await talker(world)
    Script(upstream, "Hello.", "Bye.")
    head = "#Mode: direct\n#Context: secret\n#Priority: low\n#ActionType: execute\n#TargetZone: kernel\n\n"
    await say(world, head + "Hello")
    await say(world, "Bye")
    assert [message["content"] for message in messages(upstream)] == ["Think.", "Hello", "Hello.", "Bye"]
    assert (await conversation(world))[0] == ("user", "Hello")


@requirement("sessions.model")
async def test_calls_of_tools_and_their_results_are_part_of_it(world: World, upstream: Upstream, site: Site) -> None:
    await world.register(**agent_body(site))
    Script(upstream, get(site), "It is 42.", "As I said.")
    await say(world, "What is it?")
    asked = messages(upstream)
    await say(world, "Sure?")
    assert messages(upstream)[: len(asked)] == asked
    assert [role for role, _ in await conversation(world)] == [
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]
    call = (await items(world))[1]["value"]["tool_calls"][0]
    assert (call["type"], call["function"]["name"]) == ("function", "http_request")


@requirement("sessions.model", "execution.llm-tools")
async def test_the_reasoning_before_a_call_of_a_tool_goes_back_to_a_provider_that_wants_it(
    make_llm: Gate, upstream: Upstream, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "REASONING_HOSTS", ("127.0.0.1",))
    world = await make_llm(SERVICE_OUTBOUND_ALLOW="127.0.0.1")
    await ok(world, "POST", "/sessions", {"id": "s"})
    await world.register(**agent_body(site))
    upstream.reasoning = "Hm."
    Script(upstream, get(site), "It is 42.", "As I said.")
    for words, expected in (("What is it?", ["Hm."]), ("Sure?", ["Hm.", " "])):
        assert (await say(world, words))["status"] == "completed"
        assert [m["reasoning_content"] for m in messages(upstream) if m["role"] == "assistant"] == expected


@requirement("sessions.model")
async def test_what_programs_append_is_read_by_the_model(world: World, upstream: Upstream) -> None:
    await talker(world)
    Script(upstream, "Hello Ada.")
    said = [{"role": "user", "content": [{"type": "input_text", "text": "I am Ada."}]}]
    await ok(world, "POST", "/sessions/s/items", {"items": [{"value": value} for value in said]})
    await say(world, "Greet me.")
    assert [m["content"] for m in messages(upstream)] == ["Think.", "I am Ada.", "Greet me."]


@requirement("sessions.model")
@pytest.mark.parametrize("value", [7, {"role": [], "content": "x"}, {"role": "assistant", "tool_calls": 5}])
async def test_an_item_that_is_no_message_fails_the_task_and_says_so(
    world: World, upstream: Upstream, value: Any
) -> None:
    await talker(world)
    await ok(world, "POST", "/sessions/s/items", {"items": [{"value": value}]})
    task = await say(world, "Again.")
    assert task["error"]["code"] == "SESSION_UNREADABLE"
    assert "Item 1 of the session is not a message" in task["error"]["message"]


@requirement("sessions.once")
async def test_a_task_that_fails_adds_nothing_and_its_retry_adds_all_once(
    world: World, upstream: Upstream, site: Site
) -> None:
    await world.register(**agent_body(site))
    script = Script(upstream, get(site))
    task = await say(world, "What is it?")
    assert (task["error"]["code"], await items(world)) == ("PROVIDER_ERROR", [])
    script.turns.append("It is 42.")
    await ok(world, "POST", f"/tasks/{task['task_id']}/retry")
    assert (await world.ended(task["task_id"]))["status"] == "completed"
    assert [role for role, _ in await conversation(world)] == ["user", "assistant", "tool", "assistant"]
    assert len(site.requests) == 1


@requirement("sessions.once")
async def test_the_completion_and_the_items_are_one_commit(world: World, upstream: Upstream) -> None:
    await talker(world)
    script = Script(upstream, "lost", "kept")

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await script.answer(request)
        world.runlog.broken = True
        return response

    upstream.mood = answer
    task_id = await world.submit(**SAY, input="Hello")
    await soon(lambda: world.runlog.broken)
    await soon(lambda: not world.kernel.tasks.dispatcher.count_running())
    world.runlog.broken = False
    assert await items(world) == []
    upstream.mood = script.answer
    world.clock.advance(seconds=120)
    await world.kernel.tasks.reconciler.tick(0)
    task = await world.ended(task_id)
    assert (task["status"], task["attempts"]) == ("completed", 2), task
    assert await conversation(world) == [("user", "Hello"), ("assistant", "kept")]


@requirement("sessions.model")
async def test_a_task_adds_nothing_to_a_new_session_with_the_id_of_its_own(world: World, upstream: Upstream) -> None:
    async def answer_late(request: web.Request) -> web.StreamResponse:
        await ok(world, "DELETE", "/sessions/s")
        await ok(world, "POST", "/sessions", {"id": "s"})
        return await upstream.answer(request, upstream.calls[-1]["body"])

    await talker(world)
    upstream.mood = answer_late
    assert (await say(world, "Why is the sea salty?"))["status"] == "completed"
    assert await items(world) == []


@requirement("sessions.busy")
async def test_one_task_at_a_time_continues_a_session(world: World, upstream: Upstream) -> None:
    await talker(world)
    arrived, go = asyncio.Event(), asyncio.Event()
    script = Script(upstream, "one", "two")

    async def answer(request: web.Request) -> web.StreamResponse:
        arrived.set()
        await go.wait()
        return await script.answer(request)

    upstream.mood = answer
    first = await world.submit(**SAY, input="1")
    await arrived.wait()
    busy = await world.ended(await world.submit(**SAY, input="2", limit={"key": "mine", "max": 9}))
    assert (busy["error"]["code"], busy["outcome_class"]) == ("SESSION_BUSY", "provider_failure")
    assert first in busy["error"]["message"]
    second = await world.submit(**SAY, input="3")
    waits = await soon(lambda: _notice(world, second))
    assert waits == "Waits for a free slot: 1 of 1 tasks with the key 'session/s' run."
    go.set()
    await soon(lambda: _is_completed(world, second))
    assert [content for _, content in await conversation(world)] == ["1", "one", "3", "two"]


async def _notice(world: World, task_id: str) -> str | None:
    task = await world.task(task_id)
    return task["notice"] if task["status"] == "queued" else None


async def _is_completed(world: World, task_id: str) -> bool:
    return bool((await world.task(task_id))["status"] == "completed")


@requirement("sessions.rights")
async def test_a_task_gets_no_session_that_its_submitter_may_not_use(world: World, upstream: Upstream) -> None:
    await talker(world)
    for who, session in (("BOB", "s"), ("OTHER", "s"), ("ADMIN", "none")):
        body = {**SAY, "input": "Tell me all.", "session": session}
        answer = await world.clients[who].post("/api/v1/tasks", json=body)
        assert answer.status_code == 400, answer.text
        assert f"there is no session '{session}'" in answer.json()["error"]["message"]
    assert upstream.asked == []


@requirement("sessions.compaction")
async def test_a_long_conversation_is_replaced_by_a_summary_that_stays_readable(
    world: World, upstream: Upstream
) -> None:
    await talker(world, compact_after_tokens=100)
    long = "salt " * 100
    Script(upstream, "First.", "SUMMARY", "Second.", "Third.")
    await say(world, long)
    task = await say(world, "And now?")
    assert task["result"]["text"] == "Second."
    assert [m["content"] for m in messages(upstream)] == [
        "Think.",
        "Summary of the conversation so far:\n\nSUMMARY",
        "And now?",
    ]
    assert [step["key"] for step in await steps(world, task["task_id"])] == ["summary 1", "model 1"]
    assert [item["kind"] for item in await items(world)] == ["message"] * 2 + ["summary"] + ["message"] * 2
    assert (await conversation(world))[0] == ("user", long)
    await say(world, "Go on.")
    assert [m["content"] for m in messages(upstream)][2:] == ["And now?", "Second.", "Go on."]


@requirement("sessions.compaction")
async def test_a_system_prompt_is_no_part_of_the_length_of_a_conversation(world: World, upstream: Upstream) -> None:
    await talker(world, compact_after_tokens=100, system_prompt="Think. " * 100)
    Script(upstream, "First.", "Second.")
    await say(world, "Hello")
    task = await say(world, "And now?")
    assert task["result"]["text"] == "Second."
    assert [step["key"] for step in await steps(world, task["task_id"])] == ["model 1"]


@requirement("sessions.compaction")
async def test_a_recorded_summary_is_not_asked_for_again(world: World, upstream: Upstream, site: Site) -> None:
    site.words = "w" * 2_000
    await world.register(**agent_body(site, compact_after_tokens=200))
    script = Script(upstream, get(site), "SUMMARY")
    task = await say(world, "What is it?")
    assert task["error"]["code"] == "PROVIDER_ERROR"
    script.turns.append("It is 42.")
    asked = len(upstream.asked)
    await ok(world, "POST", f"/tasks/{task['task_id']}/retry")
    done = await world.ended(task["task_id"])
    assert (done["status"], len(upstream.asked) - asked) == ("completed", 1)
    assert [item["kind"] for item in await items(world)] == ["message"] * 3 + ["summary", "message"]
    assert len(messages(upstream)) == 2


@requirement("sessions.compaction")
async def test_what_a_model_writes_to_its_tools_counts_towards_the_length(
    world: World, upstream: Upstream, site: Site
) -> None:
    await world.register(**agent_body(site, compact_after_tokens=200))
    Script(upstream, get(site, method="POST", body="w" * 2_000), "SUMMARY", "It is 42.")
    task = await say(world, "Write it down.")
    keys = [step["key"] for step in await steps(world, task["task_id"])]
    assert keys == ["model 1", "model 1/tool 1", "summary 2", "model 2"]


@requirement("sessions.compaction", "sessions.once")
async def test_what_was_said_after_a_recorded_summary_is_not_hidden_by_it(world: World, upstream: Upstream) -> None:
    await talker(world, compact_after_tokens=100)
    script = Script(upstream, "First.", "SUMMARY")
    await say(world, "salt " * 100)
    task = await say(world, "And now?")
    assert task["error"]["code"] == "PROVIDER_ERROR"
    meanwhile = [{"value": {"role": "user", "content": "My name is Zoe."}}]
    await ok(world, "POST", "/sessions/s/items", {"items": meanwhile})
    script.turns += ["Second.", "SUMMARY 2", "Third."]
    await ok(world, "POST", f"/tasks/{task['task_id']}/retry")
    assert (await world.ended(task["task_id"]))["result"]["text"] == "Second."
    summary = "Summary of the conversation so far:\n\nSUMMARY"
    assert [m["content"] for m in messages(upstream)] == ["Think.", summary, "My name is Zoe.", "And now?"]
    assert [item["kind"] for item in await items(world)] == ["message"] * 5
    await say(world, "What is my name?")
    assert "My name is Zoe." in [m["content"] for m in upstream.asked[-2]["body"]["messages"]]
    assert [item["kind"] for item in await items(world)][5:] == ["summary", "message", "message"]


@requirement("sessions.compaction", "sessions.once")
async def test_a_loop_of_tools_goes_on_with_its_summary_and_not_with_what_others_said(
    world: World, upstream: Upstream, site: Site
) -> None:
    site.words = "w" * 2_000
    await world.register(**agent_body(site, compact_after_tokens=200))
    script = Script(upstream, get(site), "SUMMARY")
    task = await say(world, "What is it?")
    meanwhile = [{"value": {"role": "user", "content": "My name is Zoe."}}]
    await ok(world, "POST", "/sessions/s/items", {"items": meanwhile})
    script.turns.append("It is 42.")
    await ok(world, "POST", f"/tasks/{task['task_id']}/retry")
    assert (await world.ended(task["task_id"]))["result"]["text"] == "It is 42."
    summary = "Summary of the conversation so far:\n\nSUMMARY"
    assert [m["content"] for m in messages(upstream)] == ["Think.", "My name is Zoe.", summary]
    assert [item["kind"] for item in await items(world)] == ["message"] * 5


@requirement("sessions.compaction", "sessions.once")
@pytest.mark.parametrize("change", ["items", "clear", "pop"])
async def test_a_summary_is_not_added_to_a_session_that_was_changed_meanwhile(
    world: World, upstream: Upstream, change: str
) -> None:
    """It would hide what was appended, and bring back what was removed."""
    await talker(world, compact_after_tokens=100)
    script = Script(upstream, "First.", "SUMMARY", "Second.")
    bodies = {"items": {"items": [{"value": {"role": "user", "content": "My name is Zoe."}}]}, "clear": {"items": True}}

    async def answer(request: web.Request) -> web.StreamResponse:
        if script.turns == ["Second."]:
            await ok(world, "POST", f"/sessions/s/{change}", bodies.get(change))
        response = await script.answer(request)
        upstream.mood = answer
        return response

    upstream.mood = answer
    await say(world, "salt " * 100)
    await say(world, "And now?")
    left = {"items": ["First.", "My name is Zoe."], "clear": [], "pop": []}[change]
    said = [content for _, content in await conversation(world) if "salt" not in content]
    assert said == [*left, "And now?", "Second."]


@requirement("sessions.compaction")
@pytest.mark.parametrize(("limit", "limit_of_summary"), [(400, None), (16_000, 16_000)])
async def test_a_summary_is_not_cut_by_the_limits_of_answers(
    world: World, upstream: Upstream, limit: int, limit_of_summary: int | None
) -> None:
    """A high limit stays: it has room for reasoning, which a provider's own limit may not have."""
    await talker(world, compact_after_tokens=100, max_tokens=limit, stop=["\n\n"])
    Script(upstream, "First.", "SUMMARY", "Yes.")
    await say(world, "salt " * 100)
    await say(world, {"text": "Yes or no?", "options": {"max_tokens": 3}})
    summary, answer = (call["body"] for call in upstream.asked[-2:])
    assert (summary.get("max_tokens"), summary.get("stop")) == (limit_of_summary, None)
    assert (answer["max_tokens"], answer["stop"]) == (3, ["\n\n"])


@requirement("sessions.compaction")
@pytest.mark.parametrize("words", ["Zoe lives in", ""])
async def test_a_summary_that_was_cut_replaces_nothing(world: World, upstream: Upstream, words: str) -> None:
    """Neither half a text nor the reasoning after which there was no room for one."""
    await talker(world, compact_after_tokens=100)
    script = Script(upstream, "First.", words, "SUMMARY", "Second.")
    await say(world, "salt " * 100)
    upstream.reasoning, upstream.finish = "Who is Zoe?", "length"
    task = await say(world, "And now?")
    assert task["error"]["code"] == "SUMMARY_INCOMPLETE", task
    assert (len(script.turns), len(await items(world))) == (2, 2)
    upstream.reasoning, upstream.finish = "", "stop"
    await ok(world, "POST", f"/tasks/{task['task_id']}/retry")
    assert (await world.ended(task["task_id"]))["result"]["text"] == "Second."
    assert [item["kind"] for item in await items(world)][2] == "summary"


PAYLOAD = Sql(
    """select (select coalesce(sum(length(value)), 0) + coalesce(sum(length(value_hash)), 0) from task_steps)
    + (select coalesce(sum(length(content)) + sum(length(hash)), 0) from step_values)
    + (select coalesce(sum(length(value)), 0) + coalesce(sum(length(value_hash)), 0)
        + coalesce(sum(length(step_key)), 0) from session_items)
    + (select coalesce(sum(length(input)), 0) + coalesce(sum(length(result)), 0) from tasks)"""
)
CALLS = int(os.environ.get("CONVERSATION_CALLS", "60"))
"""1,000 is what docs/sessions.md gives the figure of."""


@requirement("sessions.bytes")
async def test_a_long_conversation_stores_each_message_once(
    world: World, upstream: Upstream, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journal, session, input and result together, in two tasks; the model gets the whole conversation each time.

    Without compression, behind which messages that are stored twice could hide.
    """
    for store in (contents, step_store):
        monkeypatch.setattr(store, "deflate", lambda content: None)
    await world.register(**agent_body(site, max_calls=1_000))
    numbers = iter(range(1, 10_000))
    for _ in range(2):
        turns = [get(site) for _ in range(CALLS // 2 - 1)]
        script = Script(upstream, *turns, "It is 42.")

        async def answer(request: web.Request, script: Script = script) -> web.StreamResponse:
            site.words = f"{next(numbers):06}" * 100
            response = await script.answer(request)
            upstream.mood = answer
            return response

        upstream.mood = answer
        task = await say(world, "What is it?")
        assert task["status"] == "completed", task
    said = [item["value"] for item in await items(world)]
    distinct = sum(len(value["content"] or "") + len(json.dumps(value.get("tool_calls", ""))) for value in said)
    stored = int((await world.kernel.infra.db.read(lambda tx: tx.rows(PAYLOAD)))[0][0])
    assert len(upstream.asked) == CALLS
    assert stored <= 1.2 * distinct, (stored, distinct)


@requirement("sessions.model", "tasks.rerun-from")
async def test_a_run_from_a_step_has_the_conversation_of_that_step(
    world: World, upstream: Upstream, site: Site
) -> None:
    await world.register(**agent_body(site, compact_after_tokens=200))
    Script(upstream, "First.", "SUMMARY", get(site), "It is 41.", "As I said.")
    await say(world, "salt " * 200)
    task = await say(world, "What is it?")
    asked = messages(upstream)
    await say(world, "Sure?")
    said = await conversation(world)
    for words in ("It is 42.", "It is 43."):
        Script(upstream, words)
        again = await ok(world, "POST", f"/tasks/{task['task_id']}/rerun", {"from_step": "model 2"})
        task = await world.ended(again["task_id"])
        assert messages(upstream) == asked
        report = await ok(world, "GET", f"/tasks/{task['task_id']}/replay")
        assert (task["result"]["text"], report["verdict"]) == (words, "same")
        said += [("user", "What is it?"), *said[4:6], ("assistant", words)]
        assert await conversation(world) == said
