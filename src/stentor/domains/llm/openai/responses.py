"""Requests and answers of /v1/responses: one text message, whole or as its events. Pure; times in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from stentor.domains.llm.formats import without_none
from stentor.domains.llm.model import Finish, Message, Request, Text, Usage
from stentor.domains.llm.openai.reading import ROLES, In, Limit, PartIn, Share, Temperature, parts, required
from stentor.web.wire import Name


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
        said = [Message(ROLES[item.role], parts(item.content)) for item in items]
        return Request(
            self.model,
            (*head, *said),
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            response_format=self.format.response_format,
        )


class Response:
    """One response. `events` are what a client reads of it while it grows."""

    def __init__(self, asked: ResponseIn, provenance_id: str, model: str, created: int) -> None:
        self._asked = asked
        self._id = provenance_id
        self._model = model
        self._created = created
        self._number = 0

    def whole(self, text: str, finish: Finish, usage: Usage) -> dict[str, Any]:
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish)
        status = "incomplete" if cut else "completed"
        return self._response(status, [self._message(text, status)], _usage(usage), {"reason": cut} if cut else None)

    def begun(self) -> Iterator[dict[str, Any]]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress", [], None))
        yield self._event("response.output_item.added", output_index=0, item=self._message(None, "in_progress"))
        yield self._part_event("response.content_part.added", part=_part(""))

    def piece(self, text: str) -> dict[str, Any]:
        return self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def ended(self, text: str, finish: Finish, usage: Usage) -> Iterator[dict[str, Any]]:
        whole = self.whole(text, finish, usage)
        yield self._part_event("response.output_text.done", text=text, logprobs=[])
        yield self._part_event("response.content_part.done", part=_part(text))
        yield self._event("response.output_item.done", output_index=0, item=whole["output"][0])
        yield self._event(f"response.{whole['status']}", response=whole)

    def failed(self, code: str, message: str) -> dict[str, Any]:
        return self._event("error", code=code.lower(), message=message, param=None)

    def _response(
        self, status: str, output: list[Any], usage: dict[str, Any] | None, cut: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": self._asked.instructions,
            "max_output_tokens": self._asked.max_output_tokens,
            "model": self._model,
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "temperature": self._asked.temperature,
            "text": {"format": self._asked.format.described},
            "tool_choice": "none",
            "tools": [],
            "top_p": self._asked.top_p,
            "truncation": "disabled",
            "usage": usage,
            "metadata": self._asked.metadata or {},
        }

    def _message(self, text: str | None, status: str) -> dict[str, Any]:
        content = [] if text is None else [_part(text)]
        return {"id": f"msg_{self._id}", "type": "message", "role": "assistant", "status": status, "content": content}

    def _part_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(kind, item_id=f"msg_{self._id}", output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
