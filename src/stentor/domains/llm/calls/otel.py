"""Implements the tracing port with OpenTelemetry's SDK (extra `otel`); imported only if a collector is configured.

Fails open: spans wait in a bounded queue, a thread of the SDK exports them, and those that cannot be sent are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from urllib.parse import unquote

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stentor import __version__
from stentor.core import trace_context
from stentor.core.trace_context import EndedSpan, SpanRecorder
from stentor.domains.llm.calls import tracing
from stentor.domains.llm.calls.tracing import CallStart
from stentor.domains.llm.model import TokenUsage

FLUSH_SECONDS = 2.0
"""Seconds that a shutdown waits for the collector."""
LOG_INTERVAL_SECONDS = 60.0
"""Seconds between two log lines about failed exports."""
MAX_REASON_LENGTH = 300
MIN_SECRET_LENGTH = 8
"""Characters. A shorter header value is hardly a key, and redacting it could garble unrelated log lines."""
SDK_LOGGER_NAME = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
log = logging.getLogger(__name__)
_given_ids: ContextVar[tuple[int, int] | None] = ContextVar("ids of the next span", default=None)


class OtelCallSpan:
    """The OpenTelemetry span of a call. `started_us` is its start in microseconds since 1970."""

    def __init__(self, span: trace.Span, started_us: int) -> None:
        self._span = span
        self._started_us = started_us
        self._started_monotonic_ns = time.monotonic_ns()

    @property
    def traceparent(self) -> str | None:
        """The span's header, or the caller's own if the SDK is disabled."""
        context = self._span.get_span_context()
        if not context.is_valid:
            return trace_context.current_traceparent()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def end(self, usage: TokenUsage | None, *, response_id: str = "", error_type: str | None = None) -> None:
        self._span.set_attributes(dict(tracing.end_attributes(usage, response_id, error_type)))
        if error_type is not None:
            # Without a description: a provider's error message may repeat the prompt.
            self._span.set_status(Status(StatusCode.ERROR))
        # The duration is that of the monotonic clock, so that a clock change cannot make it negative.
        self._span.end(self._started_us * 1000 + time.monotonic_ns() - self._started_monotonic_ns)


class OtelTracer:
    """Starts spans and exports them in batches. Raises ValueError for an invalid OTEL_ environment variable."""

    def __init__(self, exporter: SpanExporter, flush: float = FLUSH_SECONDS) -> None:
        self._exporter = LossLoggingExporter(exporter)
        self._flush = flush
        self._closed = False
        service_name = OTELResourceDetector().detect().attributes.get("service.name", "stentor")
        resource = Resource.create({"service.name": service_name, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=_GivenIds())
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("stentor.llm", __version__, schema_url=tracing.SCHEMA_URL)
        self._task_tracer = self._provider.get_tracer("stentor.tasks", __version__, schema_url=tracing.SCHEMA_URL)

    def start_span(self, call: CallStart) -> OtelCallSpan:
        span = self._tracer.start_span(
            tracing.span_name(call),
            _parent_context(trace_context.current_traceparent() or call.traceparent),
            SpanKind.CLIENT,
            dict(tracing.start_attributes(call)),
            start_time=call.started * 1000,
        )
        return OtelCallSpan(span, call.started)

    @property
    def recorder(self) -> SpanRecorder | None:
        """This tracer, None if OTEL_SDK_DISABLED is set."""
        return None if isinstance(self._tracer, trace.NoOpTracer) else self

    def is_sampled(self, trace_id: str, parent: str | None, name: str) -> bool:
        context = _parent_context(parent)
        return self._provider.sampler.should_sample(context, int(trace_id, 16), name).decision.is_sampled()

    def record(self, span: EndedSpan) -> None:
        _, trace_id, span_id, _ = span.traceparent.split("-")
        kind = SpanKind.CLIENT if span.is_client else SpanKind.INTERNAL
        # The SDK takes ids only from its generator, and this span's id was handed out before the span ended.
        token = _given_ids.set((int(trace_id, 16), int(span_id, 16)))
        try:
            started = self._task_tracer.start_span(
                span.name, _parent_context(span.parent), kind, span.attributes, start_time=span.started * 1000
            )
        finally:
            _given_ids.reset(token)
        if span.error_type is not None:
            started.set_attribute(tracing.ERROR_TYPE, span.error_type)
            started.set_status(Status(StatusCode.ERROR))
        # Not before its start: the clock may have been set back in between.
        started.end(max(span.started, span.ended) * 1000)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # A daemon thread, which the exit of the process does not wait for: the SDK's own limit is half a minute.
        thread = threading.Thread(target=self._provider.shutdown, name="spans-flush", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, self._flush)
        self._exporter.shutdown()  # ends the SDK's waits between retries
        await asyncio.to_thread(thread.join, self._flush / 4)
        if thread.is_alive():
            log.warning("otel: flush timed out, remaining spans dropped")


class _GivenIds(RandomIdGenerator):
    """Gives the next span the ids that are set for it, and random ones otherwise."""

    def generate_trace_id(self) -> int:
        given = _given_ids.get()
        return super().generate_trace_id() if given is None else given[0]

    def generate_span_id(self) -> int:
        given = _given_ids.get()
        return super().generate_span_id() if given is None else given[1]


class LossLoggingExporter(SpanExporter):
    """Wraps an exporter and logs lost spans: at the first failed export, then once a minute, and on recovery."""

    def __init__(self, inner: SpanExporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._inner = inner
        self._clock = clock
        self._lost = 0
        self._last_logged = float("-inf")
        self._shut_down = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            if self._clock() - self._last_logged >= LOG_INTERVAL_SECONDS:
                self._last_logged = self._clock()
                log.warning("otel: export failed lost_spans=%d reason=%s", self._lost, EXPORT_ERRORS.last)
        elif self._lost:
            log.warning("otel: export recovered lost_spans=%d", self._lost)
            self._lost, self._last_logged = 0, float("-inf")
        return result

    def shutdown(self) -> None:
        # Both the tracer and the SDK's own shutdown call this; a second one would only log a warning.
        if self._shut_down.acquire(blocking=False):
            self._inner.shutdown()


class _ExportErrorFilter(logging.Filter):
    """Drops the SDK's own log lines, up to four per batch, and keeps the last one as the reason for ours."""

    last = "unknown"

    def filter(self, record: logging.LogRecord) -> bool:
        line = " ".join(record.getMessage().split())
        if "shutdown" not in line.lower():  # such a line follows the one with the reason
            self.last = line[:MAX_REASON_LENGTH]
        return False


EXPORT_ERRORS = _ExportErrorFilter()


def open_tracer(endpoint: str, add_secret: Callable[[str], None]) -> OtelTracer:
    """Open the tracer for a collector's traces URL. Raises ValueError.

    Calls `add_secret` with each value that logs must redact.
    """
    # Before the SDK reads the headers: it logs those that it cannot parse.
    for value in find_header_secrets(os.environ):
        add_secret(value)
    return OtelTracer(build_exporter(endpoint))


def build_exporter(endpoint: str) -> SpanExporter:
    """Return the exporter over HTTP with protobuf; the SDK itself reads the other OTEL_EXPORTER_ variables."""
    logging.getLogger(SDK_LOGGER_NAME).addFilter(EXPORT_ERRORS)
    return OTLPSpanExporter(endpoint)


def find_header_secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield every possible secret of the collector's headers: the raw values, and each decoded word."""
    for variable in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        for pair in environ.get(variable, "").split(","):
            value = pair.partition("=")[2].strip() or pair.strip()
            yield from (part for part in (value, *unquote(value).split()) if len(part) >= MIN_SECRET_LENGTH)


def _parent_context(traceparent: str | None) -> Context:
    # Always explicit: the ambient context may hold a span of another library.
    if traceparent is None or trace_context.parse_traceparent(traceparent) is None:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    parent = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())
