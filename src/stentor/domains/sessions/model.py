"""A session, its items and its values, and the message that an item stands for. Pure.

A message is JSON as OpenAI's chat API has it: `{role, content, tool_calls?, tool_call_id?, reasoning_content?}`.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject

MAX_PAGE = 1_000
MAX_BATCH = 1_000
MAX_PAGE_BYTES = 8 << 20
"""A page ends before its values have more bytes than this together; its first entry may be longer."""
MAX_INLINE_BYTES = 256
"""A longer value is stored once for each content; a shorter one costs less beside its row."""
MAX_METADATA_BYTES = 16_384
MAX_RESULT_CHARACTERS = 100_000
"""Characters of a tool's result that a model gets."""

ItemKind = Literal["message", "summary"]
ItemSource = Literal["own", "input", "result", "step"]
Encoding = Literal["json", "base64"]
Order = Literal["key", "key_descending", "newest"]
LAST_CHARACTER = "\U0010ffff"
"""Sorts after every character of a key."""
FIRST_CHARACTER = " "
"""The first printable character, so nothing sorts between a key and the key with it."""


class Session(msgspec.Struct, frozen=True):
    """A session. Times in microseconds; `stored_bytes` are those of its own items and values.

    `last_number` counts everything that was ever added: the position of an item, and the number of a value.
    """

    tenant: str
    session_id: str
    name: str | None
    metadata: JsonObject
    created_by: str
    created_at: int
    updated_at: int
    item_count: int = 0
    value_count: int = 0
    stored_bytes: int = 0
    last_number: int = 0

    def is_visible_to(self, caller: Principal) -> bool:
        """Return whether the caller may use it: a key that is bound to its agents uses only its own sessions."""
        return self.tenant == caller.tenant and (self.created_by == caller.name or not caller.is_bound_agent)


class ItemDraft(msgspec.Struct, frozen=True):
    """An item to be appended: a value of its own, or one that refers to what a task has stored already.

    For a reference, `value` has only the fields of the message that are not stored there, and `size` is the size of
    the whole message. A task's summary `covers` its session up to the item at this position, and is left out if that
    is not the last one any more.
    """

    value: Any
    kind: ItemKind = "message"
    source: ItemSource = "own"
    step_key: str | None = None
    size: int | None = None
    covers: int | None = None


class Item(msgspec.Struct, frozen=True):
    """An item of a session. `size` in bytes, `created_at` in microseconds."""

    position: int
    kind: ItemKind
    value: Any
    size: int
    created_at: int
    task_id: str | None


class StoredValue(msgspec.Struct, frozen=True):
    """A value of a session as it is on the wire. `size` in bytes, `updated_at` in microseconds.

    `number` says in which order values were set.
    """

    key: str
    number: int
    encoding: Encoding
    value: Any
    size: int
    updated_at: int


class ValueDraft(msgspec.Struct, frozen=True):
    """A value to be set: the bytes of its JSON, or of what base64 decodes to."""

    key: str
    encoding: Encoding
    content: bytes

    @classmethod
    def of_base64(cls, key: str, text: str) -> ValueDraft:
        """Raises InvalidRequest for wrong base64."""
        try:
            return cls(key, "base64", base64.b64decode(text, validate=True))
        except ValueError:
            raise InvalidRequest(f"bytes: the value of {key!r} must be base64.") from None


class ValueQuery(msgspec.Struct, frozen=True):
    """Which values of a session to list: those whose key begins with `prefix` and sorts before `before`, if given.

    They come after `position`: a key, or for the newest the number of a value.
    """

    prefix: str
    order: Order
    limit: int
    before: str | None = None
    position: str | int | None = None

    def to_span(self) -> KeySpan:
        bounds = [self.prefix + LAST_CHARACTER]
        bounds += [] if self.before is None else [self.before]
        bounds += [self.position] if self.order == "key_descending" and isinstance(self.position, str) else []
        return KeySpan(self.prefix, min(bounds))


class KeySpan(msgspec.Struct, frozen=True):
    """The keys from `start` to before `end`, by their characters."""

    start: str
    end: str

    @classmethod
    def of_prefix(cls, prefix: str) -> KeySpan:
        return cls(prefix, prefix + LAST_CHARACTER)

    @classmethod
    def of_key(cls, key: str) -> KeySpan:
        return cls(key, key + FIRST_CHARACTER)


def decode_value(encoding: Encoding, content: bytes) -> Any:
    """Return the value as it is on the wire."""
    return jsontext.load(content) if encoding == "json" else base64.b64encode(content).decode()


def build_message(frame: JsonObject, stored: Any) -> JsonObject:
    """Return the message of an item that refers to what a task has stored: an input, a result, a step's outcome."""
    if frame["role"] == "tool":
        return frame | {"content": describe_outcome(stored)}
    if not isinstance(stored, dict):
        return frame | {"content": stored if isinstance(stored, str) else jsontext.dump(stored)}
    message = frame | {"content": stored.get("content", stored.get("text"))}
    if calls := stored.get("tool_calls"):
        message["tool_calls"] = [_tool_call(call) for call in calls]
        message |= {"reasoning_content": stored["reasoning"]} if stored.get("reasoning") else {}
    return message


def _tool_call(call: JsonObject) -> JsonObject:
    function = {"name": call["name"], "arguments": call["arguments"]}
    signature = {"signature": call["signature"]} if call.get("signature") else {}
    return {"id": call["id"], "type": "function", "function": function, **signature}


def describe_outcome(stored: Any) -> str:
    """Return the outcome of a tool for the model: `{"error": ...}`, or its result, which a person may have given."""
    content = stored["result"] if isinstance(stored, dict) and stored.keys() == {"result"} else stored
    text = content if isinstance(content, str) else jsontext.dump(content)
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    return f"{text[:MAX_RESULT_CHARACTERS]}\n[The first {MAX_RESULT_CHARACTERS:,} of {len(text):,} characters.]"
