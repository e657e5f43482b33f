"""Spans of attempts and steps: one trace for all attempts of a task, what is in it, and nothing without a collector."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from stentor.core.db import Sql, Tx
from tests.conftest import World
from tests.domains.endpoint import answering
from tests.domains.endpoint import serving as serving_agent
from tests.domains.llm.conftest import Gate, asking
from tests.domains.llm.test_tool_loop import Script, Site, get, think, thinker
from tests.domains.llm.test_tool_loop import site as site
from tests.domains.llm.upstream import Upstream
from tests.domains.steps.test_steps import Attempt, begin_attempt, retry
from tests.requirements import requirement

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.domains.llm.test_spans import COLLECTOR, HERE, PARENT, TRACE, facts
from tests.domains.llm.test_spans import memory as memory


@pytest.fixture
async def traced(make_llm: Gate, memory: InMemorySpanExporter) -> World:
    return await make_llm(OTEL_EXPORTER_OTLP_ENDPOINT=COLLECTOR, SERVICE_OUTBOUND_ALLOW="127.0.0.1")


async def sent(world: World, memory: InMemorySpanExporter) -> list[ReadableSpan]:
    """All spans, in the order in which they ended."""
    await world.kernel.llm.gateway.close()
    return list(memory.get_finished_spans())


def brief(span: ReadableSpan) -> tuple[str, Any, Any]:
    """Name, state and error of a span."""
    found = facts(span)
    return span.name, found.get("stentor.attempt.state", found.get("stentor.step.state")), found.get("error.type")


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def traces(spans: list[ReadableSpan]) -> set[int]:
    return {span.context.trace_id for span in spans if span.context is not None}


async def release(attempt: Attempt) -> None:
    """Let the lease expire."""
    attempt.world.clock.advance(seconds=31)
    await attempt.world.kernel.tasks.reconciler.tick(1)


async def reclaim(attempt: Attempt) -> Attempt:
    """Let the lease expire, and claim the task again."""
    await release(attempt)
    world = attempt.world
    agent = (await world.task(attempt.task_id))["assigned_agent"]
    return Attempt(world, attempt.task_id, (await world.claim(agent))["epoch"])


async def complete(attempt: Attempt) -> None:
    answer = await attempt.post("complete", result=1)
    assert answer.status_code == 200, answer.text


@requirement("steps.spans")
async def test_one_trace_shows_a_task_whose_worker_died_and_that_went_on(
    traced: World, memory: InMemorySpanExporter
) -> None:
    first = await begin_attempt(traced)
    await first.step("plan", {"secret": "Lisbon"}, duration_ms=40)
    await first.begin("pay")
    second = await reclaim(first)
    traced.clock.advance(seconds=2)
    await second.step("pay", {"paid": 5}, kind="effect", duration_ms=1500)
    await complete(second)
    spans = await sent(traced, memory)
    assert [brief(span) for span in spans] == [
        ("step plan", "completed", None),
        ("invoke_agent ann", "lost", "LEASE_LOST"),
        ("effect pay", "unknown", "EFFECT_UNKNOWN"),
        ("effect pay", "completed", None),
        ("invoke_agent ann", "completed", None),
    ]
    plan, lost, unknown, paid, done = spans
    assert len(traces(spans)) == 1
    assert len({span_id(span) for span in spans}) == 5
    for child, parent in ((plan, lost), (unknown, lost), (paid, done)):
        assert child.parent is not None
        assert child.parent.span_id == span_id(parent)
        assert facts(child)["stentor.epoch"] == facts(parent)["stentor.epoch"]
    assert lost.parent is done.parent is None
    assert lost.status.status_code is StatusCode.ERROR
    assert lost.status.description is None
    for span, milliseconds in ((plan, 40), (paid, 1500), (lost, 31_000), (done, 2_000)):
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time - span.start_time == milliseconds * 1_000_000
    assert "Lisbon" not in "".join(span.to_json() for span in spans)


@requirement("steps.spans")
async def test_spans_of_attempts_and_steps_have_the_attributes_of_the_conventions(
    traced: World, memory: InMemorySpanExporter
) -> None:
    attempt = await begin_attempt(traced)
    step = (await attempt.step("plan", 1)).json()
    await attempt.step("the plan", 1, key="outer/the plan")
    await complete(attempt)
    plan, inner, done = await sent(traced, memory)
    agent = (await traced.task(attempt.task_id))["assigned_agent"]
    common = {"gen_ai.agent.id": agent, "stentor.task_id": attempt.task_id, "stentor.tenant": "default"}
    common["stentor.epoch"] = 1
    assert facts(plan) == common | {
        "stentor.event_id": step["provenance_id"],
        "stentor.step.key": "plan",
        "stentor.step.name": "plan",
        "stentor.step.kind": "step",
        "stentor.step.state": "completed",
    }
    nested = {"stentor.step.key": "outer/the plan", "stentor.step.name": "the plan"}
    assert {name: facts(inner)[name] for name in nested} == nested
    assert inner.name == "step the plan"
    found = facts(done)
    del found["stentor.event_id"]
    assert found == common | {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "stentor",
        "gen_ai.agent.name": "ann",
        "stentor.task.type": "echo",
        "stentor.attempt.state": "completed",
    }
    assert plan.kind is done.kind is SpanKind.INTERNAL
    assert done.instrumentation_scope is not None
    assert done.instrumentation_scope.name == "stentor.tasks"


@requirement("steps.spans")
async def test_a_failed_step_has_the_type_of_its_error_and_not_its_message(
    traced: World, memory: InMemorySpanExporter
) -> None:
    attempt = await begin_attempt(traced)
    await attempt.step("book", error={"type": "CardDeclined", "message": "4242"})
    again = await retry(attempt)
    await again.step("book", 1)
    await complete(again)
    spans = await sent(traced, memory)
    assert [brief(span) for span in spans] == [
        ("step book", "failed", "CardDeclined"),
        ("invoke_agent ann", "failed", facts(spans[1])["error.type"]),
        ("step book", "completed", None),
        ("invoke_agent ann", "completed", None),
    ]
    assert len(traces(spans)) == 1
    assert len({span_id(span) for span in spans}) == 4
    assert "4242" not in "".join(span.to_json() for span in spans)


@requirement("steps.spans")
async def test_a_wait_is_a_span_from_its_beginning_to_its_end(traced: World, memory: InMemorySpanExporter) -> None:
    attempt = await begin_attempt(traced)
    wait = {"key": "rest", "name": "rest", "kind": "sleep", "seconds": 3600}
    assert (await attempt.post("waits", **wait)).status_code in (200, 201)
    assert (await attempt.post("suspend", keys=["rest"])).status_code == 200
    traced.clock.advance(seconds=3601)
    await traced.kernel.tasks.wakeups.tick()
    waiting, rest = await sent(traced, memory)
    assert brief(waiting) == ("invoke_agent ann", "waiting", None)
    assert brief(rest) == ("sleep rest", "completed", None)
    assert rest.parent is not None
    assert rest.parent.span_id == span_id(waiting)
    assert rest.end_time is not None
    assert rest.start_time is not None
    assert rest.end_time - rest.start_time == 3601 * 10**9
    assert facts(rest)["gen_ai.agent.id"] == facts(waiting)["gen_ai.agent.id"]


@requirement("steps.spans")
async def test_a_wait_without_a_name_has_that_of_its_kind(traced: World, memory: InMemorySpanExporter) -> None:
    attempt = await begin_attempt(traced)
    await attempt.post("waits", key="sleep", name="sleep", kind="sleep", seconds=1)
    await attempt.post("suspend", keys=["sleep"])
    traced.clock.advance(seconds=2)
    await traced.kernel.tasks.wakeups.tick()
    assert [span.name for span in await sent(traced, memory)] == ["invoke_agent ann", "sleep"]


@requirement("steps.spans")
async def test_a_person_who_resolves_an_effect_ends_its_span(traced: World, memory: InMemorySpanExporter) -> None:
    attempt = await begin_attempt(traced)
    await attempt.begin("pay")
    await attempt.fail()
    path = f"/api/v1/tasks/{attempt.task_id}/steps/pay/resolve"
    answer = await traced.admin.post(path, json={"happened": True, "value": 5, "reason": "seen"})
    assert answer.status_code == 200, answer.text
    spans = await sent(traced, memory)
    assert [brief(span)[:2] for span in spans] == [
        ("invoke_agent ann", "failed"),
        ("effect pay", "unknown"),
        ("effect pay", "completed"),
    ]
    assert len({span_id(span) for span in spans}) == 3


@requirement("steps.spans")
async def test_calls_of_models_and_tools_are_below_the_steps_of_their_agent(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream, site: Site
) -> None:
    await thinker(traced, site)
    Script(upstream, [get(site), {"name": "http_request", "args": {"link": "x"}}], "It is 42.")
    assert (await think(traced))["status"] == "completed"
    spans = await sent(traced, memory)
    assert [brief(span) for span in spans] == [
        ("chat sea-large", None, None),
        ("step model 1", "completed", None),
        ("execute_tool http_request", "completed", None),
        ("execute_tool http_request", "completed", "INVALID_REQUEST"),
        ("chat sea-large", None, None),
        ("step model 2", "completed", None),
        ("invoke_agent thinker", "completed", None),
    ]
    first, one, tool, wrong, second, two, attempt = spans
    assert len(traces(spans)) == 1
    for child, parent in (
        (first, one),
        (second, two),
        (one, attempt),
        (two, attempt),
        (tool, attempt),
        (wrong, attempt),
    ):
        assert child.parent is not None
        assert child.parent.span_id == span_id(parent)
    assert facts(tool)["gen_ai.operation.name"] == "execute_tool"
    assert facts(tool)["gen_ai.tool.name"] == "http_request"


@requirement("steps.spans", "http.traceparent-carried")
async def test_an_attempt_stands_between_the_submission_and_the_agent_that_is_called(
    traced: World, memory: InMemorySpanExporter
) -> None:
    async with serving_agent(answering({"result": 1})) as endpoint:
        await traced.register("remote", runtime={"kind": "http", "endpoint": endpoint.url})
        body = {"type": "echo", "input": 1, "required_capabilities": ["echo"], "id": "t1"}
        assert (await traced.admin.post("/api/v1/tasks", json=body, headers=HERE)).status_code == 202
        await traced.ended("t1")
        headers = endpoint.calls[0]["headers"]
    [attempt] = await sent(traced, memory)
    assert attempt.kind is SpanKind.CLIENT
    assert attempt.parent is not None
    assert f"{attempt.parent.span_id:016x}" == PARENT
    assert headers["traceparent"] == f"00-{TRACE}-{span_id(attempt):016x}-01"


@requirement("steps.spans")
async def test_what_a_held_request_began_is_below_its_span_whatever_becomes_of_it(
    traced: World, memory: InMemorySpanExporter
) -> None:
    async with serving_agent(answering({}, 500)) as endpoint:
        runtime = {"kind": "http", "endpoint": endpoint.url, "options": {"repeat": "hold"}}
        await traced.register("remote", runtime=runtime)
        await traced.ended(task_id := await traced.submit())
        await traced.admin.post(f"/api/v1/tasks/{task_id}/steps/request/resolve", json={"happened": True, "value": 1})
        headers = endpoint.calls[0]["headers"]
    attempt, unknown, resolved = await sent(traced, memory)
    assert [brief(span)[1:] for span in (attempt, unknown)] == [
        ("failed", "EFFECT_UNKNOWN"),
        ("unknown", "EFFECT_UNKNOWN"),
    ]
    assert headers["traceparent"].split("-")[2] == f"{span_id(unknown):016x}"
    assert span_id(resolved) != span_id(unknown)
    assert resolved.parent is not None
    assert resolved.parent.span_id == span_id(attempt)


@requirement("steps.spans")
async def test_a_sampler_takes_all_spans_of_a_task_or_none(
    make_llm: Gate, memory: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    world = await make_llm(OTEL_EXPORTER_OTLP_ENDPOINT=COLLECTOR)
    agent = await world.register()
    for number in range(12):
        task_id = await world.submit(id=f"task {number}")  # so always the same traces
        for epoch in (1, 2):
            attempt = Attempt(world, task_id, (await world.claim(agent))["epoch"])
            await attempt.step(f"step {epoch}")
            await (complete(attempt) if epoch == 2 else release(attempt))
    counts = Counter(facts(span)["stentor.task_id"] for span in await sent(world, memory))
    assert 0 < len(counts) < 12
    assert set(counts.values()) == {4}


@requirement("steps.spans")
async def test_a_worker_gets_the_span_of_its_attempt_and_its_model_calls_are_below(
    traced: World, memory: InMemorySpanExporter
) -> None:
    agent = await traced.register()
    await traced.submit(id="t1")
    claim = await traced.claim(agent)
    answer = await traced.admin.post("/api/v1/llm/chat", json=asking(), headers={"X-Task-Id": "t1"})
    assert answer.status_code == 200, answer.text
    await complete(Attempt(traced, "t1", claim["epoch"]))
    chat, attempt = await sent(traced, memory)
    assert claim["metadata"]["traceparent"].split("-")[2] == f"{span_id(attempt):016x}"
    assert chat.parent is not None
    assert chat.parent.span_id == span_id(attempt)
    assert "traceparent" not in (await traced.task("t1"))["metadata"]


@requirement("steps.spans")
async def test_a_task_of_a_trace_that_is_not_sampled_has_no_spans(traced: World, memory: InMemorySpanExporter) -> None:
    agent = await traced.register()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"], "id": "t1"}
    assert (await traced.admin.post("/api/v1/tasks", json=body, headers=headers)).status_code == 202
    claim = await traced.claim(agent)
    assert claim["metadata"]["traceparent"].endswith("-00")
    attempt = Attempt(traced, "t1", claim["epoch"])
    await attempt.step("plan", 1)
    await complete(attempt)
    assert await sent(traced, memory) == []


@requirement("steps.spans")
async def test_a_process_that_does_not_know_the_task_puts_its_steps_into_the_same_trace(
    traced: World, memory: InMemorySpanExporter
) -> None:
    attempt = await begin_attempt(traced)
    await attempt.step("a", 1)
    spans_of_tasks = traced.kernel.tasks.workers._spans
    assert spans_of_tasks is not None
    spans_of_tasks._submissions.clear()
    await attempt.step("b", 1)
    await attempt.step("of a step", 1, key="k")
    await complete(attempt)
    spans = await sent(traced, memory)
    assert [span.name for span in spans] == ["step a", "step b", "step of a step", "invoke_agent ann"]
    assert len({span.parent.span_id for span in spans[:3] if span.parent}) == len(traces(spans)) == 1


async def test_an_attempt_that_did_not_commit_its_end_has_no_span(traced: World, memory: InMemorySpanExporter) -> None:
    first = await begin_attempt(traced)
    await reclaim(first)
    assert (await first.post("complete", result=1)).status_code == 409
    assert (await first.step("late", 1)).status_code == 409
    assert [brief(span) for span in await sent(traced, memory)] == [("invoke_agent ann", "lost", "LEASE_LOST")]


async def test_names_of_any_characters_and_a_damaged_journal_cost_no_commit(
    traced: World, memory: InMemorySpanExporter
) -> None:
    attempt = await begin_attempt(traced, name="ann " + "ü" * 240)
    assert (await attempt.step("😀" * 200, 1)).status_code in (200, 201)
    assert (await attempt.begin("pay")).status_code in (200, 201)
    damage = Sql("update task_steps set options = '{' where key = 'pay'")
    await traced.kernel.infra.db.write(lambda tx: tx.run(damage))
    await attempt.fail()
    assert (await traced.task(attempt.task_id))["status"] == "failed"
    assert [brief(span)[1] for span in await sent(traced, memory)] == ["completed", "failed"]


@requirement("steps.spans")
async def test_without_a_collector_a_step_executes_the_statements_that_it_did_and_carries_no_trace(
    make_llm: Gate, memory: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, tuple[Any, ...]]] = []
    for method in ("run", "rows"):  # `row` calls `rows`
        original = getattr(Tx, method)

        def spy(self: Tx, sql: Sql, _original: Any = original, **params: Any) -> Any:
            asked.append((str(getattr(sql, "text", sql)), tuple(params.values())))
            return _original(self, sql, **params)

        monkeypatch.setattr(Tx, method, spy)

    attempt = await begin_attempt(await make_llm())
    before = len(asked)
    await attempt.step("plan", 1)
    # The task is read ahead, with those of other steps of the group; a trace would be a statement more.
    assert [sql for sql, given in asked[before:] if sql.startswith("select") and attempt.task_id in given] == []
    assert memory.get_finished_spans() == ()


@requirement("steps.spans")
async def test_a_step_of_a_worker_that_calls_a_tool_is_shown_as_that_tool(
    traced: World, memory: InMemorySpanExporter
) -> None:
    attempt = await begin_attempt(traced)
    await attempt.step("clerk: tool refund 1", 5, tool="refund")
    await attempt.step("clerk: tool refund 2", error={"message": "no", "type": "Broke"}, tool="refund")
    await attempt.step("clerk: model 1", "x")
    await complete(attempt)
    first, second, model, _ = await sent(traced, memory)
    assert [brief(span) for span in (first, second, model)] == [
        ("execute_tool refund", "completed", None),
        ("execute_tool refund", "failed", "Broke"),
        ("step clerk: model 1", "completed", None),
    ]
    found = facts(first)
    assert (found["gen_ai.operation.name"], found["gen_ai.tool.name"]) == ("execute_tool", "refund")
    assert found["stentor.step.name"] == "clerk: tool refund 1"
