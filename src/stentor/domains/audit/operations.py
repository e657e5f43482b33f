"""Operations of the audit. Source: docs/keys.md, "Audit"."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import StringConstraints

from stentor.core.clock import micros_from_datetime
from stentor.core.db import Database
from stentor.core.ids import min_id_at
from stentor.core.jsontext import JsonObject
from stentor.domains.audit import store
from stentor.domains.audit.service import AuditService
from stentor.web.operations import operation
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Address, Caller, Name, ResponseModel, Time, Timestamp, decode_cursor, encode_cursor

Category = Annotated[Literal["sign-ins", "changes", "refusals"] | None, Query(description="Without it, all of them.")]
Limit = Annotated[int, Query(ge=1, le=500)]
LAST = "~"
"""After every event id."""


class AuditedEvent(ResponseModel):
    """An event of the run log. `by` is the key that did it; null for the service, and for an agent refused a tool."""

    event_id: str
    timestamp: Timestamp
    event_type: str
    message: str
    by: str | None
    agent_id: str | None
    task_id: str | None
    metadata: JsonObject


class AuditPage(ResponseModel):
    events: list[AuditedEvent]
    next_cursor: str | None


class SignInBody(RequestModel):
    """Where somebody signed in: a surface, and the address of the client."""

    model_config = example_config(surface="dashboard", address="192.0.2.7")

    surface: Annotated[Name, StringConstraints(max_length=40)]
    address: Address = ""


class SignInOut(ResponseModel):
    event_id: str


class AuditOperations:
    """Operations on the audit log."""

    def __init__(self, db: Database, audit: AuditService) -> None:
        self._db, self._audit = db, audit

    @operation("audit.list", "admin", "GET /audit")
    async def list_events(
        self,
        caller: Caller,
        category: Category = None,
        since: Annotated[Time | None, Query(description="Only events from this time on.")] = None,
        until: Annotated[Time | None, Query(description="Only events before this time.")] = None,
        text: Annotated[
            Name | None, Query(description="Text in the message or the metadata; case does not matter.")
        ] = None,
        limit: Limit = 100,
        cursor: Annotated[str | None, Query(max_length=512)] = None,
    ) -> AuditPage:
        """List sign-ins, changes and refusals, the latest first.

        A page of a search may be empty although there is a next one.
        """
        after = "" if since is None else min_id_at(micros_from_datetime(since))
        before = LAST if until is None else min_id_at(micros_from_datetime(until))
        if cursor is not None:
            # The earlier of the two, so that a cursor cannot lead out of the wanted range.
            before = min(before, str(decode_cursor(cursor, str)[0]))
        rows, following = await self._db.read(
            lambda tx: store.list_events(tx, caller.tenant, category or "", before, limit, after=after, text=text or "")
        )
        events = [AuditedEvent.of(row, timestamp=row.happened_at, by=_actor(row.metadata)) for row in rows]
        return AuditPage(events=events, next_cursor=encode_cursor(following) if following else None)

    @operation("audit.sign_in", "read", "POST /audit/sign-ins", 201)
    async def sign_in(self, caller: Caller, body: SignInBody) -> SignInOut:
        """Record that the holder of this key signed in somewhere. Forbidden for an agent's key without `admin`."""
        return SignInOut(event_id=await self._audit.record_sign_in(caller, body.surface, body.address))


def _actor(metadata: JsonObject) -> str | None:
    """Return who did it, which events name by different fields."""
    found = next((metadata[name] for name in ("by", "decided_by", "submitted_by", "key") if metadata.get(name)), None)
    return str(found) if found is not None else None
