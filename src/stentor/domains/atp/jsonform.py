"""The JSON form: `{header {mode, context, ...}, payload {content}, messageId?}`. As strict as the wire form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stentor.domains.atp import model
from stentor.domains.atp.header import BY_JSON, FIELDS, MISSING, built, content_problem, problem
from stentor.domains.atp.model import MAX_SENDER, Flaw, Message, MessageInvalid

UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
UNKNOWN = "is not a field of a message"


def read(value: Mapping[str, Any]) -> Message:
    """The message of a decoded JSON object. Raises MessageInvalid with all that is wrong."""
    flaws = [Flaw(name, UNKNOWN) for name in value if name not in ("header", "payload", "messageId")]
    values, sender = _header(value.get("header"), flaws)
    content = _payload(value.get("payload"), flaws)
    given = value.get("messageId")
    if given is not None and not (isinstance(given, str) and UUID.fullmatch(given)):
        flaws.append(Flaw("messageId", "must be a UUID"))
    if flaws:
        raise MessageInvalid(flaws)
    return Message(built(values), content, sender)


def read_within(name: str, value: Mapping[str, Any]) -> Message:
    """The message in the field `name` of a decoded JSON object. Raises MessageInvalid, which names it so."""
    try:
        return read(value)
    except MessageInvalid as error:
        raise error.within(name) from None


def shown(message: Message, message_id: str | None = None) -> dict[str, Any]:
    """The JSON form of a message."""
    header = model.shown(message.header)
    if message.sender_id is not None:
        header["senderId"] = message.sender_id
    form: dict[str, Any] = {"header": header, "payload": {"content": message.content}}
    return form if message_id is None else {**form, "messageId": message_id}


def _header(header: Any, flaws: list[Flaw]) -> tuple[dict[str, str], str | None]:
    if not isinstance(header, Mapping):
        flaws.append(Flaw("header", MISSING if header is None else "must be an object"))
        return {}, None
    flaws += [Flaw(f"header.{name}", UNKNOWN) for name in header if name not in BY_JSON and name != "senderId"]
    values: dict[str, str] = {}
    for field in FIELDS:
        value = header.get(field.json)
        if value is None or (value == "" and not field.required):
            if field.required:
                flaws.append(Flaw(f"header.{field.json}", MISSING))
        elif found := problem(field, value):
            flaws.append(Flaw(f"header.{field.json}", found))
        else:
            values[field.name] = value
    return values, _sender(header.get("senderId"), flaws)


def _sender(sender: Any, flaws: list[Flaw]) -> str | None:
    if sender is None:
        return None
    if not isinstance(sender, str) or not 0 < len(sender) <= MAX_SENDER or not sender.isprintable():
        flaws.append(Flaw("header.senderId", f"must be a text of 1 to {MAX_SENDER} printable characters"))
        return None
    return sender


def _payload(payload: Any, flaws: list[Flaw]) -> str:
    if not isinstance(payload, Mapping):
        flaws.append(Flaw("payload", MISSING if payload is None else "must be an object"))
        return ""
    flaws += [Flaw(f"payload.{name}", UNKNOWN) for name in payload if name != "content"]
    content = payload.get("content")
    if found := MISSING if content is None else content_problem(content):
        flaws.append(Flaw("payload.content", found))
    return content if isinstance(content, str) else ""
