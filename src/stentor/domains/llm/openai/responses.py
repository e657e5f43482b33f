"""Requests of /v1/responses as the neutral form. What would change the answer and is not offered is 400 with its
`param`, never left out. Answers are in responding.py. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from stentor.core.errors import InvalidRequest
from stentor.domains.llm.formats import without_none
from stentor.domains.llm.model import Message, Request, Text, Tool
from stentor.domains.llm.openai import items
from stentor.domains.llm.openai.items import Item
from stentor.domains.llm.openai.reading import FunctionOut, In, Limit, Share, Temperature, passed, required
from stentor.web.wire import Name

STATELESS = "this gateway stores no responses: send the whole conversation as input"
NOT_OFFERED = {
    "previous_response_id": STATELESS,
    "conversation": STATELESS,
    "prompt": "prompts stored at OpenAI cannot be used: send the text as instructions and input",
    "background": "a response is made while the caller waits",
    "context_management": "the input is never compacted",
    "moderation": "moderation is not offered",
}
"""Fields that must be absent, null or false, and why."""
VACUOUS = frozenset(
    "file_search_call.results web_search_call.results web_search_call.action.sources code_interpreter_call.outputs "
    "message.input_image.image_url computer_call_output.output.image_url reasoning.encrypted_content".split()
)
"""What `include` may ask for: parts of items that never stand in a response of this gateway."""


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
        return required(given, needed=info.data.get("type") == "json_schema")

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
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(In):
    effort: str | None = None
    summary: None = None
    generate_summary: None = None


class OtherTool(In):
    """A tool that runs at OpenAI, or none at all: refused."""

    type: str

    @field_validator("type")
    @classmethod
    def _offered(cls, given: str) -> str:
        kind = {"kind": given[:64]}
        raise PydanticCustomError("unsupported", "only function tools are offered here, not '{kind}'", kind)


class FunctionTool(FunctionOut):
    """A function of the caller's."""

    type: Literal["function"]

    def tool(self) -> Tool:
        return Tool(self.name, self.description or "", self.parameters, self.strict)

    @property
    def described(self) -> dict[str, Any]:
        given = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", **given, "strict": self.strict}


class NamedFunction(In):
    type: Literal["function"]
    name: str


class AllowedTools(In):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1)]


def _kind(given: Any) -> str:
    """The tag of a tool or of a choice of tools."""
    kind = given.get("type") if isinstance(given, dict) else None
    return "word" if isinstance(given, str) else kind if kind in ("function", "allowed_tools") else "other"


ToolIn = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[OtherTool, Tag("other")],
    Discriminator(lambda given: "function" if _kind(given) == "function" else "other"),
]
ChoiceIn = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedFunction, Tag("function")]
    | Annotated[AllowedTools, Tag("allowed_tools")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_kind),
]


class ResponseIn(In):
    model: Name
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Limit = None
    max_tool_calls: int | None = None
    temperature: Temperature = None
    top_p: Share = None
    stream: bool | None = None
    tools: list[ToolIn] | None = None
    tool_choice: ChoiceIn | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
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

    @field_validator(*NOT_OFFERED)
    @classmethod
    def _offered(cls, given: Any, info: ValidationInfo) -> None:
        if given is not None and given is not False:
            raise PydanticCustomError("unsupported", "{reason}", {"reason": NOT_OFFERED[str(info.field_name)]})

    @field_validator("include")
    @classmethod
    def _includes(cls, given: list[str] | None) -> list[str] | None:
        if given is not None and not VACUOUS.issuperset(given):
            raise PydanticCustomError("unsupported", "log probabilities and unknown parts are not offered")
        return given

    @property
    def format(self) -> TextFormat:
        return (self.text and self.text.format) or TextFormat(type="text")

    def request(self, raw: dict[str, Any], recall: Callable[[str], str | None]) -> Request:
        """`raw` is the body, for the fields that go to OpenAI-compatible providers as they are; `recall` knows what was
        said under an id a short while ago. Raises InvalidRequest.
        """
        head = [Message("system", (Text(self.instructions),))] if self.instructions else []
        if isinstance(self.input, str):
            said = [Message("user", (Text(self.input),))]
        else:
            said = items.messages(self.input, recall)
        if not said:
            raise InvalidRequest("input: holds no message.", {"fields": {"input": "holds no message"}})
        tools, choice = self._offer()
        return Request(
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

    def _offer(self) -> tuple[tuple[Tool, ...], str]:
        """The functions that the model may call, and the choice. Raises InvalidRequest."""
        known = {one.name: one.tool() for one in self._functions}
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
        given = {name: value for name, value in passed(raw).items() if name not in ours}
        effort = self.reasoning.effort if self.reasoning else None
        return given | without_none(reasoning_effort=effort, verbosity=self.text.verbosity if self.text else None)

    @property
    def described(self) -> dict[str, Any]:
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
            "text": {"format": self.format.described, **without_none(verbosity=verbosity)},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.described for tool in self._functions],
            "top_logprobs": 0,
            "truncation": "disabled",
            "metadata": self.metadata or {},
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
            "user": self.user,
            "service_tier": self.service_tier or "default",
            "store": False,
        }
