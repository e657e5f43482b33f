"""An agent as a policy file sees it."""

from __future__ import annotations

from stentor.core.security.policy import PolicyEntity
from stentor.domains.registry.model import Agent


def entity(agent: Agent) -> PolicyEntity:
    return PolicyEntity(
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
