"""Types of messaging: a stored message, an action with its permission and result, the queue. No I/O."""

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
    """The agents that execute a message and why; no agent if the service executes it itself."""

    target_agents: tuple[str, ...]
    rationale: str


class StoredMessage(msgspec.Struct, frozen=True):
    """A row of a message. Times in microseconds; `provenance_id` is its first event, `head_id` its last.

    `epoch` counts the claims: a write with an older one has no effect.
    """

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
    """The input of an action. Events of its effects get `parent_event_id` as their parent."""

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
    """The result of an action. With `awaited_task_id` it is an acknowledgement: the response follows the task's end.

    `deadline` in microseconds: when the message fails if that task has not ended.
    """

    response: Any
    route: MessageRoute
    status: MessageStatus = "completed"
    awaited_task_id: str | None = None
    deadline: int | None = None


CommitStep = Callable[[Tx], ActionResult]
"""The last step of an action. It runs in the transaction that records the result: both are committed or neither."""


class ZoneAction(msgspec.Struct, frozen=True):
    """An action of a zone. `prepare` may await and read; only the CommitStep it returns changes state.

    `route` returns who would execute the action, without effect.
    """

    permission: Permission
    prepare: Callable[[ActionContext], Awaitable[CommitStep]]
    route: Callable[[Principal, AtpHeader, ActionBody], MessageRoute]
    tenant: str | None = None
    """The only tenant that may use the action; None for all."""
    unavailable_reason: str | None = None
    """Why this service cannot execute the action; None if it can."""


class QueueSnapshot(msgspec.Struct, frozen=True):
    """The queue of a tenant. `oldest` is id, priority and creation time of the message that waits longest."""

    depth: int
    oldest: tuple[str, str, int] | None
    counts: dict[str, int]


def error_response(error: StentorError) -> dict[str, Any]:
    """Return an error as it is recorded in a response."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.details:
        body["details"] = error.details
    return {"error": body}
