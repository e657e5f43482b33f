"""Spans of calls: what they say and what they never say, their place in the trace, and a collector that is away."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stentor.bootstrap.parts import llm as wiring
from stentor.core import settings as settings_module
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import RedactingFormatter, Redactor
from stentor.domains.llm.calls import tracing
from stentor.domains.llm.calls.tracing import CallStart
from stentor.domains.llm.formats.base import FormatName
from stentor.domains.llm.model import TokenUsage
from stentor.domains.llm.model_routes import ModelTarget
from stentor.domains.llm.providers import Provider
from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import KEY, Gate, asking, chat
from tests.domains.llm.test_agents import sailor
from tests.domains.llm.upstream import ANSWER, Upstream
from tests.requirements import requirement

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from stentor.domains.llm.calls import otel

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HERE = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
COLLECTOR = "http://127.0.0.1:4318"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Instead of the way to the collector; all before it is as in the service."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(otel, "build_exporter", lambda endpoint: exporter)
    return exporter


@pytest.fixture
async def traced(make_llm: Gate, memory: InMemorySpanExporter) -> World:
    return await make_llm(OTEL_EXPORTER_OTLP_ENDPOINT=COLLECTOR)


async def sent(world: World, memory: InMemorySpanExporter) -> list[ReadableSpan]:
    """All spans of calls, after the end of the gateway."""
    await world.kernel.llm.gateway.close()
    spans = memory.get_finished_spans()
    return [span for span in spans if span.instrumentation_scope and span.instrumentation_scope.name == "stentor.llm"]


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@requirement("llm.otel-attributes")
async def test_a_chat_is_a_span_with_the_attributes_of_the_conventions(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    answer = (await chat(traced)).json()["data"]
    [span] = await sent(traced, memory)
    assert span.name == "chat sea-large"
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET
    assert facts(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "sea-large",
        "gen_ai.response.id": "chatcmpl-up-1",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
        "server.address": "127.0.0.1",
        "server.port": upstream.port,
        "stentor.event_id": answer["provenance_id"],
        "stentor.tenant": "default",
    }
    assert span.start_time == traced.clock.now() * 1000
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time > span.start_time
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.37.0"
    assert span.resource.attributes["service.name"] == "stentor"


@requirement("llm.otel-attributes")
async def test_a_stream_is_one_span_that_ends_with_it(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    async with traced.admin.stream("POST", "/api/v1/llm/stream", json=asking("anthropic/sea-small")) as answer:
        text = (await answer.aread()).decode()
    assert "[DONE]" in text
    [span] = await sent(traced, memory)
    assert span.name == "chat sea-small"
    found = facts(span)
    assert found["gen_ai.provider.name"] == "anthropic"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (11, 7)


@requirement("llm.otel-attributes")
async def test_embeddings_are_a_span_of_their_own_operation(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    body = {"text": "the sea", "model": "openai/sea-embed"}
    assert (await traced.admin.post("/api/v1/llm/embed", json=body)).status_code == 200
    [span] = await sent(traced, memory)
    assert span.name == "embeddings sea-embed"
    found = facts(span)
    assert found["gen_ai.operation.name"] == "embeddings"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (5, 0)


@pytest.mark.parametrize(
    ("mood", "code", "is_billed"),
    [
        (moods.status(429), "RATE_LIMITED", False),
        (moods.status(500), "PROVIDER_ERROR", False),
        (moods.status(503), "SERVICE_UNAVAILABLE", False),
        (moods.raw(b"no json"), "PROVIDER_ERROR", True),
    ],
)
async def test_a_failure_is_a_span_with_the_code_and_not_the_words(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream, mood: moods.Mood, code: str, *, is_billed: bool
) -> None:
    upstream.mood = mood
    assert (await chat(traced)).status_code >= 400
    [span] = await sent(traced, memory)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert list(span.events) == []
    assert facts(span)["error.type"] == code
    assert ("gen_ai.usage.input_tokens" in facts(span)) is is_billed


async def test_a_stream_that_breaks_off_says_what_was_counted_until_then(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    upstream.mood = moods.hanging_up
    async with traced.admin.stream("POST", "/api/v1/llm/stream", json=asking()) as answer:
        await answer.aread()
    [span] = await sent(traced, memory)
    found = facts(span)
    assert found["error.type"] == "PROVIDER_ERROR"
    assert found["stentor.usage.estimated"] is True
    assert found["gen_ai.usage.output_tokens"] > 0


async def test_a_caller_that_leaves_ends_the_span(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    upstream.mood = moods.silent
    asked = asyncio.create_task(chat(traced))
    await upstream.arrived.wait()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await upstream.broken_off.wait()
    [span] = await sent(traced, memory)
    assert facts(span)["error.type"] == "CANCELLED"


async def test_every_target_that_was_tried_is_a_span(
    make_llm: Gate, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    world = await make_llm(
        OTEL_EXPORTER_OTLP_ENDPOINT=COLLECTOR, SERVICE_LLM_FALLBACKS="openai/sea-large=anthropic/sea-small"
    )
    upstream.mood = moods.first(moods.status(500), None, upstream)
    assert (await chat(world)).status_code == 200
    failed, answered = await sent(world, memory)
    assert (facts(failed)["gen_ai.provider.name"], facts(failed)["error.type"]) == ("openai", "PROVIDER_ERROR")
    assert facts(answered)["gen_ai.provider.name"] == "anthropic"
    assert "error.type" not in facts(answered)


async def test_what_the_gate_refuses_is_no_span(
    make_llm: Gate, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    world = await make_llm(OTEL_EXPORTER_OTLP_ENDPOINT=COLLECTOR, SERVICE_LLM_BUDGETS="key:*:tokens/day=10")
    assert (await chat(world)).status_code == 200
    assert (await chat(world)).status_code == 429
    assert len(await sent(world, memory)) == 1


async def test_no_span_holds_content_or_a_key(traced: World, memory: InMemorySpanExporter, upstream: Upstream) -> None:
    assert (await chat(traced)).status_code == 200
    upstream.mood = moods.status(400, {"error": {"message": f"bad: Why is the sea salty? {KEY}"}})
    assert (await chat(traced)).status_code == 502
    spans = await sent(traced, memory)
    assert len(spans) == 2
    text = "".join(span.to_json() for span in spans)
    for never in ("salty", ANSWER, KEY, "admin-key-7c1e"):
        assert never not in text


@requirement("http.traceparent-carried")
async def test_a_span_stands_between_the_request_and_the_call_of_the_provider(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    for path, body in (("/api/v1/llm/chat", asking()), ("/v1/chat/completions", asking(stream=True))):
        assert (await traced.admin.post(path, json=body, headers=HERE)).status_code == 200
    spans = await sent(traced, memory)
    assert len(spans) == 2
    for span, call in zip(spans, upstream.asked, strict=True):
        assert span.context is not None
        assert span.parent is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT
        assert span.parent.is_remote
        assert call["headers"]["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"


async def test_a_call_without_a_place_begins_a_trace(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    await chat(traced)
    await chat(traced)
    one, two = await sent(traced, memory)
    assert one.parent is two.parent is None
    assert one.context is not None
    assert two.context is not None
    assert one.context.trace_id != two.context.trace_id
    assert f"{one.context.trace_id:032x}" in upstream.asked[0]["headers"]["traceparent"]


async def test_a_trace_that_is_not_sampled_is_passed_on_and_not_sent(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert (await traced.admin.post("/api/v1/llm/chat", json=asking(), headers=headers)).status_code == 200
    assert upstream.asked[-1]["headers"]["traceparent"].startswith(f"00-{TRACE}-")
    assert upstream.asked[-1]["headers"]["traceparent"].endswith("-00")
    assert await sent(traced, memory) == []


async def test_the_calls_of_an_agent_belong_to_the_trace_of_its_task(
    traced: World, memory: InMemorySpanExporter, upstream: Upstream
) -> None:
    agent = await sailor(traced)
    body = {"type": "explain", "input": "x", "required_capabilities": ["explain"], "id": "t1"}
    assert (await traced.admin.post("/api/v1/tasks", json=body, headers=HERE)).status_code == 202
    await traced.ended("t1")
    [span] = await sent(traced, memory)
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert facts(span)["stentor.task_id"] == "t1"
    assert facts(span)["gen_ai.agent.id"] == agent


# A real collector


class Collector:
    """Takes OTLP over HTTP with protobuf; `status` is what it answers."""

    def __init__(self) -> None:
        self.port, self.status = 0, 200
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []

    async def take(self, request: web.Request) -> web.Response:
        asked = ExportTraceServiceRequest()
        asked.ParseFromString(await request.read())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        for group in asked.resource_spans:
            self.resources.append({a.key: a.value.string_value for a in group.resource.attributes})
            for scope in group.scope_spans:
                self.spans.extend(scope.spans)
        return web.Response(status=self.status)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", made.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@requirement("llm.otel-attributes")
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
async def test_a_collector_gets_the_spans_over_http(
    make_llm: Gate, collector: Collector, upstream: Upstream, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=told")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "harbour")
    path = "/v1/traces" if "TRACES" in variable else ""
    world = await make_llm(**{variable: f"http://127.0.0.1:{collector.port}{path}"})
    for _ in range(3):
        assert (await world.admin.post("/api/v1/llm/chat", json=asking(), headers=HERE)).status_code == 200
    await world.kernel.llm.stop()
    assert len(collector.spans) == 3
    span = collector.spans[0]
    values = {a.key: a.value.string_value or a.value.int_value for a in span.attributes}
    assert span.name == "chat sea-large"
    assert span.kind == 3  # CLIENT
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert values["gen_ai.operation.name"] == "chat"
    assert values["gen_ai.provider.name"] == "openai"
    assert values["gen_ai.request.model"] == "sea-large"
    assert (values["gen_ai.usage.input_tokens"], values["gen_ai.usage.output_tokens"]) == (11, 7)
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert collector.resources[0]["service.name"] == "harbour"
    assert collector.headers[0]["x-collector-key"] == "told"
    assert collector.headers[0]["content-type"] == "application/x-protobuf"


async def test_a_model_name_of_any_characters_does_not_cost_the_batch(
    make_llm: Gate, collector: Collector, upstream: Upstream
) -> None:
    world = await make_llm(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.port}")
    assert (await chat(world, "openai/" + "m" * 200)).status_code == 200
    assert tracing.attribute_text("a\ud800" + "m" * 999) == "a?" + "m" * 253
    await world.kernel.llm.stop()
    assert len(collector.spans) == 1


@pytest.mark.parametrize("status", [None, 400, 500])
async def test_a_collector_that_fails_costs_a_log_line_and_no_call(
    make_llm: Gate, collector: Collector, upstream: Upstream, caplog: pytest.LogCaptureFixture, status: int | None
) -> None:
    port = 1 if status is None else collector.port
    collector.status = status or 200
    world = await make_llm(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
    for _ in range(3):
        assert (await chat(world)).status_code == 200
    await world.kernel.llm.stop()
    lines = [r.getMessage() for r in caplog.records if r.name.startswith(("opentelemetry", "stentor"))]
    told = [line for line in lines if "spans" in line]
    assert len(told) == 1
    assert "lost_spans=3" in told[0]
    assert ("refused" if status is None else f"code: {status}") in told[0]


async def test_a_stop_waits_for_a_hanging_collector_only_a_moment(caplog: pytest.LogCaptureFixture) -> None:
    answers, ended = threading.Event(), threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            answers.wait()
            ended.set()
            return SpanExportResult.SUCCESS

    spans = otel.OtelTracer(Hanging(), flush=0.05)
    spans.start_span(_call("m")).end(TokenUsage(1, 1))
    await spans.close()
    assert not ended.is_set()
    assert "flush timed out" in caplog.text
    await spans.close()
    answers.set()
    assert await asyncio.to_thread(ended.wait, 60)


@pytest.mark.parametrize("given", ["x-key={}", "{}", "a=b, x-key = {} ,c=d"])
async def test_the_key_of_a_collector_reaches_no_log(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    """A header that cannot be sent is repeated by the SDK and by its client, as it is and decoded."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", given.format("canary-9f%0Acanary-9e"))
    redactor = Redactor()
    spans = otel.open_tracer(f"http://127.0.0.1:{collector.port}/v1/traces", redactor.add_secret)
    spans.start_span(_call("m")).end(TokenUsage(1, 1))
    await spans.close()
    formatter = RedactingFormatter(redactor)
    text = "".join(formatter.format(record) for record in caplog.records)
    assert "canary" in caplog.text
    assert "canary" not in text


def test_a_collector_that_is_away_is_told_once_a_minute_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, result = [0.0], [SpanExportResult.FAILURE]

    class Moody(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return result[0]

    exporter = otel.LossLoggingExporter(Moody(), lambda: now[0])
    with caplog.at_level(logging.INFO):
        for second in range(0, 125, 5):
            now[0] = float(second)
            exporter.export([])
        assert len(caplog.records) == 3
        result[0] = SpanExportResult.SUCCESS
        exporter.export([])
        exporter.export([])
    assert len(caplog.records) == 3  # nothing was lost: the batches were empty
    result[0] = SpanExportResult.FAILURE
    exporter.export([None])  # pyrefly: ignore[bad-argument-type] - only counted
    result[0] = SpanExportResult.SUCCESS
    exporter.export([])
    assert caplog.records[-1].getMessage() == "otel: export recovered lost_spans=1"


# Names


def _call(model: str, name: str = "openai", url: str = "https://api.example.com/v1") -> CallStart:
    form: FormatName = "openai"
    return CallStart("chat", ModelTarget(Provider(name, form, url), model), 1, "event", "default")


@pytest.mark.parametrize(
    ("name", "url", "provider", "server"),
    [
        ("gemini", "https://generativelanguage.googleapis.com", "gcp.gemini", "generativelanguage.googleapis.com:443"),
        ("mistral", "https://api.mistral.ai/v1", "mistral_ai", "api.mistral.ai:443"),
        ("ours", "https://ours.openai.azure.com/openai/v1", "azure.ai.openai", "ours.openai.azure.com:443"),
        ("groq", "https://api.groq.com/openai/v1", "groq", "api.groq.com:443"),
        ("mine", "http://[::1]:8000/v1", "mine", "::1:8000"),
        ("local", "local:", "local", None),
    ],
)
def test_providers_have_their_well_known_names_and_addresses(
    name: str, url: str, provider: str, server: str | None
) -> None:
    found = dict(tracing.start_attributes(_call("m", name, url)))
    assert found["gen_ai.provider.name"] == provider
    address = f"{found['server.address']}:{found['server.port']}" if "server.address" in found else None
    assert address == server


# Switched off


def test_the_sdk_can_be_switched_off_by_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    memory = InMemorySpanExporter()
    spans = otel.OtelTracer(memory)
    span = spans.start_span(_call("m"))
    span.end(TokenUsage(1, 1))
    asyncio.run(spans.close())
    assert span.traceparent is None
    assert spans.recorder is None
    assert memory.get_finished_spans() == ()


def test_a_variable_of_the_sdk_that_cannot_be_read_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9999")
    chosen = settings_module.load({"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR})
    with pytest.raises(StartRefused, match="OTEL_"):
        wiring.open_tracer(chosen, Redactor().add_secret)


def test_without_the_extra_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "stentor.domains.llm.calls.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    chosen = settings_module.load({"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR})
    assert wiring.open_tracer(chosen, Redactor().add_secret) is None
    assert "pip install '.[otel]' in a checkout" in caplog.text


PROGRAM = """
import asyncio, sys
from stentor.bootstrap.service import open_service
from stentor.core import settings
from stentor.core.security.redaction import Redactor

async def main():
    environ = {"SERVICE_DATA_DIR": sys.argv[1], "SERVICE_LLM_FIND_OLLAMA": "0", "SERVICE_EMBEDDING_MODEL": "none",
               "SERVICE_LLM_LOCAL_BASELINE": "1", **dict(pair.split("=", 1) for pair in sys.argv[2:])}
    service = open_service(settings.load(environ), environ, Redactor())
    await service.start()
    from stentor.domains.llm.calls.call_guard import LlmCaller
    from stentor.domains.llm.model import LlmMessage, ChatRequest, TextPart
    request = ChatRequest("local/extractive", (LlmMessage("user", (TextPart("The sea is salty."),)),))
    done = await service.kernel.llm.gateway.chat(LlmCaller("default", "k"), request)
    assert done.reply.content == "The sea is salty.", done
    await service.stop()

asyncio.run(main())
libraries = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "requests")
ours = (*libraries, "stentor.domains.llm.calls.otel")
print([name for name in ours if name in sys.modules])
"""


@pytest.mark.parametrize("variables", [[], [f"OTEL_EXPORTER_OTLP_ENDPOINT={COLLECTOR}"]])
def test_nothing_of_the_extra_is_imported_without_a_collector(tmp_path: Path, variables: list[str]) -> None:
    """FastAPI imports the bare API by itself where it is installed."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), *variables]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=200)
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()[-1]
    assert ("stentor.domains.llm.calls.otel" in found) if variables else (found == "[]")
