"""Use cases of messaging: send, route, read a message, its answer, the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.clock import SECOND, micros_from_datetime
from stentor.core.db import Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.errors import Forbidden, NotFound
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.atp import checks, model
from stentor.domains.atp.bodies import Body, Schedule
from stentor.domains.atp.model import Message
from stentor.domains.messaging import store
from stentor.domains.messaging.carrier import admit
from stentor.domains.messaging.model import Action, Route, Snapshot, Stored
from stentor.domains.registry import agent_cache as registry
from stentor.domains.registry import authorization

MAX_ID = 255
SYSTEM_ZONES = frozenset(("registry", "memory", "governance"))
"""Of the APIs that are admin-only over REST."""


class Messaging:
    """`arrived` is called after a message was stored."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        agents: registry.AgentCache,
        actions: Mapping[tuple[str, str], Action],
        arrived: Callable[[], None],
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._agents = agents
        self._actions = actions
        self._arrived = arrived

    async def send(self, principal: Principal, message: Message, key: IdempotencyKey | None = None) -> str:
        """Store a message for its turn; answers its id. The same key with the same message answers the same.

        Raises MessageInvalid, Forbidden for another's senderId or an effect that the caller might not have over REST.
        """
        body = checks.body_of(message)
        sender = self.sender(principal, message)
        received = EventDraft("message_received", "messaging", f"Message to {message.header.target_zone}.")
        stored = _stored(principal, message, sender, received.event_id)
        admit(stored, self._actions[message.header.address])
        return await self._db.write(lambda tx: self._send(tx, stored, body, received, key))

    def _send(self, tx: Tx, stored: Stored, body: Body, received: EventDraft, key: IdempotencyKey | None) -> str:
        if key is not None and (known := idempotency.find_response(tx, key)):
            return str(known.body)
        times = {"created_at": tx.now, "updated_at": tx.now, "due_at": _due(tx.now, body)}
        store.insert(tx, msgspec.structs.replace(stored, **times))
        meta = {"message_id": stored.message_id, "atp": model.shown(stored.header), "by": stored.principal.name}
        event = msgspec.structs.replace(received, metadata=meta, agent_id=stored.sender_agent)
        self._runlog.append(tx, stored.tenant, [event])
        if key is not None:
            idempotency.store_response(tx, key, StoredResponse(202, stored.message_id))
        tx.after_commit(self._arrived)
        return stored.message_id

    def route(self, principal: Principal, message: Message) -> Route:
        """Who would do it now, and why. Nothing is sent. Raises MessageInvalid, Forbidden, RoutingDenied."""
        body = checks.body_of(message)
        self.sender(principal, message)
        return self._actions[message.header.address].route(principal, message.header, body)

    def missing(self, message: Message) -> str | None:
        """Say why this service cannot carry out a valid message; None when it can."""
        return self._actions[message.header.address].missing

    def sender(self, principal: Principal, message: Message) -> tuple[str, str | None]:
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

    def speaker(self, principal: Principal, message: Message, agent_id: str | None) -> tuple[str, str | None]:
        """The same for a message that is for an agent which the caller names beside it: its own, or any of the tenant
        for a key that is no agent's. Raises NotFound, Forbidden.
        """
        sender, own = self.sender(principal, message)
        if agent_id is None:
            return sender, own
        agent = self._agents.get(principal.tenant, agent_id)
        if agent is None:
            raise NotFound(f"No agent has the id {agent_id!r}.")
        if not authorization.can_act_for(principal, agent):
            raise Forbidden(f"The agent {agent_id!r} is not one of the key {principal.name!r}.")
        return sender, agent_id

    async def get(self, principal: Principal, message_id: str) -> Stored:
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

    async def find(self, tenant: str, message_id: str) -> Stored:
        """The message, for the service itself. Raises NotFound."""
        if not 0 < len(message_id) <= MAX_ID:
            raise NotFound("No message has this id.")
        stored = await self._db.read(lambda tx: store.find(tx, tenant, message_id))
        if stored is None:
            raise NotFound("No message has this id.")
        return stored

    async def answered(self, principal: Principal, message_id: str) -> Stored:
        """A message whose response is known. Raises as `get` does, and NotFound until then."""
        stored = await self.get(principal, message_id)
        if stored.response is None:
            raise NotFound(f"The message is {stored.status}; its response is not known yet.")
        return stored

    async def queue(self, tenant: str) -> Snapshot:
        return await self._db.read(lambda tx: store.snapshot(tx, tenant))


def _stored(principal: Principal, message: Message, sender: tuple[str, str | None], event_id: str) -> Stored:
    return Stored(
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


def _due(now: int, body: Body) -> int:
    """When its turn may come: at once, or when it is scheduled for."""
    if not isinstance(body, Schedule):
        return now
    if body.run_at is not None:
        return max(now, min(micros_from_datetime(body.run_at), now + LATEST))
    return now + (body.delay_seconds or 0) * SECOND


LATEST = 10 * 365 * 86_400 * SECOND
