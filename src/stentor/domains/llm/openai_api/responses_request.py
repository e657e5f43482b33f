"""Requests of /v1/responses as the neutral form. What would change the answer and is not offered is 400 with its
`param`, never left out. Answers are in responding.py. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from stentor.core.errors import InvalidRequest
from stentor.domains.llm.formats import omit_none
from stentor.domains.llm.model import ChatRequest, LlmMessage, TextPart, ToolDefinition
from stentor.domains.llm.openai_api import responses_input
from stentor.domains.llm.openai_api.responses_input import InputItem
from stentor.domains.llm.openai_api.wire import (
    FunctionDefinitionIn,
    MaxTokens,
    OpenAiModel,
    Temperature,
    TopP,
    passthrough_fields,
    require_value,
)
from stentor.web.wire import Name

STATELESS_REASON = "this gateway stores no responses: send the whole conversation as input"
UNSUPPORTED_FIELDS = {
    "previous_response_id": STATELESS_REASON,
    "conversation": STATELESS_REASON,
    "prompt": "prompts stored at OpenAI cannot be used: send the text as instructions and input",
    "background": "a response is made while the caller waits",
    "context_management": "the input is never compacted",
    "moderation": "moderation is not offered",
}
"""Fields that must be absent, null or false, and why."""
IGNORED_INCLUDES = frozenset(
    "file_search_call.results web_search_call.results web_search_call.action.sources code_interpreter_call.outputs "
    "message.input_image.image_url computer_call_output.output.image_url reasoning.encrypted_content".split()
)
"""What `include` may ask for: parts of items that never stand in a response of this gateway."""


class TextFormat(OpenAiModel):
    """What the text of a response is to be; chat calls it `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str | None, Field(min_length=1, max_length=64, validate_default=True)] = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema", validate_default=True)] = None
    strict: bool | None = None

    @field_validator("name", "schema_")
    @classmethod
    def _there(cls, given: Any, info: ValidationInfo) -> Any:
        return require_value(given, needed=info.data.get("type") == "json_schema")

    @property
    def to_json(self) -> dict[str, Any]:
        """The format in its own words; only a schema has more than its type."""
        if self.type != "json_schema":
            return {"type": self.type}
        more = omit_none(description=self.description, strict=self.strict)
        return {"type": self.type, "name": self.name, "schema": self.schema_, **more}

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The same in chat's words; None for plain text."""
        if self.type != "json_schema":
            return None if self.type == "text" else {"type": self.type}
        inner = self.to_json
        return {"type": inner.pop("type"), "json_schema": inner}


class TextOptions(OpenAiModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(OpenAiModel):
    effort: str | None = None
    summary: None = None
    generate_summary: None = None


class UnsupportedTool(OpenAiModel):
    """A tool that runs at OpenAI, or none at all: refused."""

    type: str

    @field_validator("type")
    @classmethod
    def _offered(cls, given: str) -> str:
        kind = {"kind": given[:64]}
        raise PydanticCustomError("unsupported", "only function tools are offered here, not '{kind}'", kind)


class FunctionTool(FunctionDefinitionIn):
    """A function of the caller's."""

    type: Literal["function"]

    def to_tool(self) -> ToolDefinition:
        return ToolDefinition(self.name, self.description or "", self.parameters, self.strict)

    @property
    def to_json(self) -> dict[str, Any]:
        given = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", **given, "strict": self.strict}


class NamedFunction(OpenAiModel):
    type: Literal["function"]
    name: str


class AllowedTools(OpenAiModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1)]


def _kind(given: Any) -> str:
    """The tag of a tool or of a choice of tools."""
    kind = given.get("type") if isinstance(given, dict) else None
    return "word" if isinstance(given, str) else kind if kind in ("function", "allowed_tools") else "other"


ResponseToolIn = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[UnsupportedTool, Tag("other")],
    Discriminator(lambda given: "function" if _kind(given) == "function" else "other"),
]
ResponseToolChoiceIn = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedFunction, Tag("function")]
    | Annotated[AllowedTools, Tag("allowed_tools")]
    | Annotated[UnsupportedTool, Tag("other")],
    Discriminator(_kind),
]


class ResponseIn(OpenAiModel):
    model: Name
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: MaxTokens = None
    max_tool_calls: int | None = None
    temperature: Temperature = None
    top_p: TopP = None
    stream: bool | None = None
    tools: list[ResponseToolIn] | None = None
    tool_choice: ResponseToolChoiceIn | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    store: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    truncation: Literal["disabled"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: Any = None
    context_management: Any = None
    moderation: Any = None

    @field_validator(*UNSUPPORTED_FIELDS)
    @classmethod
    def _offered(cls, given: Any, info: ValidationInfo) -> None:
        if given is not None and given is not False:
            raise PydanticCustomError("unsupported", "{reason}", {"reason": UNSUPPORTED_FIELDS[str(info.field_name)]})

    @field_validator("include")
    @classmethod
    def _includes(cls, given: list[str] | None) -> list[str] | None:
        if given is not None and not IGNORED_INCLUDES.issuperset(given):
            raise PydanticCustomError("unsupported", "log probabilities and unknown parts are not offered")
        return given

    @property
    def format(self) -> TextFormat:
        return (self.text and self.text.format) or TextFormat(type="text")

    def to_request(self, raw: dict[str, Any], recall: Callable[[str], str | None]) -> ChatRequest:
        """`raw` is the body, for the fields that go to OpenAI-compatible providers as they are; `recall` knows what was
        said under an id a short while ago. Raises InvalidRequest.
        """
        head = [LlmMessage("system", (TextPart(self.instructions),))] if self.instructions else []
        if isinstance(self.input, str):
            said = [LlmMessage("user", (TextPart(self.input),))]
        else:
            said = responses_input.to_messages(self.input, recall)
        if not said:
            raise InvalidRequest("input: holds no message.", {"fields": {"input": "holds no message"}})
        tools, choice = self._offer()
        return ChatRequest(
            self.model,
            (*head, *said),
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=tools,
            tool_choice=choice,
            response_format=self.format.response_format,
            extra=self._extra(raw, tools=bool(tools)),
            prefer=(self.metadata or {}).get("prefer", ""),
        )

    @property
    def _functions(self) -> list[FunctionTool]:
        return [tool for tool in self.tools or () if isinstance(tool, FunctionTool)]

    def _offer(self) -> tuple[tuple[ToolDefinition, ...], str]:
        """The functions that the model may call, and the choice. Raises InvalidRequest."""
        known = {one.name: one.to_tool() for one in self._functions}
        choice = self.tool_choice
        wanted = [choice.name] if isinstance(choice, NamedFunction) else []
        if isinstance(choice, AllowedTools):
            wanted = [one.name for one in choice.tools]
        missing = next((name for name in wanted if name not in known), None)
        if missing is not None or (choice == "required" and not known):
            reason = f"names {missing!r}, which is not among the tools" if missing else "there are no tools to call"
            raise InvalidRequest(f"tool_choice: {reason}.", {"fields": {"tool_choice": reason}})
        if not known:
            return (), ""
        if isinstance(choice, AllowedTools):
            return tuple(known[name] for name in dict.fromkeys(wanted)), choice.mode
        return tuple(known.values()), wanted[0] if wanted else choice if isinstance(choice, str) else ""

    def _extra(self, raw: dict[str, Any], *, tools: bool) -> dict[str, Any]:
        """What chat has under another name, or not at all: metadata and storage belong to the response, which is not
        the provider's.
        """
        ours = {"metadata", "store", "reasoning"} | (set() if tools else {"parallel_tool_calls"})
        given = {name: value for name, value in passthrough_fields(raw).items() if name not in ours}
        effort = self.reasoning.effort if self.reasoning else None
        return given | omit_none(reasoning_effort=effort, verbosity=self.text.verbosity if self.text else None)

    @property
    def echoed_fields(self) -> dict[str, Any]:
        """What a response repeats of its request; OpenAI's defaults stand for what was left to the provider."""
        choice: Any = self.tool_choice or "auto"
        verbosity = self.text.verbosity if self.text else None
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None, "summary": None},
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "presence_penalty": self.presence_penalty or 0.0,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "text": {"format": self.format.to_json, **omit_none(verbosity=verbosity)},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.to_json for tool in self._functions],
            "top_logprobs": 0,
            "truncation": "disabled",
            "metadata": self.metadata or {},
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
            "user": self.user,
            "service_tier": self.service_tier or "default",
            "store": False,
        }
