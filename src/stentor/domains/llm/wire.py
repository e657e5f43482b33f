"""Request and response models of the LLM gateway's own routes, and the usage report. Pure.

The models of the OpenAI-compatible API are in `openai_api`. Source: core contract, "LLM gateway".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from stentor.core.clock import DAY
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.atp import json_format
from stentor.domains.atp.json_format import MESSAGE_SCHEMA, example_message
from stentor.domains.atp.model import AtpMessage
from stentor.domains.atp.text_format import strip_header
from stentor.domains.llm.costs import NANOS_PER_DOLLAR
from stentor.domains.llm.formats.base import FormatName
from stentor.domains.llm.model import ChatRequest, LlmMessage, TextPart
from stentor.domains.llm.usage.store import UsageRow
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import CamelCaseModel, Name, OmittedWhenFalse, OmittedWhenNone, ResponseModel

MAX_MESSAGES = 2_000
EPOCH = date(1970, 1, 1)
MAX_MICROS = 2**62
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_OPERATOR_FIELDS = ("apiKey", "baseUrl", "api_key", "base_url")
"""Options that clients cannot set: keys and base URLs are configured by the operator."""


def _options_object(value: object) -> object:
    """Drop the operator's fields from an object of options; any other value counts as an empty object."""
    if not isinstance(value, dict):
        return {}
    # Dropped without an error, as the contract asks (tests/manifest/llm.toml, options).
    return {name: option for name, option in value.items() if name not in _OPERATOR_FIELDS}


def _parse_date(text: object) -> object:
    if text is None or isinstance(text, date):
        return text
    if not isinstance(text, str) or not _DATE.fullmatch(text):
        raise ValueError("must be a date such as 2026-11-20")
    return date.fromisoformat(text)


class ChatMessage(RequestModel):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatOptions(RequestModel):
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    stop: Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=1000)]], Field(max_length=16)] = []
    seed: Annotated[int, Field(ge=-(2**53), le=2**53)] | None = None
    prefer: Literal["quality", "balanced", "fast", "cheap"] | None = None


Options = Annotated[ChatOptions, BeforeValidator(_options_object)]
ModelName = Annotated[Name, Field(description="`provider/model`, a bare name that a provider lists, or `auto`.")]
Day = Annotated[date | None, BeforeValidator(_parse_date), Query(description="A day in UTC, such as 2026-11-20.")]
Provider = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
ProviderName = Annotated[str, Path(description="The provider's name."), AfterValidator(decode_path_segment)]


class ChatBody(RequestModel):
    model_config = example_config(
        messages=[{"role": "user", "content": "Why is the sea salty?"}],
        model="openai/gpt-5-mini",
        options={"max_tokens": 400},
    )

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    model: ModelName | None = None
    options: Options = ChatOptions()

    def to_request(self) -> ChatRequest:
        messages = tuple(LlmMessage(m.role, (TextPart(m.content),)) for m in self.messages)
        return _build_request(self.model, messages, self.options)


class CompleteBody(RequestModel):
    model_config = example_config(
        prompt="The sea is salty because", model="openai/gpt-5-mini", options={"max_tokens": 40}
    )

    prompt: Annotated[str, StringConstraints(min_length=1)]
    model: ModelName | None = None
    options: Options = ChatOptions()

    def to_request(self) -> ChatRequest:
        return _build_request(self.model, (LlmMessage("user", (TextPart(self.prompt),)),), self.options)


class AtpBody(RequestModel):
    """An ATP message for a model. Its content is the prompt; the model never sees the header."""

    model_config = example_config(atpMessage=example_message(), model="openai/gpt-5-mini")

    atpMessage: Annotated[JsonObject, WithJsonSchema(MESSAGE_SCHEMA)]  # noqa: N815
    model: ModelName | None = None
    agentId: Name | None = None  # noqa: N815

    def to_message(self) -> AtpMessage:
        """Read the message. Raises MessageInvalid."""
        return json_format.read_nested_message("atpMessage", self.atpMessage)

    def to_request(self, message: AtpMessage) -> ChatRequest:
        return _build_request(
            self.model, (LlmMessage("user", (TextPart(strip_header(message.content)),)),), ChatOptions()
        )


class EmbedBody(RequestModel):
    model_config = example_config(text="Why is the sea salty?", model="openai/text-embedding-3-small")

    text: Annotated[str, StringConstraints(min_length=1)]
    model: ModelName


class ProviderOptions(RequestModel):
    default_model: Name | None = None


class ProviderBody(RequestModel):
    model_config = example_config(
        provider="acme",
        apiKey="the-key-of-this-provider",
        baseUrl="https://llm.example.com/v1",
        options={"default_model": "acme-large"},
    )

    provider: Provider
    apiKey: Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[!-~]+$")] | None = None  # noqa: N815
    baseUrl: Annotated[str, StringConstraints(min_length=1, max_length=2048)] | None = None  # noqa: N815
    format: FormatName | None = None
    options: Annotated[ProviderOptions, BeforeValidator(_options_object), WithJsonSchema({})] | None = None


class UsageOut(ResponseModel):
    input_tokens: int
    output_tokens: int
    estimated: bool = OmittedWhenFalse


class ChoiceOut(ResponseModel):
    """Why `auto` chose the model."""

    kind: str
    prefer: str
    why: str
    decision_id: str


class ChatOut(ResponseModel):
    model: str
    content: str
    usage: UsageOut
    finish_reason: str
    provenance_id: str
    degraded: bool = OmittedWhenFalse
    task_id: str | None = OmittedWhenNone
    routing: ChoiceOut | None = OmittedWhenNone


class AtpContext(ResponseModel):
    """The fields of the message's header, and again in `header`, as in every response to an ATP message."""

    model_config = ConfigDict(extra="allow")

    header: dict[str, str]


class AtpOut(ChatOut):
    atp: AtpContext


class EmbedOut(ResponseModel):
    model: str
    embedding: list[float]
    dimensions: int
    usage: UsageOut
    provenance_id: str
    degraded: bool = OmittedWhenFalse


class ModelOut(CamelCaseModel):
    id: str
    provider: str
    context_window: int | None = OmittedWhenNone
    max_output_tokens: int | None = OmittedWhenNone
    input_cost: float | None = OmittedWhenNone
    output_cost: float | None = OmittedWhenNone


class ProviderOut(CamelCaseModel):
    name: str
    format: str
    base_url: str
    api_key_configured: bool
    api_key: str | None
    default_model: Annotated[str | None, Field(alias="default_model")]


class RemovedOut(ResponseModel):
    name: str
    removed: bool


class ProviderState(ProviderOut):
    reachable: Annotated[bool, Field(alias="reachable", validation_alias="is_reachable")]
    latency_ms: Annotated[int, Field(alias="latency_ms")]


class StateOut(ResponseModel):
    name: str
    reachable: Annotated[bool, Field(validation_alias="is_reachable")]
    latency_ms: int
    models: int


class TimeoutsOut(ResponseModel):
    total_seconds: float
    stream_idle_seconds: float
    retries: int


class ConfigOut(CamelCaseModel):
    default_provider: str | None
    default_model: str | None
    timeouts: TimeoutsOut
    fallbacks: dict[str, list[str]]
    groups: list[str]
    budgets: list[str]
    local_baseline: bool
    providers: list[StateOut]


class Totals(CamelCaseModel):
    requests: int
    total_tokens: int
    input_tokens: int
    output_tokens: int
    estimated_cost: float


class UsageReport(CamelCaseModel):
    total_requests: int
    total_tokens: int
    input_tokens: int
    output_tokens: int
    estimated_cost: float
    estimated_requests: int
    unpriced_requests: int
    by_provider: dict[str, Totals]
    by_model: dict[str, Totals]
    by_day: dict[str, Totals]


def date_bounds_micros(start: date | None, end: date | None) -> tuple[int, int]:
    """Return the microseconds of the start of `start` (included) and of the end of `end` (excluded).

    Raises InvalidRequest if `end` is before `start`.
    """
    if start and end and end < start:
        raise InvalidRequest("startDate is after endDate.", {"fields": {"startDate": "is after endDate"}})
    first_us = (start - EPOCH).days * DAY if start else 0
    return first_us, ((end - EPOCH).days + 1) * DAY if end else MAX_MICROS


def build_usage_report(rows: Sequence[UsageRow]) -> UsageReport:
    """Sum up usage in total and by provider, model and day."""
    total = _sum_up(rows)
    return UsageReport(
        total_requests=total.requests,
        total_tokens=total.total_tokens,
        input_tokens=total.input_tokens,
        output_tokens=total.output_tokens,
        estimated_cost=total.estimated_cost,
        estimated_requests=sum(row.estimated for row in rows),
        unpriced_requests=sum(row.unpriced for row in rows),
        by_provider=_sum_up_by((row.provider, row) for row in rows),
        by_model=_sum_up_by((f"{row.provider}/{row.model}", row) for row in rows),
        by_day=_sum_up_by(((EPOCH + timedelta(days=row.day)).isoformat(), row) for row in rows),
    )


def _sum_up_by(pairs: Iterable[tuple[str, UsageRow]]) -> dict[str, Totals]:
    groups: defaultdict[str, list[UsageRow]] = defaultdict(list)
    for name, row in pairs:
        groups[name].append(row)
    return {name: _sum_up(rows) for name, rows in groups.items()}


def _sum_up(rows: Sequence[UsageRow]) -> Totals:
    input_tokens, output_tokens = sum(row.input_tokens for row in rows), sum(row.output_tokens for row in rows)
    return Totals(
        requests=sum(row.requests for row in rows),
        total_tokens=input_tokens + output_tokens,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        estimated_cost=round(sum(row.cost for row in rows) / NANOS_PER_DOLLAR, 9),
    )


def _build_request(name: str | None, messages: tuple[LlmMessage, ...], options: ChatOptions) -> ChatRequest:
    return ChatRequest(
        name or "",
        messages,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        stop=tuple(options.stop),
        seed=options.seed,
        prefer=options.prefer or "",
    )
