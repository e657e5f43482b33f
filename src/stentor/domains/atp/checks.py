"""From a message to the body that its action takes, with all that is wrong in it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.atp import notes
from stentor.domains.atp.bodies import SHAPES, Body, Execute, Query, Schedule
from stentor.domains.atp.model import Flaw, Message, MessageInvalid
from stentor.domains.atp.text import without_head

CONTENT = "payload.content"
ASKING = {("kernel", "query")}
"""A plain text here is a question to an agent; an object asks for a task."""


def body_of(message: Message) -> Body:
    """Read the body that the action takes.

    Raises MessageInvalid with all that is wrong, and for an action that the zone does not have.
    """
    shape = SHAPES.get(message.header.address)
    if shape is None:
        raise MessageInvalid([_no_action(*message.header.address)])
    if message.header.address in ASKING and _is_text(message.content):
        shape = Execute
    try:
        body = shape.model_validate(_value(message, shape))
    except ValidationError as error:
        raise MessageInvalid([_flaw(one) for one in error.errors(include_url=False, include_input=False)]) from None
    if flaws := _together(message, body):
        raise MessageInvalid(flaws)
    return body


def decoded(content: str) -> Any:
    """The JSON of a content, None for a text that is none."""
    try:
        return jsontext.decode(content.encode())
    except (InvalidRequest, UnicodeEncodeError):
        return None


def _is_text(content: str) -> bool:
    return content.lstrip(" \t\r\n")[:1] not in ("{", "")


def _value(message: Message, shape: type[Body]) -> Any:
    """The body as an object. Work for an agent and searches may be said in plain text."""
    content = message.content
    if _is_text(content):
        if issubclass(shape, Execute):
            return {"task": {"type": notes.task_type(message.header), "input": without_head(content)}}
        if shape is Query:
            return {"text": content}
    if not content.strip() and not any(field.is_required() for field in shape.model_fields.values()):
        return {}
    try:
        value = jsontext.decode(content.encode())
    except InvalidRequest as error:
        raise MessageInvalid([Flaw(CONTENT, f"must be a JSON object: {error.message}")]) from None
    if not isinstance(value, dict):
        raise MessageInvalid([Flaw(CONTENT, "must be a JSON object")])
    return value


def _no_action(zone: str, action: str) -> Flaw:
    known = ", ".join(sorted(name for of, name in SHAPES if of == zone))
    return Flaw("header.actionType", f"the zone {zone} has no action {action}; it has {known}")


def _flaw(error: Any) -> Flaw:
    return Flaw(".".join([CONTENT, *(str(part) for part in error["loc"])]), str(error["msg"]))


def _together(message: Message, body: Body) -> list[Flaw]:
    """What no field says alone."""
    flaws = []
    if isinstance(body, Schedule) and body.run_at is not None and body.delay_seconds is not None:
        flaws.append(Flaw(f"{CONTENT}.delay_seconds", "give either run_at or delay_seconds"))
    if isinstance(body, Execute):
        named, preferred = notes.agent(message.header), body.task.agent_preference
        if named is not None and preferred is not None and named != preferred:
            flaws.append(Flaw(f"{CONTENT}.task.agent_preference", "is not the agent that the envelope names"))
    if isinstance(body, Query):
        wanted = "path" if body.query_type == "exact" else "text"
        if getattr(body, wanted) is None:
            flaws.append(Flaw(f"{CONTENT}.{wanted}", "is required"))
    return flaws
