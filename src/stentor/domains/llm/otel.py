"""Spans by the SDK of OpenTelemetry, for the extra `otel`; imported only where a collector is configured.

Everything fails open: spans wait in a bounded queue, a thread of the SDK sends them, and what cannot be sent is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import unquote

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stentor import __version__
from stentor.core import trace_context
from stentor.domains.llm import tracing
from stentor.domains.llm.model import TokenUsage
from stentor.domains.llm.tracing import CallStart

FLUSH_SECONDS = 2.0
"""Seconds that a stop waits for the collector."""
LOG_INTERVAL_SECONDS = 60.0
"""Seconds between two log lines about a collector that does not take spans."""
MAX_REASON_LENGTH = 300
MIN_SECRET_LENGTH = 8
"""Characters: a shorter value of a header is hardly a key, and may be a word of every log line."""
SDK_LOGGER_NAME = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
log = logging.getLogger(__name__)


class OtelCallSpan:
    def __init__(self, span: trace.Span, started: int) -> None:
        self._span = span
        self._started = started
        self._began = time.monotonic_ns()

    @property
    def traceparent(self) -> str | None:
        """The caller's own place where the SDK is switched off."""
        context = self._span.get_span_context()
        if not context.is_valid:
            return trace_context.current_traceparent()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def end(self, usage: TokenUsage | None, *, response_id: str = "", error_type: str | None = None) -> None:
        self._span.set_attributes(dict(tracing.end_attributes(usage, response_id, error_type)))
        if error_type is not None:
            # Without a description: what a provider says may hold what it was asked.
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._started * 1000 + time.monotonic_ns() - self._began)


class OtelTracer:
    """Spans for an exporter, sent in batches by a thread. Raises ValueError for a variable of the SDK that is wrong."""

    def __init__(self, exporter: SpanExporter, flush: float = FLUSH_SECONDS) -> None:
        self._exporter = LossLoggingExporter(exporter)
        self._flush = flush
        self._closed = False
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("stentor.llm", __version__, schema_url=tracing.SCHEMA_URL)

    def start_span(self, call: CallStart) -> OtelCallSpan:
        span = self._tracer.start_span(
            tracing.span_name(call),
            _parent(trace_context.current_traceparent()),
            SpanKind.CLIENT,
            dict(tracing.start_attributes(call)),
            start_time=call.started * 1000,
        )
        return OtelCallSpan(span, call.started)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # A thread that no exit waits for: the SDK's own bound is half a minute.
        thread = threading.Thread(target=self._provider.shutdown, name="spans-flush", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, self._flush)
        self._exporter.shutdown()  # ends the waits between the SDK's tries
        await asyncio.to_thread(thread.join, self._flush / 4)
        if thread.is_alive():
            log.warning("the collector does not answer: the spans that are on their way to it are given up")


class LossLoggingExporter(SpanExporter):
    """Tells the log that spans are lost when that begins, now and then, and when it ends."""

    def __init__(self, inner: SpanExporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._inner = inner
        self._clock = clock
        self._lost = 0
        self._said = float("-inf")
        self._stopped = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._worked()
        else:
            self._failed(len(spans))
        return result

    def shutdown(self) -> None:
        if self._stopped.acquire(blocking=False):
            self._inner.shutdown()

    def _failed(self, count: int) -> None:
        self._lost += count
        if self._clock() - self._said >= LOG_INTERVAL_SECONDS:
            self._said = self._clock()
            log.warning("the collector does not take spans, %d are lost so far: %s", self._lost, EXPORT_ERRORS.last)

    def _worked(self) -> None:
        if self._lost:
            log.warning("the collector takes spans again; %d were lost", self._lost)
            self._lost, self._said = 0, float("-inf")


class _ExportErrorFilter(logging.Filter):
    """Keeps the SDK's own lines about an export out of the log, but for the reason in the last one."""

    last = "no reason is known"

    def filter(self, record: logging.LogRecord) -> bool:
        line = " ".join(record.getMessage().split())
        if "shutdown" not in line.lower():  # such a line follows another with the reason
            self.last = line[:MAX_REASON_LENGTH]
        return False


EXPORT_ERRORS = _ExportErrorFilter()


def open_spans(endpoint: str, secret: Callable[[str], None]) -> OtelTracer:
    """For a collector at the whole address of its traces; `secret` hears what no log may show. Raises ValueError."""
    for value in find_header_secrets(os.environ):  # before the SDK reads them, which logs what it cannot read
        secret(value)
    return OtelTracer(otlp(endpoint))


def otlp(endpoint: str) -> SpanExporter:
    """Over HTTP with protobuf. Headers, certificates, compression and timeout are the SDK's variables."""
    logging.getLogger(SDK_LOGGER_NAME).addFilter(EXPORT_ERRORS)
    return OTLPSpanExporter(endpoint)


def find_header_secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """Whatever may be a collector's key: as it is written, and each word of what is sent."""
    for variable in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        for pair in environ.get(variable, "").split(","):
            value = pair.partition("=")[2].strip() or pair.strip()
            yield from (part for part in (value, *unquote(value).split()) if len(part) >= MIN_SECRET_LENGTH)


def _resource() -> Resource:
    named = OTELResourceDetector().detect().attributes.get("service.name", "stentor")
    return Resource.create({"service.name": named, "service.version": __version__})


def _parent(traceparent: str | None) -> Context:
    if traceparent is None or trace_context.parse_traceparent(traceparent) is None:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    place = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(NonRecordingSpan(place), Context())
