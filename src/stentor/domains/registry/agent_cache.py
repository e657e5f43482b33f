"""All agents in memory, by id, capability and key: routing reads them here and not from the database.

The cost of a lookup depends on the number of agents with the capability, not of all agents. `AgentRegistry` fills it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from stentor.core.db.polling import CatchUp
from stentor.core.errors import AgentUnavailable, NotFound
from stentor.domains.registry.model import Agent

T = TypeVar("T")


class AgentCache:
    def __init__(self) -> None:
        self._by_id: dict[str, Agent] = {}
        self._by_tenant: dict[str, dict[str, Agent]] = {}
        self._by_capability: dict[str, dict[str, dict[str, Agent]]] = {}
        self._by_key: dict[tuple[str, str], dict[str, Agent]] = {}
        self.status_counts: Counter[str] = Counter()
        """Number of agents by status, without archived ones."""
        self.listeners: list[Callable[[Agent], None]] = []
        """Called with every agent that is new or changed, on the event loop; they must return at once."""
        self.catch_up = CatchUp()
        self._changes = 0

    async def refresh(self) -> bool:
        """Read the changes of other processes; return whether an agent is new or changed."""
        before = self._changes
        return await self.catch_up() and self._changes != before

    async def retry_after_refresh(self, check: Callable[[], T]) -> T:
        """Run `check`. If it raises NotFound or AgentUnavailable, refresh, and run it again if an agent changed."""
        try:
            return check()
        except (NotFound, AgentUnavailable):
            if not await self.refresh():
                raise
        return check()

    def __len__(self) -> int:
        return len(self._by_id)

    def put(self, agent: Agent) -> None:
        """Add or replace an agent; an older record never replaces a newer one."""
        previous = self._by_id.get(agent.agent_id)
        if previous is not None:
            if previous.updated_at > agent.updated_at or previous == agent:
                return  # polls overlap by some seconds, so a change is read several times
            self._drop(previous)
            if not previous.is_archived:
                self.status_counts[previous.status] -= 1
        if not agent.is_archived:
            self.status_counts[agent.status] += 1
        self._by_id[agent.agent_id] = agent
        self._by_tenant.setdefault(agent.tenant, {})[agent.agent_id] = agent
        for capability in agent.capabilities:
            tenants = self._by_capability.setdefault(capability, {})
            tenants.setdefault(agent.tenant, {})[agent.agent_id] = agent
        if agent.key_name is not None:
            self._by_key.setdefault((agent.tenant, agent.key_name), {})[agent.agent_id] = agent
        self._changes += 1
        # Last: a listener may look the agent up, and must find it under all keys.
        for listener in self.listeners:
            listener(agent)

    def _drop(self, agent: Agent) -> None:
        for capability in agent.capabilities:
            self._by_capability[capability][agent.tenant].pop(agent.agent_id, None)
        if agent.key_name is not None:
            self._by_key[agent.tenant, agent.key_name].pop(agent.agent_id, None)

    def get(self, tenant: str, agent_id: str) -> Agent | None:
        """Return an agent of the tenant, None for an unknown one or one of another tenant."""
        agent = self._by_id.get(agent_id)
        return agent if agent is not None and agent.tenant == tenant else None

    def find_name(self, tenant: str, agent_id: str | None) -> str | None:
        """Return the name of an agent of the tenant, None for an unknown one."""
        agent = self.get(tenant, agent_id or "")
        return None if agent is None else agent.name

    def find_in_any_tenant(self, agent_id: str) -> Agent | None:
        """Return an agent of any tenant. For background jobs only, never for a request of a caller."""
        return self._by_id.get(agent_id)

    def version(self, agent_id: str) -> int | None:
        """Return the version of the cached record, its `updated_at`; None for an unknown agent."""
        agent = self._by_id.get(agent_id)
        return None if agent is None else agent.updated_at

    def list_capable(self, tenant: str, capabilities: Iterable[str]) -> list[Agent]:
        """Return the tenant's agents that have all the capabilities."""
        required = frozenset(capabilities)
        if not required:
            return list(self._by_tenant.get(tenant, {}).values())
        pools = [self._by_capability.get(capability, {}).get(tenant, {}) for capability in required]
        # The rarest capability first: only its agents have to be looked at.
        smallest = min(pools, key=len)
        if len(required) == 1:
            return list(smallest.values())
        return [agent for agent in smallest.values() if required <= agent.capability_set]

    def is_capable_elsewhere(self, tenant: str, capabilities: Iterable[str]) -> bool:
        """Return whether another tenant has an agent with all the capabilities."""
        required = frozenset(capabilities)
        if required:
            tenants = set.intersection(*(set(self._by_capability.get(capability, ())) for capability in required))
        else:
            tenants = set(self._by_tenant)
        return any(self.list_capable(other, required) for other in tenants - {tenant})

    def list_capabilities(self, tenant: str) -> set[str]:
        """Return all capabilities that some agent of the tenant has."""
        return {capability for capability, agents in self._by_capability.items() if agents.get(tenant)}

    def list_by_key(self, tenant: str, key_name: str) -> list[Agent]:
        """Return the agents that were registered with the name of a key."""
        return list(self._by_key.get((tenant, key_name), {}).values())

    def find_single_by_key(self, tenant: str, key_name: str) -> str | None:
        """Return the id of the agent of a key; None if it has none or several. Archived agents do not count."""
        agents = [agent for agent in self.list_by_key(tenant, key_name) if not agent.is_archived]
        return agents[0].agent_id if len(agents) == 1 else None

    def list_all(self) -> list[Agent]:
        """List the agents of all tenants. For background jobs only, never for a request of a caller."""
        return list(self._by_id.values())

    def list_by_tenant(self, tenant: str) -> list[Agent]:
        return list(self._by_tenant.get(tenant, {}).values())
