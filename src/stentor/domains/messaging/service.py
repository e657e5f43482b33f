"""Use cases of messaging: send, route, read a message, its answer, the queue.

The answer to a message as a stream: what its task says, token by token, under the message's own header.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.clock import SECOND, micros_from_datetime
from stentor.core.db import Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.errors import Forbidden, NotFound
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.atp import bodies, model
from stentor.domains.atp.bodies import ActionBody, ScheduleBody
from stentor.domains.atp.model import AtpMessage
from stentor.domains.messaging import store
from stentor.domains.messaging.model import TERMINAL_STATUSES, MessageRoute, QueueSnapshot, StoredMessage, ZoneAction
from stentor.domains.messaging.processor import authorize_action
from stentor.domains.registry import agent_cache as registry
from stentor.domains.registry import authorization
from stentor.domains.tasks.model import TaskStream

MAX_ID_LENGTH = 255
SYSTEM_ZONES = frozenset(("registry", "memory", "governance"))
"""Of the APIs that are admin-only over REST."""


class MessagingService:
    """`arrived` is called after a message was stored."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        agents: registry.AgentCache,
        actions: Mapping[tuple[str, str], ZoneAction],
        arrived: Callable[[], None],
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._agents = agents
        self._actions = actions
        self._arrived = arrived

    async def send(self, principal: Principal, message: AtpMessage, key: IdempotencyKey | None = None) -> str:
        """Store a message for its turn; answers its id. The same key with the same message answers the same.

        Raises MessageInvalid, Forbidden for another's senderId or an effect that the caller might not have over REST.
        """
        body = bodies.parse_body(message)
        sender = self.resolve_sender(principal, message)
        received = EventDraft("message_received", "messaging", f"Message to {message.header.target_zone}.")
        stored = _stored(principal, message, sender, received.event_id)
        authorize_action(stored, self._actions[message.header.zone_action])
        return await self._db.write(lambda tx: self._send(tx, stored, body, received, key))

    def _send(
        self, tx: Tx, stored: StoredMessage, body: ActionBody, received: EventDraft, key: IdempotencyKey | None
    ) -> str:
        if key is not None and (known := idempotency.find_response(tx, key)):
            return str(known.body)
        times = {"created_at": tx.now, "updated_at": tx.now, "due_at": _due(tx.now, body)}
        store.insert(tx, msgspec.structs.replace(stored, **times))
        meta = {
            "message_id": stored.message_id,
            "atp": model.header_to_json(stored.header),
            "by": stored.principal.name,
        }
        event = msgspec.structs.replace(received, metadata=meta, agent_id=stored.sender_agent)
        self._runlog.append(tx, stored.tenant, [event])
        if key is not None:
            idempotency.store_response(tx, key, StoredResponse(202, stored.message_id))
        tx.after_commit(self._arrived)
        return stored.message_id

    def route(self, principal: Principal, message: AtpMessage) -> MessageRoute:
        """Who would do it now, and why. Nothing is sent. Raises MessageInvalid, Forbidden, RoutingDenied."""
        body = bodies.parse_body(message)
        self.resolve_sender(principal, message)
        return self._actions[message.header.zone_action].route(principal, message.header, body)

    def unavailable_reason(self, message: AtpMessage) -> str | None:
        """Say why this service cannot carry out a valid message; None when it can."""
        return self._actions[message.header.zone_action].unavailable_reason

    def resolve_sender(self, principal: Principal, message: AtpMessage) -> tuple[str, str | None]:
        """Who sends, and which agent that is. Raises Forbidden for a senderId that is not the caller."""
        own = [agent.agent_id for agent in self._agents.list_of_key(principal.tenant, principal.name)]
        alone = own[0] if len(own) == 1 else None
        if message.sender_id is None:
            return alone or principal.name, alone
        if message.sender_id == principal.name:
            return principal.name, alone
        if message.sender_id in own:
            return message.sender_id, message.sender_id
        raise Forbidden("header.senderId is not the caller: leave it out, or name the key or an agent that has it.")

    def resolve_speaker(
        self, principal: Principal, message: AtpMessage, agent_id: str | None
    ) -> tuple[str, str | None]:
        """The same for a message that is for an agent which the caller names beside it: its own, or any of the tenant
        for a key that is no agent's. Raises NotFound, Forbidden.
        """
        sender, own = self.resolve_sender(principal, message)
        if agent_id is None:
            return sender, own
        agent = self._agents.get(principal.tenant, agent_id)
        if agent is None:
            raise NotFound(f"No agent has the id {agent_id!r}.")
        if not authorization.can_act_for(principal, agent):
            raise Forbidden(f"The agent {agent_id!r} is not one of the key {principal.name!r}.")
        return sender, agent_id

    async def get(self, principal: Principal, message_id: str) -> StoredMessage:
        """Fails closed: an agent's key reads its own messages, and what went to a system API is for its sender and for
        who may use that API.

        Raises Forbidden, and NotFound, the same for a message of another tenant as for none.
        """
        stored = await self.find(principal.tenant, message_id)
        if principal.is_bound_agent and stored.principal.name != principal.name:
            raise NotFound("No message has this id.")
        if stored.header.target_zone in SYSTEM_ZONES and stored.principal.name != principal.name:
            principal.require("admin")
        return stored

    async def find(self, tenant: str, message_id: str) -> StoredMessage:
        """The message, for the service itself. Raises NotFound."""
        if not 0 < len(message_id) <= MAX_ID_LENGTH:
            raise NotFound("No message has this id.")
        stored = await self._db.read(lambda tx: store.find(tx, tenant, message_id))
        if stored is None:
            raise NotFound("No message has this id.")
        return stored

    async def get_answered(self, principal: Principal, message_id: str) -> StoredMessage:
        """A message whose response is known. Raises as `get` does, and NotFound until then."""
        stored = await self.get(principal, message_id)
        if stored.response is None:
            raise NotFound(f"The message is {stored.status}; its response is not known yet.")
        return stored

    async def read_queue(self, tenant: str) -> QueueSnapshot:
        return await self._db.read(lambda tx: store.read_queue(tx, tenant))


def _stored(principal: Principal, message: AtpMessage, sender: tuple[str, str | None], event_id: str) -> StoredMessage:
    return StoredMessage(
        principal.tenant,
        ids.new_id(),
        "queued",
        message.header,
        message.content,
        *sender,
        principal,
        created_at=0,
        updated_at=0,
        due_at=0,
        epoch=0,
        task_id=None,
        route=None,
        response=None,
        provenance_id=event_id,
        head_id=event_id,
    )


def _due(now: int, body: ActionBody) -> int:
    """When its turn may come: at once, or when it is scheduled for."""
    if not isinstance(body, ScheduleBody):
        return now
    if body.run_at is not None:
        return max(now, min(micros_from_datetime(body.run_at), now + MAX_DELAY))
    return now + (body.delay_seconds or 0) * SECOND


MAX_DELAY = 10 * 365 * 86_400 * SECOND


MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.5
"""Seconds between two looks at a message that waits for its turn: longer and longer."""


ResponseFrame = tuple[str, dict[str, Any], str | None]
"""Kind, data and id."""


class ResponseStreams:
    def __init__(self, messaging: MessagingService, of_task: TaskStream) -> None:
        self._messaging = messaging
        self._of_task = of_task

    async def follow(self, stored: StoredMessage, last_event_id: str | None) -> AsyncIterator[ResponseFrame]:
        """Waits until the message is with a task or over, then follows. Ends with one terminal frame."""
        pause = MIN_POLL_SECONDS
        while stored.task_id is None and stored.status not in TERMINAL_STATUSES:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, MAX_POLL_SECONDS)
            stored = await self._messaging.find(stored.tenant, stored.message_id)
        if stored.task_id is None:
            kind = "complete" if stored.status == "completed" else "error"
            yield kind, {"message_id": stored.message_id, "status": stored.status, "response": stored.response}, None
            return
        async for step in self._of_task(stored.tenant, stored.task_id, last_event_id):
            yield step.kind, {"message_id": stored.message_id, **step.data}, step.id
