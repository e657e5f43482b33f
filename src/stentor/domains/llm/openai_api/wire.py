"""Requests in OpenAI's dialect, as the neutral form. Unknown fields are passed over, as OpenAI's clients expect; those
that are known have the types that OpenAI gives them.

A request for embeddings in OpenAI's dialect.

What is wrong with a body, under the names that its sender gave to the fields. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from stentor.core.errors import InvalidRequest
from stentor.domains.llm.formats.openai import extract_signature
from stentor.domains.llm.model import (
    ChatRequest,
    ChatRole,
    ContentPart,
    EmbeddingInput,
    ImagePart,
    LlmMessage,
    TextPart,
    ToolCall,
    ToolDefinition,
)
from stentor.web.wire import Name

PASSTHROUGH_FIELDS = frozenset(
    "presence_penalty frequency_penalty logit_bias user metadata parallel_tool_calls reasoning_effort verbosity "
    "service_tier store safety_identifier prompt_cache_key top_k min_p repetition_penalty reasoning thinking "
    "enable_thinking chat_template_kwargs".split()
)
"""What goes to OpenAI-compatible providers as it came; other formats have no word for it."""
ROLES: dict[str, ChatRole] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
ROLES_REQUIRING_FIELD = {"content": ("system", "developer", "user", "tool"), "tool_call_id": ("tool",)}
"""The roles whose messages have to have a field; what a model said may be nothing but calls."""
B = TypeVar("B", bound=BaseModel)


class OpenAiModel(BaseModel):
    """Built at its first use: together they take longer than the rest of the gateway to import."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, defer_build=True)


class ImageUrlIn(OpenAiModel):
    url: str
    detail: str | None = None


class ContentPartIn(OpenAiModel):
    type: str
    text: str | None = None
    image_url: ImageUrlIn | str | None = None
    refusal: str | None = None

    def to_part(self) -> ContentPart:
        if self.type in ("text", "input_text", "output_text") and self.text is not None:
            return TextPart(self.text)
        if self.type == "refusal" and self.refusal is not None:
            return TextPart(self.refusal)
        if self.type in ("image_url", "input_image") and self.image_url:
            url = self.image_url
            return ImagePart.from_url(url) if isinstance(url, str) else ImagePart.from_url(url.url, url.detail or "")
        raise InvalidRequest(f"Content of the type {self.type!r} is not supported: text and image_url are.")


class CalledFunctionIn(OpenAiModel):
    name: str
    arguments: str = "{}"


class ToolCallIn(OpenAiModel):
    id: str
    function: CalledFunctionIn
    extra_content: dict[str, Any] | None = None

    def to_tool_call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments, extract_signature(self.extra_content))


class ChatMessageIn(OpenAiModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | list[ContentPartIn] | None, Field(validate_default=True)] = None
    tool_calls: list[ToolCallIn] | None = None
    tool_call_id: Annotated[str | None, Field(validate_default=True)] = None

    @field_validator("content", "tool_call_id")
    @classmethod
    def _there(cls, given: Any, info: ValidationInfo) -> Any:
        return require_value(given, needed=info.data.get("role") in ROLES_REQUIRING_FIELD[str(info.field_name)])

    def to_message(self) -> LlmMessage:
        calls = tuple(call.to_tool_call() for call in self.tool_calls or ())
        return LlmMessage(ROLES[self.role], to_parts(self.content), calls, self.tool_call_id or "")


class FunctionDefinitionIn(OpenAiModel):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatToolIn(OpenAiModel):
    type: Literal["function"]
    function: FunctionDefinitionIn

    def to_tool(self) -> ToolDefinition:
        given = self.function
        return ToolDefinition(given.name, given.description or "", given.parameters, given.strict)


class FunctionNameIn(OpenAiModel):
    name: str


class ChatToolChoiceIn(OpenAiModel):
    type: Literal["function"]
    function: FunctionNameIn


class StreamOptionsIn(OpenAiModel):
    include_usage: bool | None = None


Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None
TopP = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None
MaxTokens = Annotated[int, Field(ge=1, le=10_000_000)] | None
ExactlyOne = Annotated[int, Field(ge=1, le=1)] | None
"""Only one answer per request."""


class ChatCompletionIn(OpenAiModel):
    model: Name
    messages: Annotated[list[ChatMessageIn], Field(min_length=1, max_length=10_000)]
    temperature: Temperature = None
    top_p: TopP = None
    max_tokens: MaxTokens = None
    max_completion_tokens: MaxTokens = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: ExactlyOne = None
    tools: list[ChatToolIn] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatToolChoiceIn | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptionsIn | None = None

    def to_request(self, raw: dict[str, Any]) -> ChatRequest:
        choice = self.tool_choice.function.name if isinstance(self.tool_choice, ChatToolChoiceIn) else self.tool_choice
        return ChatRequest(
            self.model,
            tuple(message.to_message() for message in self.messages),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=_texts(self.stop),
            seed=self.seed,
            tools=tuple(tool.to_tool() for tool in self.tools or ()),
            tool_choice=choice or "",
            response_format=self.response_format,
            extra=passthrough_fields(raw),
        )

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class TextCompletionIn(OpenAiModel):
    model: Name
    prompt: str | list[str]
    max_tokens: MaxTokens = None
    temperature: Temperature = None
    top_p: TopP = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: ExactlyOne = None
    best_of: ExactlyOne = None
    echo: Literal[False] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptionsIn | None = None

    def to_request(self, raw: dict[str, Any]) -> ChatRequest:
        texts = _texts(self.prompt)
        if len(texts) != 1:
            raise InvalidRequest("One request completes one prompt.", {"fields": {"prompt": "must be one text"}})
        return ChatRequest(
            self.model,
            (LlmMessage("user", (TextPart(texts[0]),)),),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=_texts(self.stop),
            seed=self.seed,
            extra=passthrough_fields(raw),
        )

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def validate_body(kind: type[B], raw: Any) -> B:
    """Raises RequestValidationError, which is rendered like that of any route."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise RequestValidationError(describe_validation_errors(error, raw)) from None


def passthrough_fields(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name in PASSTHROUGH_FIELDS and value is not None}


def require_value(value: Any, *, needed: bool) -> Any:
    if needed and value is None:
        raise PydanticKnownError("missing")
    return value


def to_parts(content: str | list[ContentPartIn] | None) -> tuple[ContentPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(part.to_part() for part in content or ())


def _texts(given: str | list[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


MAX_INPUTS = Field(min_length=1, max_length=2048, fail_fast=True)
"""Without `fail_fast` each of a million tokens would be a flaw of a list of texts."""
TextListIn = Annotated[list[Annotated[str, Field(min_length=1)]], MAX_INPUTS]
TokenIdsIn = Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1, fail_fast=True)]


class EmbeddingIn(OpenAiModel):
    model: Name
    input: str | TextListIn | TokenIdsIn | Annotated[list[TokenIdsIn], MAX_INPUTS]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=65_536)] | None = None

    @property
    def inputs(self) -> list[EmbeddingInput]:
        """A list of numbers is the tokens of one text."""
        given = self.input
        if isinstance(given, str):
            return [given]
        if isinstance(given[0], int):
            return [tuple(given)]
        return [one if isinstance(one, str) else tuple(one) for one in cast(list[str | list[int]], given)]


FieldPath = tuple[int | str, ...]


def describe_validation_errors(error: ValidationError, raw: Any) -> list[dict[str, Any]]:
    """What is wrong with each field. A member of a union that is of another kind than the value says nothing where a
    member of the same kind found a flaw further inside.
    """
    found = [
        (_field_path(one["loc"], raw, one["type"]), one["msg"], one["type"].endswith(("_type", "literal_error")))
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    around = {place[:end] for place, _, _ in found for end in range(len(place))}
    said: dict[FieldPath, dict[str, None]] = {}
    for place, message, other_kind in sorted(found, key=lambda flaw: flaw[2]):
        if not other_kind or place not in around:
            said.setdefault(place, {})[message] = None
    return [{"loc": ("body", *place), "msg": ", or: ".join(messages)} for place, messages in said.items()]


def _field_path(loc: FieldPath, raw: Any, kind: str) -> FieldPath:
    """Where in the body that is, without the names that pydantic gives to the members of a union."""
    found: list[int | str] = []
    value: Any = raw
    for at, part in enumerate(loc, 1):
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if inside:
            found.append(part)
            value = value[part]
        elif isinstance(value, dict) and kind == "missing" and at == len(loc):
            # A default that was refused has the name of our own, such as schema_.
            found.append(str(part).removesuffix("_"))
    return tuple(found)
