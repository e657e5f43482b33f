"""The port to distributed tracing: each call that passes the gate may become a span of the operator's collector.

How OpenTelemetry's semantic conventions name the facts of a call: the version that first had these names.

The GenAI part is still in development, so a newer version may rename them; this file is then what changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from stentor.core import trace_context
from stentor.domains.llm.model import LlmOperation, TokenUsage
from stentor.domains.llm.model_routes import ModelTarget
from stentor.domains.llm.providers import Provider


class CallStart(msgspec.Struct, frozen=True):
    """What is known when a call begins. `started` is microseconds since 1970; `event_id` that of the run log."""

    operation: LlmOperation
    target: ModelTarget
    started: int
    event_id: str
    tenant: str
    agent_id: str | None = None
    task_id: str | None = None


class CallSpan(Protocol):
    """One call under way. `traceparent` is the place in the trace that the provider is told."""

    @property
    def traceparent(self) -> str | None: ...

    def end(self, usage: TokenUsage | None, *, response_id: str = "", error_type: str | None = None) -> None:
        """Once, and without waiting. `error_type` is a code, never a message."""
        ...


class CallTracer(Protocol):
    def start_span(self, call: CallStart) -> CallSpan:
        """Its parent is the place of the request or task that the call is for."""
        ...

    async def close(self) -> None:
        """Send what is left, for a moment at most; a second time does nothing."""
        ...


class _NoopSpan:
    @property
    def traceparent(self) -> str | None:
        return trace_context.current_traceparent()

    def end(self, usage: TokenUsage | None, *, response_id: str = "", error_type: str | None = None) -> None:
        pass


NOOP_SPAN = _NoopSpan()


class NoopTracer:
    """For a service without a collector: the caller's place in the trace goes on unchanged."""

    def start_span(self, call: CallStart) -> CallSpan:
        return NOOP_SPAN

    async def close(self) -> None:
        pass


SEMCONV_VERSION = "1.37.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{SEMCONV_VERSION}"

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_ID = "gen_ai.response.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
AGENT_ID = "gen_ai.agent.id"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"
# Ours, as in the export of the run log.
EVENT_ID = "stentor.event_id"
TENANT = "stentor.tenant"
TASK_ID = "stentor.task_id"
ESTIMATED = "stentor.usage.estimated"

OPERATION_NAMES: dict[LlmOperation, str] = {"chat": "chat", "embed": "embeddings"}
PROVIDER_NAMES = {"gemini": "gcp.gemini", "mistral": "mistral_ai"}
"""Well-known values that differ from our names; the others are alike, or are names of the operator's own."""
AZURE_OPENAI, AZURE_HOST = "azure.ai.openai", ".openai.azure.com"
MAX_TEXT_LENGTH = 255
"""Characters of a text that callers or providers choose."""
AttributeValue = str | int | bool


def span_name(call: CallStart) -> str:
    return f"{OPERATION_NAMES[call.operation]} {attribute_text(call.target.model)}"


def start_attributes(call: CallStart) -> Iterator[tuple[str, AttributeValue]]:
    provider = call.target.provider
    yield OPERATION_NAME, OPERATION_NAMES[call.operation]
    yield PROVIDER_NAME, _provider(provider)
    yield REQUEST_MODEL, attribute_text(call.target.model)
    yield from _server(provider.base_url)
    yield EVENT_ID, call.event_id
    yield TENANT, call.tenant
    if call.agent_id is not None:
        yield AGENT_ID, call.agent_id
    if call.task_id is not None:
        yield TASK_ID, call.task_id


def end_attributes(
    usage: TokenUsage | None, response_id: str, error_type: str | None
) -> Iterator[tuple[str, AttributeValue]]:
    """Without usage for a call that failed before anything was counted."""
    if usage is not None:
        yield INPUT_TOKENS, usage.input_tokens
        yield OUTPUT_TOKENS, usage.output_tokens
        if usage.estimated:
            yield ESTIMATED, True
    if response_id:
        yield RESPONSE_ID, attribute_text(response_id)
    if error_type is not None:
        yield ERROR_TYPE, error_type


def attribute_text(value: str) -> str:
    """Short, and with nothing that UTF-8 cannot say: one such character would lose the whole batch."""
    return value[:MAX_TEXT_LENGTH].encode("utf-8", "replace").decode("utf-8")


def _provider(provider: Provider) -> str:
    host = urlsplit(provider.base_url).hostname or ""
    return AZURE_OPENAI if host.endswith(AZURE_HOST) else PROVIDER_NAMES.get(provider.name, provider.name)


def _server(base_url: str) -> Iterator[tuple[str, AttributeValue]]:
    """Nothing for the baseline on this machine, which has no address."""
    parts = urlsplit(base_url)
    if parts.hostname:
        yield SERVER_ADDRESS, parts.hostname
        yield SERVER_PORT, parts.port or (443 if parts.scheme == "https" else 80)
