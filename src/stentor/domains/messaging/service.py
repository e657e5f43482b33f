"""Use cases of messaging: send and route a message, read it, its response and the queue; stream a response.

Messages are executed by `processor`; the operations of REST and gRPC are in `operations`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.clock import SECOND, micros_from_datetime
from stentor.core.db import Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.errors import Forbidden, NotFound
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.atp import bodies, model
from stentor.domains.atp.bodies import ActionBody, ScheduleBody
from stentor.domains.atp.model import AtpMessage
from stentor.domains.messaging import store
from stentor.domains.messaging.model import TERMINAL_STATUSES, MessageRoute, QueueSnapshot, StoredMessage, ZoneAction
from stentor.domains.messaging.processor import authorize_action
from stentor.domains.registry import authorization
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasks.model import TaskStreamStep

VisibleTaskStream = Callable[[Principal, str, str | None], AsyncIterator[TaskStreamStep]]
"""Yields the steps of a task after a Last-Event-ID, while the principal may read it."""
MAX_ID_LENGTH = 255
SYSTEM_ZONES = frozenset(("registry", "memory", "governance"))
"""Zones in which only the sender and administrators can read a message."""
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.5
"""The first and the longest pause between two polls of a queued message; the pause grows in between."""
ResponseFrame = tuple[str, JsonObject, str | None]
"""Kind, data and event id."""


class MessagingService:
    """Sends and reads messages. `on_stored` is called after the commit of a new message."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        agents: AgentCache,
        actions: Mapping[tuple[str, str], ZoneAction],
        on_stored: Callable[[], None],
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._agents = agents
        self._actions = actions
        self._on_stored = on_stored

    async def send(self, principal: Principal, message: AtpMessage, key: IdempotencyKey | None = None) -> str:
        """Queue a message and return its id. A repeated call with the same key returns the same id.

        Raises MessageInvalid, and Forbidden for a foreign senderId or an action that the caller may not do over REST.
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
        if key is not None and (response := idempotency.find_response(tx, key)):
            return str(response.body)
        times = {"created_at": tx.now, "updated_at": tx.now, "due_at": _due(tx.now, body)}
        store.insert(tx, msgspec.structs.replace(stored, **times))
        metadata = {
            "message_id": stored.message_id,
            "atp": model.header_to_json(stored.header),
            "by": stored.principal.name,
        }
        event = msgspec.structs.replace(received, metadata=metadata, agent_id=stored.sender_agent)
        self._runlog.append(tx, stored.tenant, [event])
        if key is not None:
            idempotency.store_response(tx, key, StoredResponse(202, stored.message_id))
        # After the commit: the processor would not find the message before.
        tx.after_commit(self._on_stored)
        return stored.message_id

    def route(self, principal: Principal, message: AtpMessage) -> MessageRoute:
        """Return who would execute the message now, and why. Nothing is sent.

        Raises MessageInvalid, Forbidden, RoutingDenied.
        """
        body = bodies.parse_body(message)
        self.resolve_sender(principal, message)
        return self._actions[message.header.zone_action].route(principal, message.header, body)

    def unavailable_reason(self, message: AtpMessage) -> str | None:
        """Return why this service cannot execute a valid message, or None if it can."""
        return self._actions[message.header.zone_action].unavailable_reason

    def resolve_sender(self, principal: Principal, message: AtpMessage) -> tuple[str, str | None]:
        """Return the sender's id and the id of its agent, None if it is not an agent or not a single one.

        Raises Forbidden for a senderId that is not the caller.
        """
        agent_ids = [agent.agent_id for agent in self._agents.list_by_key(principal.tenant, principal.name)]
        only_agent = agent_ids[0] if len(agent_ids) == 1 else None
        if message.sender_id is None:
            return only_agent or principal.name, only_agent
        if message.sender_id == principal.name:
            return principal.name, only_agent
        if message.sender_id in agent_ids:
            return message.sender_id, message.sender_id
        raise Forbidden("header.senderId is not the caller. Leave it out, or name the key or an agent of the key.")

    def resolve_sender_and_agent(
        self, principal: Principal, message: AtpMessage, agent_id: str | None
    ) -> tuple[str, str | None]:
        """Return the sender as `resolve_sender` does, but with the agent that the caller names besides the message.

        It must be one of the key's agents; a key without agents may name any of its tenant. Raises NotFound, Forbidden.
        """
        sender, sender_agent = self.resolve_sender(principal, message)
        if agent_id is None:
            return sender, sender_agent
        agent = self._agents.get(principal.tenant, agent_id)
        if agent is None:
            raise NotFound(f"No agent has the id {agent_id!r}.")
        if not authorization.can_act_for(principal, agent):
            raise Forbidden(f"The agent {agent_id!r} does not belong to the key {principal.name!r}.")
        return sender, agent_id

    async def get(self, principal: Principal, message_id: str) -> StoredMessage:
        """Return a message that the caller may read.

        Fails closed: the key of an agent reads only its own messages, and messages to a system zone are only for their
        sender and administrators. Raises Forbidden; NotFound, also for a message of another tenant.
        """
        stored = await self.find(principal.tenant, message_id)
        if principal.is_bound_agent and stored.principal.name != principal.name:
            raise NotFound("No message has this id.")
        if stored.header.target_zone in SYSTEM_ZONES and stored.principal.name != principal.name:
            principal.require("admin")
        return stored

    async def find(self, tenant: str, message_id: str) -> StoredMessage:
        """Return a message without any permission check, for internal use. Raises NotFound."""
        if not 0 < len(message_id) <= MAX_ID_LENGTH:
            raise NotFound("No message has this id.")
        stored = await self._db.read(lambda tx: store.find(tx, tenant, message_id))
        if stored is None:
            raise NotFound("No message has this id.")
        return stored

    async def get_answered(self, principal: Principal, message_id: str) -> StoredMessage:
        """Return a message that has its response. Raises as `get` does, and NotFound while there is none."""
        stored = await self.get(principal, message_id)
        if stored.response is None:
            raise NotFound(f"The message is {stored.status} and has no response yet. Ask again later.")
        return stored

    async def read_queue(self, tenant: str) -> QueueSnapshot:
        return await self._db.read(lambda tx: store.read_queue(tx, tenant))


class ResponseStreams:
    """Responses as streams: the events of the message's task, token by token."""

    def __init__(self, messaging: MessagingService, task_stream: VisibleTaskStream) -> None:
        self._messaging = messaging
        self._task_stream = task_stream

    async def follow(
        self, caller: Principal, stored: StoredMessage, last_event_id: str | None
    ) -> AsyncIterator[ResponseFrame]:
        """Wait until the message has a task or has ended, then yield its frames; the last one is terminal."""
        pause = MIN_POLL_SECONDS
        while stored.task_id is None and stored.status not in TERMINAL_STATUSES:
            await asyncio.sleep(pause)
            # Polled, because the process that works on the message may be another one.
            pause = min(pause * 1.5, MAX_POLL_SECONDS)
            stored = await self._messaging.find(stored.tenant, stored.message_id)
        if stored.task_id is None:
            kind = "complete" if stored.status == "completed" else "error"
            yield kind, {"message_id": stored.message_id, "status": stored.status, "response": stored.response}, None
            return
        async for event in self._task_stream(caller, stored.task_id, last_event_id):
            yield event.kind, {"message_id": stored.message_id, **event.data}, event.id


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
    """Return when the message may be processed, in microseconds: now, or when it is scheduled for."""
    if not isinstance(body, ScheduleBody):
        return now
    if body.run_at is not None:
        return max(now, micros_from_datetime(body.run_at))
    return now + (body.delay_seconds or 0) * SECOND
