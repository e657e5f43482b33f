"""Requests for chat completions in OpenAI's format. No I/O.

Unknown fields are passed on to providers of the same format; known fields have the types of OpenAI's API. Replies are
in `chat_output`, text completions and embeddings in `completions`, /v1/responses in `responses_request`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats.openai import extract_signature
from stentor.domains.llm.model import (
    ChatRequest,
    ChatRole,
    ContentPart,
    ImagePart,
    LlmMessage,
    OpenAiPart,
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
"""Fields of all routes that OpenAI-compatible providers get unchanged; the other formats do not support them."""
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
UNSUPPORTED_FIELDS = {
    "logprobs": "log probabilities are not supported in text completions",
    "functions": "is not supported: send tools",
    "function_call": "is not supported: send tool_choice",
}
"""Reason by field that must be absent, null, false, 0 or empty; function_call may also be "none"."""
T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list that is read up to its first error: otherwise a million wrong items would give a million errors."""


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


class FileIn(OpenAiModel):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class InputAudioIn(OpenAiModel):
    data: str
    format: str


class ChatPartIn(ContentPartIn):
    model_config = ConfigDict(extra="allow")

    file: FileIn | None = None
    input_audio: InputAudioIn | None = None

    def to_part(self) -> ContentPart:
        extra, part = unknown_fields(self), self._file_or_sound() or super().to_part()
        return msgspec.structs.replace(part, extra=extra) if extra else part

    def _file_or_sound(self) -> OpenAiPart | None:
        fields = {"file": self.file, "input_audio": self.input_audio}.get(self.type)
        return OpenAiPart(self.type, fields.model_dump(exclude_none=True)) if fields else None


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
    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | Items[ChatPartIn] | None, Field(validate_default=True)] = None
    refusal: str | None = None
    tool_calls: Items[ToolCallIn] | None = None
    tool_call_id: Annotated[str | None, Field(validate_default=True)] = None
    reasoning_content: Any = None

    @field_validator("content", "tool_call_id")
    @classmethod
    def _require_for_role(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.data.get("role") in ROLES_REQUIRING_FIELD[str(info.field_name)]:
            raise PydanticKnownError("missing")
        return value

    def to_message(self) -> LlmMessage:
        calls = tuple(call.to_tool_call() for call in self.tool_calls or ())
        # Not one of OpenAI's fields, so another type is not an error.
        reasoning = self.reasoning_content if isinstance(self.reasoning_content, str) else ""
        # A refusal that a client sends back has no content, which some providers do not accept.
        content = to_parts(self.content or self.refusal or self.content)
        return LlmMessage(ROLES[self.role], content, calls, self.tool_call_id or "", reasoning, unknown_fields(self))


class FunctionDefinitionIn(OpenAiModel):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    cache_control: Any = None

    def to_tool(self) -> ToolDefinition:
        return ToolDefinition(self.name, self.description or "", self.parameters, self.strict)


class ChatToolIn(OpenAiModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: FunctionDefinitionIn

    def to_tool(self) -> ToolDefinition:
        extra = unknown_fields(self)
        if mark := self.function.cache_control:
            # Where clients of LiteLLM put it: for Anthropic, as one next to the function, and for no other provider.
            extra["function"] = {"cache_control": mark}
        return msgspec.structs.replace(self.function.to_tool(), extra=extra)


class FunctionNameIn(OpenAiModel):
    name: str


class ChatToolChoiceIn(OpenAiModel):
    type: Literal["function"]
    function: FunctionNameIn


class AllowedToolsIn(OpenAiModel):
    mode: Literal["auto", "required"]
    tools: Annotated[Items[ChatToolChoiceIn], Field(min_length=1)]


class AllowedToolsChoiceIn(OpenAiModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolsIn


class StreamOptionsIn(OpenAiModel):
    include_usage: bool | None = None


Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None
TopP = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None
MaxTokens = Annotated[int, Field(ge=1, le=10_000_000)] | None
ExactlyOne = Annotated[int, Field(ge=1, le=1)] | None
"""The gateway returns one reply per request."""


def _reject_unsupported(value: Any, info: ValidationInfo) -> None:
    # Not ignored like unknown fields: a client that sends them reads in the reply what no reply has here.
    # "none" is OpenAI's default without functions.
    if value and not (info.field_name == "function_call" and value == "none"):
        raise PydanticCustomError("unsupported", "{reason}", {"reason": UNSUPPORTED_FIELDS[str(info.field_name)]})


Unsupported = Annotated[Any, AfterValidator(_reject_unsupported)]


class CompletionIn(OpenAiModel):
    """What requests for chat and text completions share.

    The fields after `seed` are passed on as they are, to providers that know them; here only for their types. How many
    stop sequences are too many depends on the provider.
    """

    model: Name
    stream: bool | None = None
    stream_options: StreamOptionsIn | None = None
    max_tokens: MaxTokens = None
    temperature: Temperature = None
    top_p: TopP = None
    stop: str | Items[str] | None = None
    n: ExactlyOne = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    user: str | None = None
    metadata: JsonObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ConversationIn(OpenAiModel):
    id: Name


class ChatCompletionIn(CompletionIn):
    """`conversation` is the id of a session, as in OpenAI's responses."""

    messages: Annotated[list[ChatMessageIn], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: MaxTokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    functions: Unsupported = None
    function_call: Unsupported = None
    tools: Items[ChatToolIn] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatToolChoiceIn | AllowedToolsChoiceIn | None = None
    response_format: JsonObject | None = None
    conversation: Name | ConversationIn | None = None

    def to_request(self, raw: JsonObject, *, one_model: bool = False) -> ChatRequest:
        """Convert to a chat request. `raw` is the body as it was sent.

        `one_model` leaves out the fields that may have the provider use another model than the one that was checked.
        """
        tools, choice = self._tools_and_choice(one_model=one_model)
        return ChatRequest(
            self.model,
            tuple(message.to_message() for message in self.messages),
            # The newer name wins; each provider gets the name that it knows (`ProviderQuirks`).
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=as_strings(self.stop),
            seed=self.seed,
            tools=tools,
            tool_choice=choice,
            response_format=self.response_format,
            extra={
                name: value
                for name, value in raw.items()
                if value is not None and (name in _ONE_MODEL_FIELDS if one_model else name not in _KEPT_FIELDS)
            }
            | self._logprob_fields,
        )

    def _tools_and_choice(self, *, one_model: bool) -> tuple[tuple[ToolDefinition, ...], str]:
        """Return the tools that the model may call, as in `responses_request`, and the tool choice.

        Raises InvalidRequest.
        """
        tools = [tool.function.to_tool() if one_model else tool.to_tool() for tool in self.tools or ()]
        choice = self.tool_choice
        if isinstance(choice, ChatToolChoiceIn):
            return tuple(tools), choice.function.name
        if not isinstance(choice, AllowedToolsChoiceIn):
            return tuple(tools), choice or ""
        names = {tool.function.name for tool in choice.allowed_tools.tools}
        if missing := names - {tool.name for tool in tools}:
            raise InvalidRequest.of_field("tool_choice", f"the function {min(missing)!r} is not in tools")
        return tuple(tool for tool in tools if tool.name in names), choice.allowed_tools.mode

    @property
    def _logprob_fields(self) -> JsonObject:
        # Not `"logprobs": false`, the default, which some servers refuse.
        fields: JsonObject = {"logprobs": True} if self.logprobs else {}
        return fields | ({"top_logprobs": self.top_logprobs} if self.top_logprobs else {})


_KEPT_FIELDS = (frozenset(ChatCompletionIn.model_fields) - PASSTHROUGH_FIELDS) | {
    *("apiKey", "api_key", "baseUrl", "base_url", "api_base")
}
"""Fields that the neutral request has, that are refused if they ask for something, or that the operator configures."""
_ONE_MODEL_FIELDS = PASSTHROUGH_FIELDS | {
    *("audio", "modalities", "prediction", "prompt_cache_options", "prompt_cache_retention", "web_search_options")
}
"""Fields that choose no other model than `model`, unlike `models` of OpenRouter."""


def unknown_fields(model: BaseModel) -> JsonObject:
    """Return the fields that a model does not declare and that say something.

    A client sends the assistant's message back as it read it, with empty fields that some servers refuse.
    """
    return {name: value for name, value in (model.model_extra or {}).items() if value not in (None, "", [], {})}


def passthrough_fields(raw: JsonObject) -> JsonObject:
    return {name: value for name, value in raw.items() if name in PASSTHROUGH_FIELDS and value is not None}


def to_parts(content: str | Sequence[ContentPartIn] | None) -> tuple[ContentPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(part.to_part() for part in content or ())


def as_strings(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())
