"""An agent as a policy file sees it."""

from __future__ import annotations

from stentor.core.policy import Entity
from stentor.domains.registry.model import Agent


def entity(agent: Agent) -> Entity:
    return Entity(
        "Agent",
        agent.agent_id,
        {
            "name": agent.name,
            "tenant": agent.tenant,
            "capabilities": agent.capabilities,
            "trust_tier": agent.trust_tier,
            "status": agent.status,
            "runtime": agent.runtime.kind,
            "composite": agent.composite,
        },
    )
