"""A message in the service: its states, its answer, and which permission its effect needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from stentor.auth.principal import Permission, Principal
from stentor.core.db import Tx
from stentor.core.errors import StentorError
from stentor.domains.atp import json_format
from stentor.domains.atp.bodies import ActionBody
from stentor.domains.atp.model import PRIORITY_RANK, AtpHeader, AtpMessage

MessageStatus = Literal["queued", "executing", "completed", "failed"]
TERMINAL_STATUSES: frozenset[MessageStatus] = frozenset(("completed", "failed"))


class MessageRoute(msgspec.Struct, frozen=True, rename="camel"):
    """Who does the work and why; no agent where a part of the service does it itself."""

    target_agents: tuple[str, ...]
    rationale: str


class StoredMessage(msgspec.Struct, frozen=True):
    """A message's row. Times in microseconds; `provenance_id` is its first event, `head_id` its last."""

    tenant: str
    message_id: str
    status: MessageStatus
    header: AtpHeader
    content: str
    sender_id: str
    sender_agent: str | None
    principal: Principal
    created_at: int
    updated_at: int
    due_at: int
    epoch: int
    task_id: str | None
    route: Any
    response: Any
    provenance_id: str
    head_id: str

    @property
    def priority(self) -> int:
        return PRIORITY_RANK[self.header.priority]

    @property
    def atp_message(self) -> AtpMessage:
        return AtpMessage(self.header, self.content, self.sender_id)

    @property
    def to_json(self) -> dict[str, Any]:
        return json_format.message_to_json(self.atp_message, self.message_id)


class ActionContext(msgspec.Struct, frozen=True):
    """A message in the hands of its action. `cause` is the event that its effects hang under."""

    message: StoredMessage
    body: ActionBody
    parent_event_id: str

    @property
    def principal(self) -> Principal:
        return self.message.principal

    @property
    def header(self) -> AtpHeader:
        return self.message.header


class ActionResult(msgspec.Struct, frozen=True):
    """What an action came to. With `waits_for`, a task, it is an acknowledgement: the answer comes with its end."""

    response: Any
    route: MessageRoute
    status: MessageStatus = "completed"
    awaited_task_id: str | None = None
    deadline: int | None = None


CommitStep = Callable[[Tx], ActionResult]
"""The last step of an action. It runs in the transaction that records the answer: both happen or neither does."""


class ZoneAction(msgspec.Struct, frozen=True):
    """`prepare` may wait and look things up, what it answers changes the state; `route` only says who would do it."""

    permission: Permission
    prepare: Callable[[ActionContext], Awaitable[CommitStep]]
    route: Callable[[Principal, AtpHeader, ActionBody], MessageRoute]
    tenant: str | None = None
    """The only one that it is there for."""
    unavailable_reason: str | None = None
    """Why this service cannot carry it out, where it cannot."""


class QueueSnapshot(msgspec.Struct, frozen=True):
    """The queue of a tenant. `oldest` is id, priority and time of the message that waits longest."""

    depth: int
    oldest: tuple[str, str, int] | None
    counts: dict[str, int]


def error_response(error: StentorError) -> dict[str, Any]:
    """An error as a response records it."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.details:
        body["details"] = error.details
    return {"error": body}
