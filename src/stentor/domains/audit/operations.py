"""Operations of the audit. Source: docs/operations.md, "Audit"."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import StringConstraints

from stentor.core.db import NO_LOCKS, Database
from stentor.core.errors import Forbidden
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.audit import store
from stentor.web.operations import Operation
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Address, Caller, Name, ResponseModel, Timestamp, decode_cursor, encode_cursor

Category = Annotated[Literal["sign-ins", "changes", "refusals"] | None, Query(description="Without it, all of them.")]
Limit = Annotated[int, Query(ge=1, le=500)]
LAST = "~"
"""After every event id."""


class AuditedEvent(ResponseModel):
    """An event of the run log. `by` is the key that did it; null for the service itself and for agents."""

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
    """Each method is an operation, see the table below."""

    def __init__(self, db: Database, runlog: RunLog) -> None:
        self._db, self._runlog = db, runlog

    async def list_events(
        self,
        caller: Caller,
        category: Category = None,
        limit: Limit = 100,
        cursor: Annotated[str | None, Query(max_length=512)] = None,
    ) -> AuditPage:
        """List sign-ins, changes and refusals, the latest first."""
        before = LAST if cursor is None else str(decode_cursor(cursor, str)[0])
        rows = await self._db.read(lambda tx: store.list_events(tx, caller.tenant, category or "", before, limit + 1))
        events = [AuditedEvent.of(row, timestamp=row.happened_at, by=_actor(row.metadata)) for row in rows[:limit]]
        following = encode_cursor(rows[limit - 1].event_id) if len(rows) > limit else None
        return AuditPage(events=events, next_cursor=following)

    async def sign_in(self, caller: Caller, body: SignInBody) -> SignInOut:
        """Record that the holder of this key signed in somewhere. Raises Forbidden for the key of an agent."""
        if not caller.is_person:
            raise Forbidden("Agents do not sign in.")
        metadata = {"by": caller.name, "role": caller.role, "surface": body.surface, "address": body.address}
        draft = EventDraft("signed_in", "audit", f"{caller.name} signed in to the {body.surface}.", metadata)
        return SignInOut(
            event_id=await self._db.write(lambda tx: self._runlog.append(tx, caller.tenant, [draft]), NO_LOCKS)
        )


def _actor(metadata: JsonObject) -> str | None:
    """Return who did it, which events name by different fields."""
    found = next((metadata[name] for name in ("by", "decided_by", "submitted_by", "key") if metadata.get(name)), None)
    return str(found) if found is not None else None


OPERATIONS = [
    Operation("audit.list", "admin", AuditOperations.list_events, "GET /audit"),
    Operation("audit.sign_in", "read", AuditOperations.sign_in, "POST /audit/sign-ins", 201),
]
