"""Parse requests of /v1/messages. No I/O.

A request becomes a neutral one, for providers of every format, and keeps its original for providers of Anthropic's.
Unknown fields reach only the latter; a block or a tool that no other format has is rejected by the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from stentor.core import jsontext
from stentor.core.errors import Forbidden
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.model import (
    AnthropicOriginal,
    ChatRequest,
    ContentPart,
    ImagePart,
    LlmMessage,
    TextPart,
    ToolCall,
    ToolDefinition,
    decode_call_id,
)
from stentor.domains.llm.openai_api.chat import Items, MaxTokens, Temperature, TopP
from stentor.domains.llm.token_estimates import IMAGE_TOKENS, estimate_fields, estimate_tokens
from stentor.web.wire import Name

_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_NEUTRAL_FIELDS = frozenset("model max_tokens temperature top_p stop_sequences stream".split())
"""Fields that the neutral request has; all others are kept as the client sent them."""
_ONE_MODEL_FIELDS = _NEUTRAL_FIELDS | set(
    "cache_control container context_management diagnostics inference_geo mcp_servers messages metadata output_config "
    "output_format service_tier speed system thinking tool_choice tools top_k".split()
)
"""Fields that choose no other model than `model`, unlike `models` of OpenRouter."""
_ONE_MODEL_TOOLS = (
    "bash_",
    "code_execution_",
    "computer_",
    "mcp_toolset",
    "memory_",
    "text_editor_",
    "tool_search_tool_",
    "web_fetch_",
    "web_search_",
)
"""How the types of Anthropic's tools begin that call no other model, unlike its advisor and tools of OpenRouter."""
NotNegative = Annotated[int, Field(ge=0, lt=2**31)] | None


class AnthropicModel(BaseModel):
    """Base of the models of Anthropic's API."""

    # As for OpenAI's models: unknown fields are accepted, and the validators are built at the first request.
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, defer_build=True)


class AnthropicInput(AnthropicModel):
    """A block or a tool, whose unknown fields a provider of the same format gets and bills."""

    model_config = ConfigDict(extra="allow")


class TextBlock(AnthropicInput):
    type: Literal["text"]
    text: str


class ImageSource(AnthropicModel):
    """`type` is base64 or url; any other is of files that are at Anthropic."""

    type: str
    media_type: str = "image/png"
    data: str = ""
    url: str = ""


class ImageBlock(AnthropicInput):
    type: Literal["image"]
    source: ImageSource

    def to_part(self) -> ImagePart:
        return ImagePart(self.source.url, self.source.media_type if not self.source.url else "", self.source.data)


class ToolUseBlock(AnthropicInput):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject

    def to_tool_call(self) -> ToolCall:
        id_, signature = decode_call_id(self.id)
        return ToolCall(id_, self.name, jsontext.dump(self.input), signature)


class ThinkingBlock(AnthropicModel):
    type: Literal["thinking"]
    thinking: str


class OtherBlock(AnthropicInput):
    """Any other block, such as a document or the result of a tool that runs at Anthropic."""

    type: str

    @property
    def estimated_tokens(self) -> int:
        """Tokens of the text in the block; a file counts as an image, whatever its size."""
        extra = self.model_extra or {}
        source = extra.get("source")
        is_file = isinstance(source, dict) and source.get("type") in ("base64", "url", "file")
        return IMAGE_TOKENS if is_file else estimate_tokens(repr(extra))


def _tag(block: Any) -> str:
    type_ = block.get("type") if isinstance(block, dict) else None
    return type_ if type_ in ("text", "image", "tool_use", "tool_result", "thinking") else "other"


ResultBlockIn = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[ImageBlock, Tag("image")] | Annotated[OtherBlock, Tag("other")],
    Discriminator(lambda block: tag if (tag := _tag(block)) in ("text", "image") else "other"),
]


class ToolResultBlock(AnthropicInput):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Items[ResultBlockIn] | None = None


BlockIn = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[OtherBlock, Tag("other")],
    Discriminator(_tag),
]


class AnthropicMessage(AnthropicModel):
    role: Literal["user", "assistant", "system"]
    content: str | Items[BlockIn]

    @property
    def blocks(self) -> list[Any]:
        """The blocks of the content; none of one that is only a text."""
        return [] if isinstance(self.content, str) else self.content

    def to_messages(self) -> Iterator[LlmMessage]:
        """Yield the neutral messages: the results of tools are messages of their own, and come first."""
        parts: list[ContentPart] = [TextPart(self.content)] if isinstance(self.content, str) else []
        calls: list[ToolCall] = []
        reasoning = ""
        for block in self.blocks:
            # By type and not with isinstance, which takes five times as long for a class of Pydantic.
            kind = type(block)
            if kind is TextBlock:
                parts.append(TextPart(block.text))
            elif kind is ToolUseBlock:
                calls.append(block.to_tool_call())
            elif kind is ToolResultBlock:
                id_, _ = decode_call_id(block.tool_use_id)
                yield LlmMessage("tool", _to_parts(block.content or ""), tool_call_id=id_)
            elif kind is ThinkingBlock:
                reasoning += block.thinking
            elif kind is ImageBlock:
                parts.append(block.to_part())
        if self.role == "system":
            # Many models of other providers accept a system message only at the beginning.
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            yield LlmMessage("user", (TextPart(f"<system-reminder>\n{text}\n</system-reminder>"),))
        elif parts or calls or reasoning:
            yield LlmMessage(self.role, tuple(parts), tuple(calls), reasoning=reasoning)


class AnthropicTool(AnthropicInput):
    """A tool of the client; one with another type runs at Anthropic or is defined there."""

    type: str | None = None
    name: Annotated[str, Field(max_length=128, validate_default=True)] = ""
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None

    @field_validator("name")
    @classmethod
    def _require_name(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("type") in (None, "custom"):
            raise PydanticKnownError("missing")
        return value


class ToolChoiceIn(AnthropicModel):
    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str, Field(validate_default=True)] = ""
    disable_parallel_tool_use: bool | None = None

    @field_validator("name")
    @classmethod
    def _require_name(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("type") == "tool":
            raise PydanticKnownError("missing")
        return value

    @property
    def neutral(self) -> str:
        return self.name if self.type == "tool" else _TOOL_CHOICES[self.type]


class OutputFormatIn(AnthropicModel):
    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfigIn(AnthropicModel):
    format: OutputFormatIn | None = None


class ThinkingIn(AnthropicModel):
    type: str
    budget_tokens: NotNegative = None  # LiteLLM sends 0 with disabled


class RequestMetadata(AnthropicModel):
    user_id: str | None = None
    prefer: str | None = None


class CountIn(AnthropicModel):
    """A request to count tokens: one for a message without a limit."""

    model: Name
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=10_000)]
    system: str | Items[TextBlock] | None = None
    max_tokens: MaxTokens = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: NotNegative = None
    stop_sequences: Items[str] | None = None
    stream: bool | None = None
    tools: Items[AnthropicTool] | None = None
    tool_choice: ToolChoiceIn | None = None
    thinking: ThinkingIn | None = None
    output_config: OutputConfigIn | None = None
    metadata: RequestMetadata | None = None
    service_tier: str | None = None

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is not None and self.thinking.type != "disabled"

    def to_request(self, raw: JsonObject, headers: dict[str, str], query: str = "") -> ChatRequest:
        """Convert to a chat request. `raw` is the body as it was sent, the rest is what an original has."""
        choice, output_format = self.tool_choice, self.output_config.format if self.output_config else None
        schema = {"name": "answer", "schema": output_format.schema_} if output_format else None
        return ChatRequest(
            self.model,
            self._messages(),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stop=tuple(self.stop_sequences or ()),
            tools=tuple(
                ToolDefinition(tool.name, tool.description or "", tool.input_schema, tool.strict)
                for tool in self.tools or ()
            ),
            tool_choice=choice.neutral if choice else "",
            response_format={"type": "json_schema", "json_schema": schema} if schema else None,
            extra={"parallel_tool_calls": False} if choice and choice.disable_parallel_tool_use else {},
            prefer=(self.metadata.prefer if self.metadata else None) or "",
            anthropic=AnthropicOriginal(
                _original_fields(raw), headers, query, self._feature(), self._other_tokens(raw)
            ),
        )

    def _messages(self) -> tuple[LlmMessage, ...]:
        system = self.system if isinstance(self.system, str) else "\n\n".join(block.text for block in self.system or ())
        messages = [LlmMessage("system", (TextPart(system),))] if system else []
        converted = (one for message in self.messages for one in message.to_messages())
        for role, group in groupby(converted, lambda message: message.role):
            neighbours = list(group)
            # As Anthropic does. Other providers want all calls of a turn in one message, and some want alternating
            # roles.
            messages += neighbours if role == "tool" else [_join(neighbours)]
        return tuple(messages)

    def _all_blocks(self) -> Iterator[Any]:
        """Yield the blocks of the messages, and those in the results of tools."""
        for message in self.messages:
            for block in message.blocks:
                yield block
                if type(block) is ToolResultBlock and isinstance(block.content, list):
                    yield from block.content

    def _other_tokens(self, raw: JsonObject) -> int:
        """Estimate the tokens of the blocks and fields that the neutral request lacks."""
        total = estimate_fields({name: value for name, value in raw.items() if name not in CountIn.model_fields})
        system = self.system if isinstance(self.system, list) else ()
        for part in (*self._all_blocks(), *system, *(self.tools or ())):
            if type(part) is OtherBlock:
                total += part.estimated_tokens if _is_unknown(part) else 0
            elif extra := part.model_extra:
                total += estimate_fields(extra)
        return total

    def _feature(self) -> str:
        """Describe the first block or tool that only Anthropic's format can express; empty if all formats can."""
        for block in self._all_blocks():
            if _is_unknown(block):
                return f"a block of type {block.type[:64]!r}"
            if type(block) is ImageBlock and not (block.source.url or block.source.data):
                return f"an image of type {block.source.type[:64]!r}"
        other = next((tool.type for tool in self.tools or () if tool.type and tool.type != "custom"), None)
        return f"a tool of type {other[:64]!r}" if other else ""


class MessagesIn(CountIn):
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)]


def _is_unknown(block: Any) -> bool:
    # The hidden reasoning of one model is of no use to another.
    return type(block) is OtherBlock and block.type != "redacted_thinking"


def _join(messages: list[LlmMessage]) -> LlmMessage:
    """Return messages of one role as one, with an empty line between their texts."""
    if len(messages) == 1:
        return messages[0]
    parts: list[ContentPart] = []
    for message in messages:
        added = message.content
        if parts and added and isinstance(parts[-1], TextPart) and isinstance(added[0], TextPart):
            added = (TextPart(f"\n\n{added[0].text}"), *added[1:])
        parts += added
    calls = tuple(call for message in messages for call in message.tool_calls)
    return LlmMessage(messages[0].role, tuple(parts), calls, reasoning="".join(m.reasoning for m in messages))


def _to_parts(content: str | list[Any]) -> tuple[ContentPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(
        TextPart(block.text) if type(block) is TextBlock else block.to_part()
        for block in content
        if type(block) in (TextBlock, ImageBlock)
    )


def require_one_model(raw: JsonObject, key: str) -> None:
    """Raise Forbidden for a field that may have the provider use another model than the one that was checked.

    For keys that are limited to models. Fails closed: unknown fields and tools are sent to the provider too.
    """
    names = sorted(name for name, value in raw.items() if name not in _ONE_MODEL_FIELDS and value is not None)
    for tool in raw.get("tools") or ():
        type_ = tool.get("type") or "custom"
        if type_ != "custom" and not type_.startswith(_ONE_MODEL_TOOLS):
            names.append(f"a tool of type {type_}")
        elif "model" in tool:
            names.append(f"{tool.get('name')}.model")
    if names:
        raise Forbidden(f"The key {key!r} is limited to some models, so it may not send {names[0][:64]!r}.")


def _original_fields(raw: JsonObject) -> JsonObject:
    """Return the fields that the neutral request has less room for. `metadata.prefer` is of this gateway."""
    fields = {name: value for name, value in raw.items() if name not in _NEUTRAL_FIELDS and value is not None}
    if "prefer" in fields.get("metadata", ()):
        fields["metadata"] = {name: value for name, value in fields["metadata"].items() if name != "prefer"}
    return fields
