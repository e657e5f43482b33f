"""Requests in OpenAI's dialect, as the neutral form. Unknown fields are passed over, as OpenAI's clients expect; those
that are known have the types that OpenAI gives them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from stentor.core.errors import InvalidRequest
from stentor.domains.llm.formats import without_none
from stentor.domains.llm.formats.openai import signature_in
from stentor.domains.llm.model import EmbeddingInput, Image, Message, Part, Request, Role, Text, Tool, ToolCall
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
Place = tuple[int | str, ...]


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
        if given is None and info.data.get("role") in NEEDED[str(info.field_name)]:
            raise PydanticKnownError("missing")
        return given

    def message(self) -> Message:
        calls = tuple(call.call() for call in self.tool_calls or ())
        return Message(ROLES[self.role], _parts(self.content), calls, self.tool_call_id or "")


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


Several = Field(min_length=1, max_length=2048, fail_fast=True)
"""Without `fail_fast` each of a million tokens would be a flaw of a list of texts."""
Texts = Annotated[list[Annotated[str, Field(min_length=1)]], Several]
TokensIn = Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1, fail_fast=True)]


class EmbeddingIn(In):
    model: Name
    input: str | Texts | TokensIn | Annotated[list[TokensIn], Several]
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


class ItemIn(In):
    """A message among a response's input."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[PartIn]


class TextFormat(In):
    """What the text of a response is to be; chat calls it `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str | None, Field(min_length=1, max_length=64, validate_default=True)] = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema", validate_default=True)] = None
    strict: bool | None = None

    @field_validator("name", "schema_")
    @classmethod
    def _there(cls, given: Any, info: ValidationInfo) -> Any:
        if given is None and info.data.get("type") == "json_schema":
            raise PydanticKnownError("missing")
        return given

    @property
    def described(self) -> dict[str, Any]:
        """The format in its own words; only a schema has more than its type."""
        if self.type != "json_schema":
            return {"type": self.type}
        more = without_none(description=self.description, strict=self.strict)
        return {"type": self.type, "name": self.name, "schema": self.schema_, **more}

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The same in chat's words; None for plain text."""
        if self.type != "json_schema":
            return None if self.type == "text" else {"type": self.type}
        inner = self.described
        return {"type": inner.pop("type"), "json_schema": inner}


class TextOptions(In):
    format: TextFormat | None = None


class ResponseIn(In):
    model: Name
    input: str | Annotated[list[ItemIn], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Limit = None
    temperature: Temperature = None
    top_p: Share = None
    stream: bool | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    previous_response_id: None = None
    metadata: dict[str, str] | None = None
    text: TextOptions | None = None

    @property
    def format(self) -> TextFormat:
        return (self.text and self.text.format) or TextFormat(type="text")

    def request(self) -> Request:
        head = [Message("system", (Text(self.instructions),))] if self.instructions else []
        items = [ItemIn(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        said = [Message(ROLES[item.role], _parts(item.content)) for item in items]
        return Request(
            self.model,
            (*head, *said),
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            response_format=self.format.response_format,
        )


def read(kind: type[B], raw: Any) -> B:
    """Raises RequestValidationError, which is rendered like that of any route."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise RequestValidationError(_flaws(error, raw)) from None


def passed(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name in PASSED and value is not None}


def _flaws(error: ValidationError, raw: Any) -> list[dict[str, Any]]:
    """What is wrong with each field. A member of a union that is of another kind than the value says nothing where a
    member of the same kind found a flaw further inside.
    """
    found = [
        (_place(one["loc"], raw, one["type"]), one["msg"], one["type"].endswith(("_type", "literal_error")))
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    around = {place[:end] for place, _, _ in found for end in range(len(place))}
    said: dict[Place, dict[str, None]] = {}
    for place, message, other_kind in sorted(found, key=lambda flaw: flaw[2]):
        if not other_kind or place not in around:
            said.setdefault(place, {})[message] = None
    return [{"loc": ("body", *place), "msg": ", or: ".join(messages)} for place, messages in said.items()]


def _place(loc: Place, raw: Any, kind: str) -> Place:
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


def _parts(content: str | list[PartIn] | None) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(part.part() for part in content or ())


def _texts(given: str | list[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())
