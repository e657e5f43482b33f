"""Types of messaging: a stored message, an action with its permission and result, the queue. No I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeAlias

import msgspec

from stentor.auth.principal import Permission, Principal
from stentor.core.db import Tx
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
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
    route: JsonObject | None
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
    def to_json(self) -> JsonObject:
        return json_format.message_to_json(self.atp_message, self.message_id)


class ActionContext(msgspec.Struct, frozen=True):
    """The input of an action. Events of its effects get `parent_event_id` as their parent.

    `held` is closed after the CommitStep, whether that has run or not.
    """

    message: StoredMessage
    body: ActionBody
    parent_event_id: str
    held: AsyncExitStack

    @property
    def principal(self) -> Principal:
        return self.message.principal

    @property
    def header(self) -> AtpHeader:
        return self.message.header

    @property
    def event_metadata(self) -> dict[str, str]:
        """The metadata that ties the events of other domains to the message."""
        return {"message_id": self.message.message_id, "caused_by": self.parent_event_id}


class ActionResult(msgspec.Struct, frozen=True):
    """The result of an action. With `awaited_task_id` it is an acknowledgement: the response follows the task's end.

    `deadline` in microseconds: when the message fails if that task has not ended.
    """

    response: JsonObject
    route: MessageRoute
    status: MessageStatus = "completed"
    awaited_task_id: str | None = None
    deadline: int | None = None


CommitStep = Callable[[Tx], ActionResult]
"""The last step of an action. It runs in the transaction that records the result: both are committed or neither."""
RouteAction: TypeAlias = Callable[[Principal, AtpHeader, ActionBody], MessageRoute]
"""Returns who would execute an action, without effect. Raises RoutingDenied."""


class ZoneAction(msgspec.Struct, frozen=True):
    """An action of a zone. `prepare` may await and read; only the CommitStep it returns changes state."""

    permission: Permission
    prepare: Callable[[ActionContext], Awaitable[CommitStep]]
    route: RouteAction
    tenant: str | None = None
    """The only tenant that may use the action; None for all."""
    unavailable_reason: str | None = None
    """Why this service cannot execute the action; None if it can."""


class QueueSnapshot(msgspec.Struct, frozen=True):
    """The queue of a tenant. `oldest` is id, priority and creation time of the message that waits longest."""

    depth: int
    oldest: tuple[str, str, int] | None
    counts: dict[str, int]


def fixed_route(route: MessageRoute) -> RouteAction:
    """Return the RouteAction of an action that no agent executes."""
    return lambda principal, header, body: route


def error_response(error: StentorError) -> JsonObject:
    """Return an error as it is recorded in a response."""
    body: JsonObject = {"code": error.code, "message": error.message}
    if error.details:
        body["details"] = error.details
    return {"error": body}
