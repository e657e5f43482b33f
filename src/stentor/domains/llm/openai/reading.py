"""Requests in OpenAI's dialect, as the neutral form. Unknown fields are passed over, as OpenAI's clients expect; those
that are known have the types that OpenAI gives them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from stentor.core.errors import InvalidRequest
from stentor.domains.llm.formats.openai import signature_in
from stentor.domains.llm.model import Image, Message, Part, Request, Role, Text, Tool, ToolCall
from stentor.domains.llm.openai.flaws import flaws
from stentor.web.wire import Name

PASSED = frozenset(
    "presence_penalty frequency_penalty logit_bias user metadata parallel_tool_calls reasoning_effort verbosity "
    "service_tier store safety_identifier prompt_cache_key top_k min_p repetition_penalty reasoning thinking "
    "enable_thinking chat_template_kwargs".split()
)
"""What goes to OpenAI-compatible providers as it came; other formats have no word for it."""
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
NEEDED = {"content": ("system", "developer", "user", "tool"), "tool_call_id": ("tool",)}
"""The roles whose messages have to have a field; what a model said may be nothing but calls."""
B = TypeVar("B", bound=BaseModel)


class In(BaseModel):
    """Built at its first use: together they take longer than the rest of the gateway to import."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, defer_build=True)


class ImageUrl(In):
    url: str
    detail: str | None = None


class PartIn(In):
    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None

    def part(self) -> Part:
        if self.type in ("text", "input_text", "output_text") and self.text is not None:
            return Text(self.text)
        if self.type == "refusal" and self.refusal is not None:
            return Text(self.refusal)
        if self.type in ("image_url", "input_image") and self.image_url:
            url = self.image_url
            return Image.of(url) if isinstance(url, str) else Image.of(url.url, url.detail or "")
        raise InvalidRequest(f"Content of the type {self.type!r} is not supported: text and image_url are.")


class FunctionIn(In):
    name: str
    arguments: str = "{}"


class CallIn(In):
    id: str
    function: FunctionIn
    extra_content: dict[str, Any] | None = None

    def call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments, signature_in(self.extra_content))


class MessageIn(In):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | list[PartIn] | None, Field(validate_default=True)] = None
    tool_calls: list[CallIn] | None = None
    tool_call_id: Annotated[str | None, Field(validate_default=True)] = None

    @field_validator("content", "tool_call_id")
    @classmethod
    def _there(cls, given: Any, info: ValidationInfo) -> Any:
        return required(given, needed=info.data.get("role") in NEEDED[str(info.field_name)])

    def message(self) -> Message:
        calls = tuple(call.call() for call in self.tool_calls or ())
        return Message(ROLES[self.role], parts(self.content), calls, self.tool_call_id or "")


class FunctionOut(In):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolIn(In):
    type: Literal["function"]
    function: FunctionOut

    def tool(self) -> Tool:
        given = self.function
        return Tool(given.name, given.description or "", given.parameters, given.strict)


class Named(In):
    name: str


class ChoiceIn(In):
    type: Literal["function"]
    function: Named


class StreamOptions(In):
    include_usage: bool | None = None


Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None
Limit = Annotated[int, Field(ge=1, le=10_000_000)] | None
One = Annotated[int, Field(ge=1, le=1)] | None
"""Only one answer per request."""


class ChatIn(In):
    model: Name
    messages: Annotated[list[MessageIn], Field(min_length=1, max_length=10_000)]
    temperature: Temperature = None
    top_p: Share = None
    max_tokens: Limit = None
    max_completion_tokens: Limit = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: One = None
    tools: list[ToolIn] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChoiceIn | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def request(self, raw: dict[str, Any]) -> Request:
        choice = self.tool_choice.function.name if isinstance(self.tool_choice, ChoiceIn) else self.tool_choice
        return Request(
            self.model,
            tuple(message.message() for message in self.messages),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=_texts(self.stop),
            seed=self.seed,
            tools=tuple(tool.tool() for tool in self.tools or ()),
            tool_choice=choice or "",
            response_format=self.response_format,
            extra=passed(raw),
        )

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionIn(In):
    model: Name
    prompt: str | list[str]
    max_tokens: Limit = None
    temperature: Temperature = None
    top_p: Share = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: One = None
    best_of: One = None
    echo: Literal[False] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def request(self, raw: dict[str, Any]) -> Request:
        texts = _texts(self.prompt)
        if len(texts) != 1:
            raise InvalidRequest("One request completes one prompt.", {"fields": {"prompt": "must be one text"}})
        return Request(
            self.model,
            (Message("user", (Text(texts[0]),)),),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=_texts(self.stop),
            seed=self.seed,
            extra=passed(raw),
        )

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def read(kind: type[B], raw: Any) -> B:
    """Raises RequestValidationError, which is rendered like that of any route."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise RequestValidationError(flaws(error, raw)) from None


def passed(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name in PASSED and value is not None}


def required(value: Any, *, needed: bool) -> Any:
    if needed and value is None:
        raise PydanticKnownError("missing")
    return value


def parts(content: str | list[PartIn] | None) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(part.part() for part in content or ())


def _texts(given: str | list[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())
