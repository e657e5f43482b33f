"""Operations on the values of sessions: a store of keys, for the state of a program. Source: docs/sessions.md."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, Field, model_validator

from stentor.core import jsontext
from stentor.core.errors import NotFound
from stentor.core.validation.text_checks import check_printable
from stentor.domains.sessions import model
from stentor.domains.sessions.model import Encoding, Order, StoredValue, ValueDraft, ValueQuery
from stentor.domains.sessions.operations import Cursor, Key, SessionId, SessionOut
from stentor.domains.sessions.service import SessionService
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Caller, ResponseModel, Timestamp, decode_cursor, encode_cursor

KeyInPath = Annotated[
    str, Path(description="The value's key, encoded as one segment of a path."), AfterValidator(decode_path_segment)
]
MAX_KEYS = 100


class ValuesIn(RequestModel):
    """`values` are JSON, `bytes` are base64. A key that has a value gets the new one, or with `if_absent` keeps it."""

    model_config = example_config(values={"checkpoint/1": {"step": 3}}, bytes={"blob/1": "AAEC"})

    values: Annotated[dict[Key, Any], Field(max_length=model.MAX_BATCH)] = {}
    bytes: Annotated[dict[Key, str], Field(max_length=model.MAX_BATCH)] = {}
    if_absent: bool = False

    @model_validator(mode="after")
    def _has_distinct_keys(self) -> ValuesIn:
        if both := sorted(self.values.keys() & self.bytes.keys()):
            raise ValueError(f"{both[0]!r} is in values and in bytes")
        if not self.values and not self.bytes:
            raise ValueError("give values or bytes")
        return self

    def to_drafts(self) -> list[ValueDraft]:
        drafts = [ValueDraft(key, "json", jsontext.encode(value)) for key, value in self.values.items()]
        return drafts + [ValueDraft.of_base64(key, text) for key, text in self.bytes.items()]


class ValueOut(ResponseModel):
    """`value` is base64 if `encoding` says so. `number` grows with each value that is set in the session."""

    key: str
    number: int
    encoding: Encoding
    value: Any
    size: int
    updated_at: Timestamp


class ValuePage(ResponseModel):
    values: list[ValueOut]
    next_cursor: str | None


class SessionValueOperations:
    """The operations on the values of sessions."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    @operation("sessions.set_values", "write", "PUT /sessions/{session_id}/values", errors=(404,))
    async def set_values(self, caller: Caller, session_id: SessionId, body: ValuesIn) -> SessionOut:
        """Set values of a session, all or none."""
        drafts = body.to_drafts()
        return SessionOut.of(await self._sessions.set_values(caller, session_id, drafts, if_absent=body.if_absent))

    @operation("sessions.values", "read", "GET /sessions/{session_id}/values", errors=(404, 500))
    async def list_values(
        self,
        caller: Caller,
        session_id: SessionId,
        key: Annotated[list[Key], Query(max_length=MAX_KEYS, description="Only these; repeatable.")] = [],  # noqa: B006
        prefix: Annotated[str, Query(max_length=1024), AfterValidator(check_printable)] = "",
        order: Order = "key",
        before: Annotated[Key | None, Query(description="Only keys that sort before this one.")] = None,
        limit: Annotated[int, Query(ge=1, le=model.MAX_PAGE)] = 100,
        cursor: Cursor = None,
    ) -> ValuePage:
        """List values of a session whose key begins with `prefix`, by key in either direction or the newest first.

        With `key`, only the values of these keys. A page ends early before it would exceed 8 MB; with `key`,
        that many bytes are refused.
        """
        if key:
            some = await self._sessions.get_values(caller, session_id, key)
            return ValuePage(values=[ValueOut.of(value) for value in some], next_cursor=None)
        position = None if cursor is None else decode_cursor(cursor, int if order == "newest" else str)[0]
        query = ValueQuery(prefix, order, limit, before, position)
        values, has_more = await self._sessions.list_values(caller, session_id, query)
        following = encode_cursor(_position(values[-1], order)) if has_more else None
        return ValuePage(values=[ValueOut.of(value) for value in values], next_cursor=following)

    @operation("sessions.value", "read", "GET /sessions/{session_id}/values/{key}", errors=(404, 500))
    async def read_value(self, caller: Caller, session_id: SessionId, key: KeyInPath) -> ValueOut:
        """Return one value of a session."""
        values = await self._sessions.get_values(caller, session_id, [key])
        if not values:
            raise NotFound(f"The session has no value {key!r}.")
        return ValueOut.of(values[0])


def _position(value: StoredValue, order: Order) -> str | int:
    return value.number if order == "newest" else value.key
