"""How OpenTelemetry's semantic conventions name the facts of a call: the version that first had these names.

The GenAI part is still in development, so a newer version may rename them; this file is then what changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from stentor.domains.llm.model import Operation, Usage
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.spans import CallStart

VERSION = "1.37.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{VERSION}"

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

OPERATIONS: dict[Operation, str] = {"chat": "chat", "embed": "embeddings"}
PROVIDERS = {"gemini": "gcp.gemini", "mistral": "mistral_ai"}
"""Well-known values that differ from our names; the others are alike, or are names of the operator's own."""
AZURE_OPENAI, AZURE_HOST = "azure.ai.openai", ".openai.azure.com"
LONGEST = 255
"""Characters of a text that callers or providers choose."""
Value = str | int | bool


def name(call: CallStart) -> str:
    return f"{OPERATIONS[call.operation]} {text(call.target.model)}"


def at_start(call: CallStart) -> Iterator[tuple[str, Value]]:
    provider = call.target.provider
    yield OPERATION_NAME, OPERATIONS[call.operation]
    yield PROVIDER_NAME, _provider(provider)
    yield REQUEST_MODEL, text(call.target.model)
    yield from _server(provider.base_url)
    yield EVENT_ID, call.event_id
    yield TENANT, call.tenant
    if call.agent_id is not None:
        yield AGENT_ID, call.agent_id
    if call.task_id is not None:
        yield TASK_ID, call.task_id


def at_end(usage: Usage | None, response_id: str, error_type: str | None) -> Iterator[tuple[str, Value]]:
    """Without usage for a call that failed before anything was counted."""
    if usage is not None:
        yield INPUT_TOKENS, usage.input_tokens
        yield OUTPUT_TOKENS, usage.output_tokens
        if usage.estimated:
            yield ESTIMATED, True
    if response_id:
        yield RESPONSE_ID, text(response_id)
    if error_type is not None:
        yield ERROR_TYPE, error_type


def text(value: str) -> str:
    """Short, and with nothing that UTF-8 cannot say: one such character would lose the whole batch."""
    return value[:LONGEST].encode("utf-8", "replace").decode("utf-8")


def _provider(provider: Provider) -> str:
    host = urlsplit(provider.base_url).hostname or ""
    return AZURE_OPENAI if host.endswith(AZURE_HOST) else PROVIDERS.get(provider.name, provider.name)


def _server(base_url: str) -> Iterator[tuple[str, Value]]:
    """Nothing for the baseline on this machine, which has no address."""
    parts = urlsplit(base_url)
    if parts.hostname:
        yield SERVER_ADDRESS, parts.hostname
        yield SERVER_PORT, parts.port or (443 if parts.scheme == "https" else 80)
