"""Operations on sessions and their items. Those on values are in `value_operations`. Source: docs/sessions.md."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, Field, StringConstraints

from stentor.core import jsontext
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import check_printable, check_segment
from stentor.domains.sessions import model
from stentor.domains.sessions.model import ItemDraft, ItemKind, KeySpan, Session
from stentor.domains.sessions.service import SessionService
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    Caller,
    IdempotencyHeader,
    Name,
    ResponseModel,
    Timestamp,
    decode_cursor,
    encode_cursor,
)

SessionId = Annotated[
    str, Path(description="The session's id; encode a slash in it as %2F."), AfterValidator(decode_path_segment)
]
Cursor = Annotated[str | None, Query(max_length=4096, description="The `next_cursor` of the page before.")]
Key = Annotated[str, StringConstraints(min_length=1, max_length=1024), AfterValidator(check_printable)]
Prefix = Annotated[str, StringConstraints(max_length=1024), AfterValidator(check_printable)]
Position = Annotated[int, Query(ge=0, le=2**53)]


class SessionIn(RequestModel):
    """`id` is one of your own, such as a user's or a thread's; without it a new one is made."""

    model_config = example_config(id="support-4711", name="Lost parcel", metadata={"customer": 4711})

    id: Annotated[Name, AfterValidator(check_segment)] | None = None
    name: Name | None = None
    metadata: JsonObject = {}


class SessionChange(RequestModel):
    """Omitted fields stay unchanged."""

    model_config = example_config(name="Lost parcel, solved")

    name: Name | None = None
    metadata: JsonObject | None = None


class SessionOut(ResponseModel):
    """`stored_bytes` are those of its own items and values; what its tasks have stored is not in them."""

    session_id: str
    name: str | None
    metadata: JsonObject
    created_by: str
    created_at: Timestamp
    updated_at: Timestamp
    item_count: int
    value_count: int
    stored_bytes: int


class CreatedSession(SessionOut):
    """`created` is false if the session was there; then nothing was changed."""

    created: bool


class SessionPage(ResponseModel):
    sessions: list[SessionOut]
    next_cursor: str | None


class DeletedSession(ResponseModel):
    session_id: str
    deleted: bool


class ItemIn(RequestModel):
    """`value` is any JSON; a model reads `{role, content}`. A `summary` stands for all items before it."""

    value: Any
    kind: ItemKind = "message"


class ItemsIn(RequestModel):
    model_config = example_config(items=[{"value": {"role": "user", "content": "Where is my parcel?"}}])

    items: Annotated[list[ItemIn], Field(min_length=1, max_length=model.MAX_BATCH)]
    expected_count: Annotated[
        int | None, Field(ge=0, le=2**53, description="How many items the session must have before, else 409.")
    ] = None


class ItemOut(ResponseModel):
    """`task_id` is the task that added it."""

    position: int
    kind: ItemKind
    value: Any
    size: int
    created_at: Timestamp
    task_id: str | None


class ItemPage(ResponseModel):
    """`next_after` is the position after which to read on; null at the end."""

    items: list[ItemOut]
    item_count: int
    next_after: int | None


class PoppedItem(ResponseModel):
    """`item` is null if the session had none."""

    session_id: str
    item: ItemOut | None


class ClearIn(RequestModel):
    """`values` is a prefix of keys; an empty one stands for all values. `prefixes` are more, `keys` are whole keys."""

    model_config = example_config(items=True)

    items: bool = False
    values: Prefix | None = None
    prefixes: Annotated[list[Prefix], Field(max_length=model.MAX_BATCH)] = []
    keys: Annotated[list[Key], Field(max_length=model.MAX_BATCH)] = []

    def to_spans(self) -> list[KeySpan]:
        prefixes = self.prefixes if self.values is None else [self.values, *self.prefixes]
        return [KeySpan.of_prefix(prefix) for prefix in prefixes] + [KeySpan.of_key(key) for key in self.keys]


class SessionOperations:
    """The operations on sessions and their items."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    @operation("sessions.create", "write", "POST /sessions", 201, (409,))
    async def create(self, caller: Caller, body: SessionIn | None = None) -> CreatedSession:
        """Create a session: a conversation that outlives its tasks. One with this `id` is returned as it is."""
        body = body or SessionIn()
        session, created = await self._sessions.create(caller, body.id, body.name, body.metadata)
        return CreatedSession.of(session, created=created)

    @operation("sessions.list", "read", "GET /sessions")
    async def list_sessions(
        self,
        caller: Caller,
        ref: Annotated[
            Name | None, Query(description="The beginning or the end of an id, or a name; not with a cursor.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=model.MAX_PAGE)] = 100,
        cursor: Cursor = None,
    ) -> SessionPage:
        """List sessions, the most recently changed first. A key that is bound to agents sees only its own.

        With `ref`, those that it refers to, the one with exactly this id first; 1,000 at most, without further pages.
        """
        if ref is not None:
            if cursor is not None:
                raise InvalidRequest("ref: cannot be combined with cursor.")
            found = await self._sessions.list_by_reference(caller, ref, limit)
            return SessionPage(sessions=[SessionOut.of(session) for session in found], next_cursor=None)
        before = None if cursor is None else decode_cursor(cursor, int, str)
        sessions: list[Session] = await self._sessions.list_page(caller, before, limit + 1)
        following = None
        if len(sessions) > limit:
            sessions.pop()
            following = encode_cursor(sessions[-1].updated_at, sessions[-1].session_id)
        return SessionPage(sessions=[SessionOut.of(session) for session in sessions], next_cursor=following)

    @operation("sessions.get", "read", "GET /sessions/{session_id}", errors=(404,))
    async def read(self, caller: Caller, session_id: SessionId) -> SessionOut:
        """Return a session without its items."""
        return SessionOut.of(await self._sessions.get(caller, session_id))

    @operation("sessions.change", "write", "PATCH /sessions/{session_id}", errors=(404,))
    async def change(self, caller: Caller, session_id: SessionId, body: SessionChange) -> SessionOut:
        """Change the name or the metadata of a session."""
        changes = {field: getattr(body, field) for field in body.model_fields_set}
        # Null removes the name, but metadata is always an object.
        if changes.get("metadata", {}) is None:
            raise InvalidRequest("metadata: must be an object; {} for none.")
        return SessionOut.of(await self._sessions.change(caller, session_id, changes))

    @operation("sessions.delete", "delete", "DELETE /sessions/{session_id}", errors=(404,))
    async def delete(self, caller: Caller, session_id: SessionId) -> DeletedSession:
        """Delete a session with its items and values. Inputs, results and steps of its tasks stay with the tasks."""
        await self._sessions.delete(caller, session_id)
        return DeletedSession(session_id=session_id, deleted=True)

    @operation("sessions.append", "write", "POST /sessions/{session_id}/items", errors=(404, 409, 422))
    async def append(
        self, caller: Caller, session_id: SessionId, body: ItemsIn, idempotency_key: IdempotencyHeader = None
    ) -> SessionOut:
        """Append items to a session, all or none. With an `Idempotency-Key`, a repeated request adds them once."""
        drafts = [ItemDraft(item.value, item.kind) for item in body.items]
        key = _to_key(caller, "append", idempotency_key, session_id, body)
        return SessionOut.of(await self._sessions.append(caller, session_id, drafts, body.expected_count, key))

    @operation("sessions.items", "read", "GET /sessions/{session_id}/items", errors=(404, 500))
    async def list_items(
        self,
        caller: Caller,
        session_id: SessionId,
        limit: Annotated[int, Query(ge=1, le=model.MAX_PAGE)] = 100,
        after: Position = 0,
        newest: Annotated[bool, Query(description="The last items, or with `before` those before a position.")] = False,
        before: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    ) -> ItemPage:
        """List items of a session, oldest first. A page ends earlier where it would have more than 8 MB."""
        if (newest or before is not None) and after:
            raise InvalidRequest("after: cannot be combined with newest or before.")
        end = (2**53 if before is None else before) if newest or before is not None else None
        session, items = await self._sessions.list_items(caller, session_id, after, end, limit)
        is_last = not items or end is not None or items[-1].position >= session.last_number
        following = None if is_last else items[-1].position
        return ItemPage(items=[ItemOut.of(item) for item in items], item_count=session.item_count, next_after=following)

    @operation("sessions.pop", "write", "POST /sessions/{session_id}/pop", errors=(404, 422, 500))
    async def pop(self, caller: Caller, session_id: SessionId, idempotency_key: IdempotencyHeader = None) -> PoppedItem:
        """Remove the last item of a session and return it. With an `Idempotency-Key`, a repeated request removes one.

        The item is stored with the key for 24 hours.
        """
        item = await self._sessions.pop(caller, session_id, _to_key(caller, "pop", idempotency_key, session_id))
        return PoppedItem(session_id=session_id, item=None if item is None else ItemOut.of(item))

    @operation("sessions.clear", "write", "POST /sessions/{session_id}/clear", errors=(404,))
    async def clear(self, caller: Caller, session_id: SessionId, body: ClearIn) -> SessionOut:
        """Remove all items of a session, or the values of some prefixes and keys, or both."""
        return SessionOut.of(await self._sessions.clear(caller, session_id, items=body.items, spans=body.to_spans()))


def _to_key(
    caller: Caller, verb: str, value: str | None, session_id: str, body: RequestModel | None = None
) -> IdempotencyKey | None:
    """Return the key of a request, which belongs to its session and its body."""
    if value is None:
        return None
    digest = jsontext.sorted_digest([session_id, None if body is None else body.model_dump()])
    return IdempotencyKey(caller.tenant, caller.name, f"sessions/{verb}", value, digest)
