"""A change of an agent inside a transaction: its row, its event and, after the commit, the cache of agents."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import Conflict, NotFound
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.registry import authorization, store
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.authorization import AgentAction
from stentor.domains.registry.model import Agent, AgentStatus

AgentChange = Callable[[Tx], Agent]
"""A prepared change of an agent, to be run in a transaction."""
Actor = Principal | Literal["system"]
"""Who changes an agent. A caller is authorized; the service itself is not."""


class AgentWriter:
    """Writes changes of agents with their events."""

    def __init__(self, runlog: RunLog, agents: AgentCache) -> None:
        self._runlog = runlog
        self._agents = agents

    def prepare_status(
        self,
        tenant: str,
        agent_id: str,
        sources: Collection[AgentStatus],
        target: AgentStatus,
        reason: str | None,
        by: Actor,
        cause: str | None,
    ) -> AgentChange:
        """Return a change of the status from one of `sources`. It raises Forbidden, NotFound and Conflict."""

        def change(agent: Agent) -> dict[str, Any]:
            authorize(by, "suspend" if target == "suspended" else "activate", agent)
            refuse_archived(agent)
            if agent.status not in sources:
                raise Conflict(
                    f"The agent is {target} already."
                    if agent.status == target
                    else f"The agent is {agent.status}, so it cannot become {target}."
                )
            return {"status": target, "status_reason": reason}

        meta = {"to": target, "reason": reason, "by": name_of(by)}
        message = f"Agent {target}."
        return self.prepare(tenant, agent_id, change, "agent_status_changed", message, meta, cause=cause)

    def prepare(
        self,
        tenant: str,
        agent_id: str,
        change: Callable[[Agent], dict[str, Any]],
        event: Any,
        message: str,
        meta: dict[str, Any],
        also: Callable[[Tx], None] | None = None,
        cause: str | None = None,
    ) -> AgentChange:
        """Return a change of the fields that `change` gives for the agent as it is then. It raises NotFound.

        `also` runs in the same transaction; `cause` is the id of the event that led to it.
        """

        def work(tx: Tx) -> Agent:
            agent = require_agent(tx, tenant, agent_id)
            changed = msgspec.structs.replace(agent, **change(agent), updated_at=next_version(tx, agent))
            store.update(tx, changed)
            if also is not None:
                also(tx)
            self.record(tx, changed, event, message, meta, cause)
            return changed

        return work

    def record(
        self, tx: Tx, agent: Agent, event: Any, message: str, meta: dict[str, Any], cause: str | None = None
    ) -> None:
        """Record the event of an agent that was stored in this transaction."""
        draft = EventDraft(event, "registry", message, meta, agent_id=agent.agent_id)
        self._runlog.append(tx, agent.tenant, [draft], parent=cause)
        # After the commit: routing must never see an agent whose change was rolled back.
        tx.after_commit(lambda: self._agents.put(agent))


def next_version(tx: Tx, agent: Agent) -> int:
    """Return the time of a change, which is also the version: it must grow even if the clock was set back."""
    return max(tx.now, agent.updated_at + 1)


def name_of(by: Actor) -> str:
    return by.name if isinstance(by, Principal) else by


def authorize(by: Actor, action: AgentAction, agent: Agent) -> None:
    """Raise Forbidden unless a caller may change the agent so; the service itself may."""
    if isinstance(by, Principal):
        authorization.authorize_change(by, action, agent)


def refuse_archived(agent: Agent) -> None:
    """Raise Conflict for an archived agent."""
    if agent.is_archived:
        raise Conflict(f"The agent is archived; restore it first: stentor agent restore {agent.agent_id}")


def require_agent(tx: Tx, tenant: str, agent_id: str) -> Agent:
    """Return an agent. Raises NotFound."""
    agent = store.find(tx, tenant, agent_id)
    if agent is None:
        raise NotFound(f"No agent has the id {agent_id!r}.")
    return agent
