"""Parse OpenAI-compatible requests: chat completions, text completions and embeddings. No I/O.

Unknown fields are ignored, as OpenAI's clients expect; known fields have the types of OpenAI's API. Requests of
/v1/responses are in `responses_request`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.core.validation_errors import list_errors
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
"""Fields that are sent to OpenAI-compatible providers unchanged; the other formats do not support them."""
ROLES: dict[str, ChatRole] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
ROLES_REQUIRING_FIELD = {"content": ("system", "developer", "user", "tool"), "tool_call_id": ("tool",)}
"""Roles by field that their messages must have; a message of the assistant may have only calls."""
B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list that is read up to its first error: otherwise a million wrong items would give a million errors."""
FieldPath = tuple[int | str, ...]


class OpenAiModel(BaseModel):
    """Base of the models of OpenAI's API."""

    # defer_build: building all validators at import takes longer than importing the rest of the gateway.
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
        raise InvalidRequest(f"Content of type {self.type!r} is not supported. Use text or image_url.")


class CalledFunctionIn(OpenAiModel):
    name: str
    arguments: str = "{}"


class ToolCallIn(OpenAiModel):
    id: str
    function: CalledFunctionIn
    extra_content: JsonObject | None = None

    def to_tool_call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments, extract_signature(self.extra_content))


class ChatMessageIn(OpenAiModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | Items[ContentPartIn] | None, Field(validate_default=True)] = None
    tool_calls: Items[ToolCallIn] | None = None
    tool_call_id: Annotated[str | None, Field(validate_default=True)] = None
    reasoning_content: Any = None

    @field_validator("content", "tool_call_id")
    @classmethod
    def _require_for_role(cls, value: Any, info: ValidationInfo) -> Any:
        return require_value(value, needed=info.data.get("role") in ROLES_REQUIRING_FIELD[str(info.field_name)])

    def to_message(self) -> LlmMessage:
        calls = tuple(call.to_tool_call() for call in self.tool_calls or ())
        # Not a field of OpenAI's, so another type is no error.
        reasoning = self.reasoning_content if isinstance(self.reasoning_content, str) else ""
        return LlmMessage(ROLES[self.role], to_parts(self.content), calls, self.tool_call_id or "", reasoning)


class FunctionDefinitionIn(OpenAiModel):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    def to_tool(self) -> ToolDefinition:
        return ToolDefinition(self.name, self.description or "", self.parameters, self.strict)


class ChatToolIn(OpenAiModel):
    type: Literal["function"]
    function: FunctionDefinitionIn


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
"""The gateway returns one reply per request."""


class StreamableIn(OpenAiModel):
    stream: bool | None = None
    stream_options: StreamOptionsIn | None = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ConversationIn(OpenAiModel):
    id: Name


class ChatCompletionIn(StreamableIn):
    """`conversation` is the id of a session, as in OpenAI's responses."""

    model: Name
    messages: Annotated[list[ChatMessageIn], Field(min_length=1, max_length=10_000)]
    temperature: Temperature = None
    top_p: TopP = None
    max_tokens: MaxTokens = None
    max_completion_tokens: MaxTokens = None
    stop: str | Items[str] | None = None
    seed: int | None = None
    n: ExactlyOne = None
    tools: Items[ChatToolIn] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatToolChoiceIn | None = None
    response_format: JsonObject | None = None
    conversation: Name | ConversationIn | None = None

    def to_request(self, raw: JsonObject) -> ChatRequest:
        choice = self.tool_choice.function.name if isinstance(self.tool_choice, ChatToolChoiceIn) else self.tool_choice
        return ChatRequest(
            self.model,
            tuple(message.to_message() for message in self.messages),
            # The newer name wins; each provider gets the name that it knows (`ProviderQuirks`).
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=_strings(self.stop),
            seed=self.seed,
            tools=tuple(tool.function.to_tool() for tool in self.tools or ()),
            tool_choice=choice or "",
            response_format=self.response_format,
            extra=passthrough_fields(raw),
        )


class TextCompletionIn(StreamableIn):
    model: Name
    prompt: str | Items[str]
    max_tokens: MaxTokens = None
    temperature: Temperature = None
    top_p: TopP = None
    stop: str | Items[str] | None = None
    seed: int | None = None
    n: ExactlyOne = None
    best_of: ExactlyOne = None
    echo: Literal[False] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None

    def to_request(self, raw: JsonObject) -> ChatRequest:
        prompts = _strings(self.prompt)
        if len(prompts) != 1:
            raise InvalidRequest(
                "A request must have exactly one prompt.", {"fields": {"prompt": "must be one string"}}
            )
        return ChatRequest(
            self.model,
            (LlmMessage("user", (TextPart(prompts[0]),)),),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=_strings(self.stop),
            seed=self.seed,
            extra=passthrough_fields(raw),
        )


_INPUT_LIMITS = Field(min_length=1, max_length=2048)
TextListIn = Annotated[Items[Annotated[str, Field(min_length=1)]], _INPUT_LIMITS]
TokenIdsIn = Annotated[Items[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1)]


class EmbeddingIn(OpenAiModel):
    model: Name
    input: str | TextListIn | TokenIdsIn | Annotated[Items[TokenIdsIn], _INPUT_LIMITS]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=65_536)] | None = None

    @property
    def inputs(self) -> list[EmbeddingInput]:
        """The inputs as a list; a list of numbers is the token ids of one text."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [tuple(self.input)]
        return [item if isinstance(item, str) else tuple(item) for item in cast(list[str | list[int]], self.input)]


def validate_body(model: type[B], raw: Any) -> B:
    """Validate a body. Raises RequestValidationError, as FastAPI does for other routes."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise RequestValidationError(describe_validation_errors(error, raw)) from None


def passthrough_fields(raw: JsonObject) -> JsonObject:
    return {name: value for name, value in raw.items() if name in PASSTHROUGH_FIELDS and value is not None}


def require_value(value: Any, *, needed: bool) -> Any:
    """Return a value. Raises the error of a missing field if it is needed and null or absent."""
    if needed and value is None:
        raise PydanticKnownError("missing")
    return value


def to_parts(content: str | list[ContentPartIn] | None) -> tuple[ContentPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(part.to_part() for part in content or ())


def _strings(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def describe_validation_errors(error: ValidationError, raw: Any) -> list[JsonObject]:
    """Return the messages by field, under the names that the client used.

    pydantic reports the errors of every member of a union. A member of another type than the value is left out where a
    member of the same type has an error further inside.
    """
    entries = [
        (
            _field_path(entry["loc"], raw, entry["type"]),
            entry["msg"],
            entry["type"].endswith(("_type", "literal_error")),
        )
        for entry in list_errors(error)
    ]
    parents = {path[:end] for path, _, _ in entries for end in range(len(path))}
    messages_by_path: dict[FieldPath, dict[str, None]] = {}  # dicts as ordered sets
    for path, message, is_type_error in sorted(entries, key=lambda entry: entry[2]):
        if not is_type_error or path not in parents:
            messages_by_path.setdefault(path, {})[message] = None
    return [{"loc": ("body", *path), "msg": ", or: ".join(messages)} for path, messages in messages_by_path.items()]


def _field_path(loc: FieldPath, raw: Any, error_type: str) -> FieldPath:
    """Return the path of an error in the body, without pydantic's names for the members of a union."""
    path: list[int | str] = []
    value: Any = raw
    for position, part in enumerate(loc, 1):
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if inside:
            path.append(part)
            value = value[part]
        elif isinstance(value, dict) and error_type == "missing" and position == len(loc):
            # An invalid default is reported under the name of the attribute, such as schema_, not under its alias.
            path.append(str(part).removesuffix("_"))
    return tuple(path)
