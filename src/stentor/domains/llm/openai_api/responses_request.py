"""Parse requests of /v1/responses. No I/O.

A field that would change the reply and is not supported is rejected with 400 and its `param`, never ignored.
Input items are in `responses_input`, responses in `responses_output`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats.base import omit_none
from stentor.domains.llm.model import ChatRequest, LlmMessage, TextPart, ToolDefinition
from stentor.domains.llm.openai_api import responses_input
from stentor.domains.llm.openai_api.chat import (
    ConversationIn,
    FunctionDefinitionIn,
    Items,
    MaxTokens,
    OpenAiModel,
    Penalty,
    Temperature,
    TopP,
    passthrough_fields,
)
from stentor.domains.llm.openai_api.responses_input import InputItem
from stentor.web.wire import Name

STATELESS_REASON = (
    "this gateway stores no responses: send the whole conversation as input, or name a session as conversation"
)
UNSUPPORTED_FIELDS = {
    "previous_response_id": STATELESS_REASON,
    "prompt": "prompts stored at OpenAI are not supported: send the text as instructions and input",
    "background": "background responses are not supported",
    "context_management": "context compaction is not supported",
    "moderation": "moderation is not supported",
}
"""Reason by field that must be absent, null or false."""
IGNORED_INCLUDES = frozenset(
    "file_search_call.results web_search_call.results web_search_call.action.sources code_interpreter_call.outputs "
    "message.input_image.image_url computer_call_output.output.image_url reasoning.encrypted_content".split()
)
"""Values of `include` that are accepted and have no effect: no response of this gateway has such items."""


class TextFormat(OpenAiModel):
    """Format of the text; chat completions call it `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str | None, Field(min_length=1, max_length=64, validate_default=True)] = None
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema", validate_default=True)] = None
    strict: bool | None = None

    @field_validator("name", "schema_")
    @classmethod
    def _require_for_schema(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.data.get("type") == "json_schema":
            raise PydanticKnownError("missing")
        return value

    @property
    def to_json(self) -> JsonObject:
        """The format as /v1/responses encodes it."""
        if self.type != "json_schema":
            return {"type": self.type}
        optional = omit_none(description=self.description, strict=self.strict)
        return {"type": self.type, "name": self.name, "schema": self.schema_, **optional}

    @property
    def response_format(self) -> JsonObject | None:
        """The format as chat completions encode it; None for plain text."""
        if self.type != "json_schema":
            return None if self.type == "text" else {"type": self.type}
        schema = self.to_json
        return {"type": schema.pop("type"), "json_schema": schema}


class TextOptions(OpenAiModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(OpenAiModel):
    """`summary` has no effect: no response of this gateway has reasoning items."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class UnsupportedTool(OpenAiModel):
    """Any other tool, such as those that run at OpenAI; rejected."""

    type: str

    @field_validator("type")
    @classmethod
    def _reject(cls, value: str) -> str:
        context = {"kind": value[:64]}
        raise PydanticCustomError("unsupported", "only function tools are supported, not '{kind}'", context)


class FunctionTool(FunctionDefinitionIn):
    """A function that the client runs."""

    type: Literal["function"]

    @property
    def to_json(self) -> JsonObject:
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", **function, "strict": self.strict}


NamespaceMember = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[UnsupportedTool, Tag("other")],
    Discriminator(lambda tool: "function" if _tag(tool) == "function" else "other"),
]


class NamespaceTool(OpenAiModel):
    """Functions under a common name. Chat completions have no namespaces, so each gets a name that includes it."""

    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    tools: Items[NamespaceMember]

    @property
    def functions(self) -> list[FunctionTool]:
        return [tool for tool in self.tools if isinstance(tool, FunctionTool)]

    @property
    def to_json(self) -> JsonObject:
        tools = [tool.to_json for tool in self.functions]
        return {"type": "namespace", "name": self.name, "description": self.description, "tools": tools}


class NamedFunction(OpenAiModel):
    type: Literal["function"]
    name: str


class AllowedTools(OpenAiModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[Items[NamedFunction], Field(min_length=1)]


def _tag(value: Any) -> str:
    """Return the tag of a tool or of a tool choice."""
    if isinstance(value, str):
        return "string"
    type_ = value.get("type") if isinstance(value, dict) else None
    return type_ if type_ in ("function", "allowed_tools", "namespace") else "other"


ResponseToolIn = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[UnsupportedTool, Tag("other")],
    Discriminator(lambda tool: tag if (tag := _tag(tool)) in ("function", "namespace") else "other"),
]
ResponseToolChoiceIn = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("string")]
    | Annotated[NamedFunction, Tag("function")]
    | Annotated[AllowedTools, Tag("allowed_tools")]
    | Annotated[UnsupportedTool, Tag("other")],
    Discriminator(lambda choice: tag if (tag := _tag(choice)) != "namespace" else "other"),
]


class ResponseIn(OpenAiModel):
    model: Name
    input: str | Annotated[Items[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: MaxTokens = None
    max_tool_calls: int | None = None
    temperature: Temperature = None
    top_p: TopP = None
    stream: bool | None = None
    tools: Items[ResponseToolIn] | None = None
    tool_choice: ResponseToolChoiceIn | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Items[str] | None = None
    store: bool | None = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    truncation: Literal["disabled"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    previous_response_id: Any = None
    conversation: Name | ConversationIn | None = None
    prompt: Any = None
    background: Any = None
    context_management: Any = None
    moderation: Any = None

    @field_validator(*UNSUPPORTED_FIELDS)
    @classmethod
    def _reject_unsupported(cls, value: Any, info: ValidationInfo) -> None:
        if value is not None and value is not False:
            raise PydanticCustomError("unsupported", "{reason}", {"reason": UNSUPPORTED_FIELDS[str(info.field_name)]})

    @field_validator("include")
    @classmethod
    def _check_include(cls, parts: list[str] | None) -> list[str] | None:
        if parts is not None and not IGNORED_INCLUDES.issuperset(parts):
            raise PydanticCustomError("unsupported", "log probabilities and unknown parts are not supported")
        return parts

    @property
    def format(self) -> TextFormat:
        return (self.text.format if self.text else None) or TextFormat(type="text")

    def to_request(
        self, raw: JsonObject, recall: Callable[[str], str | None], *, in_session: bool = False
    ) -> ChatRequest:
        """Convert to a chat request. Raises InvalidRequest.

        `raw` is the body with the fields that OpenAI-compatible providers get unchanged; `recall` returns the text of a
        recent output item by id. `in_session` says whether the request continues a session.
        """
        instructions = [LlmMessage("system", (TextPart(self.instructions),))] if self.instructions else []
        if isinstance(self.input, str):
            messages = [LlmMessage("user", (TextPart(self.input),))]
        else:
            messages = responses_input.to_messages(self.input, recall, in_session=in_session)
        if not messages:
            raise InvalidRequest.of_field("input", "has no message")
        tools, choice = self._tools_and_choice()
        return ChatRequest(
            self.model,
            (*instructions, *messages),
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

    @property
    def _namespaces(self) -> list[NamespaceTool]:
        return [tool for tool in self.tools or () if isinstance(tool, NamespaceTool)]

    @property
    def namespaced(self) -> dict[str, tuple[str, str]]:
        """Namespace and name of the functions that have one, by the name that providers get."""
        return {
            responses_input.flat_name(space.name, function.name): (space.name, function.name)
            for space in self._namespaces
            for function in space.functions
        }

    def _tools_and_choice(self) -> tuple[tuple[ToolDefinition, ...], str]:
        """Return the functions that the model may call, and the tool choice. Raises InvalidRequest."""
        tools = {function.name: function.to_tool() for function in self._functions}
        for space in self._namespaces:
            for function in space.functions:
                name = responses_input.flat_name(space.name, function.name)
                if name in tools:
                    raise InvalidRequest.of_field("tools", f"two functions would be called {name!r}")
                tools[name] = msgspec.structs.replace(function.to_tool(), name=name)
        choice = self.tool_choice
        chosen_names = [choice.name] if isinstance(choice, NamedFunction) else []
        if isinstance(choice, AllowedTools):
            chosen_names = [tool.name for tool in choice.tools]
        missing = next((name for name in chosen_names if name not in tools), None)
        if missing is not None or (choice == "required" and not tools):
            reason = f"the function {missing!r} is not in tools" if missing else "tools has no function to call"
            raise InvalidRequest.of_field("tool_choice", reason)
        if not tools:
            return (), ""
        if isinstance(choice, AllowedTools):
            return tuple(tools[name] for name in dict.fromkeys(chosen_names)), choice.mode
        if isinstance(choice, NamedFunction):
            return tuple(tools.values()), choice.name
        return tuple(tools.values()), choice if isinstance(choice, str) else ""

    def _extra(self, raw: JsonObject, *, tools: bool) -> JsonObject:
        """Return the fields for OpenAI-compatible providers under the names of chat completions."""
        # metadata and store describe the response, which this gateway makes and not the provider.
        excluded = {"metadata", "store", "reasoning"} | (set() if tools else {"parallel_tool_calls"})
        fields = {name: value for name, value in passthrough_fields(raw).items() if name not in excluded}
        effort = self.reasoning.effort if self.reasoning else None
        return fields | omit_none(reasoning_effort=effort, verbosity=self.text.verbosity if self.text else None)

    @property
    def echoed_fields(self) -> JsonObject:
        """The fields of the request that the response repeats, with OpenAI's defaults for those that are not set."""
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
            "tools": [tool.to_json for tool in self.tools or () if not isinstance(tool, UnsupportedTool)],
            "top_logprobs": 0,
            "truncation": "disabled",
            "metadata": self.metadata or {},
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
            "user": self.user,
            "service_tier": self.service_tier or "default",
            # Whatever the client asked for: this gateway stores no responses.
            "store": False,
        }
