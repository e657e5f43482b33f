"""The tracing port of provider calls, and the attributes of their spans. `otel` implements the port.

Attribute names follow OpenTelemetry's semantic conventions, in the first version that has all of them. Their GenAI part
is still in development: when a newer version renames one, change it here. A service without a collector has no tracer
and does not import OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from stentor.core.trace_context import AttributeValue, SpanRecorder
from stentor.domains.llm.model import LlmOperation, TokenUsage
from stentor.domains.llm.model_routes import ModelTarget


class CallStart(msgspec.Struct, frozen=True):
    """The facts of a call at its start. `started` in microseconds since 1970; `event_id` is the run log event's.

    `traceparent` is the parent if the request that makes the call has no trace context.
    """

    operation: LlmOperation
    target: ModelTarget
    started: int
    event_id: str
    tenant: str
    agent_id: str | None = None
    task_id: str | None = None
    traceparent: str | None = None


class CallSpan(Protocol):
    """The span of an open call. `traceparent` is the header that is sent to the provider."""

    @property
    def traceparent(self) -> str | None: ...

    def end(self, usage: TokenUsage | None, *, response_id: str = "", error_type: str | None = None) -> None:
        """End the span, once and without blocking. `error_type` is a code, never a message."""
        ...


class CallTracer(Protocol):
    """Starts the spans of provider calls.

    `recorder` exports spans of another origin, None if the SDK is disabled.
    """

    @property
    def recorder(self) -> SpanRecorder | None: ...

    def start_span(self, call: CallStart) -> CallSpan:
        """Start a span; its parent is the trace context of the request or task that makes the call."""
        ...

    async def close(self) -> None:
        """Send the remaining spans, within a short limit. Idempotent."""
        ...


# Backends translate attributes by this version, so it must be the one of the names below.
SEMCONV_VERSION = "1.37.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{SEMCONV_VERSION}"

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_ID = "gen_ai.response.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
AGENT_ID = "gen_ai.agent.id"
AGENT_NAME = "gen_ai.agent.name"
TOOL_NAME = "gen_ai.tool.name"
CONVERSATION_ID = "gen_ai.conversation.id"
INVOKE_AGENT, EXECUTE_TOOL = "invoke_agent", "execute_tool"
"""Values of `gen_ai.operation.name` for attempts and tools; those of calls are in OPERATION_NAMES."""
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"
# Stentor's own attributes, named as in the export of the run log.
EVENT_ID = "stentor.event_id"
TENANT = "stentor.tenant"
TASK_ID = "stentor.task_id"
EPOCH = "stentor.epoch"
ESTIMATED = "stentor.usage.estimated"

OPERATION_NAMES: dict[LlmOperation, str] = {"chat": "chat", "embed": "embeddings"}
PROVIDER_NAMES = {"gemini": "gcp.gemini", "mistral": "mistral_ai"}
"""Providers that the conventions name differently; any other name is sent as it is."""
AZURE_OPENAI, AZURE_HOST = "azure.ai.openai", ".openai.azure.com"
MAX_TEXT_LENGTH = 255
"""Characters of an attribute whose value comes from a caller or provider."""


def span_name(call: CallStart) -> str:
    return f"{OPERATION_NAMES[call.operation]} {attribute_text(call.target.model)}"


def start_attributes(call: CallStart) -> Iterator[tuple[str, AttributeValue]]:
    """Yield the attributes of a started call."""
    provider = call.target.provider
    url = urlsplit(provider.base_url)
    is_azure = (url.hostname or "").endswith(AZURE_HOST)
    yield OPERATION_NAME, OPERATION_NAMES[call.operation]
    yield PROVIDER_NAME, AZURE_OPENAI if is_azure else PROVIDER_NAMES.get(provider.name, provider.name)
    yield REQUEST_MODEL, attribute_text(call.target.model)
    if url.hostname:  # the local baseline has no URL
        yield SERVER_ADDRESS, url.hostname
        yield SERVER_PORT, url.port or (443 if url.scheme == "https" else 80)
    yield EVENT_ID, call.event_id
    yield TENANT, call.tenant
    if call.agent_id is not None:
        yield AGENT_ID, call.agent_id
    if call.task_id is not None:
        yield TASK_ID, call.task_id


def end_attributes(
    usage: TokenUsage | None, response_id: str, error_type: str | None
) -> Iterator[tuple[str, AttributeValue]]:
    """Yield the attributes of an ended call; without usage if it failed before there was any."""
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
    """Shorten a text and replace what is not valid in UTF-8: one such character would lose the whole batch."""
    return value[:MAX_TEXT_LENGTH].encode("utf-8", "replace").decode("utf-8")
