"""Decides which caller may change or act for which agent: trust, scores, grades, status, tier, connections, updates.

The only place that decides it, for REST, gRPC, messages and governance. Source: docs/permissions.md. Pure: the route
checks the permission, the rest follows from the caller, the agent and, for a grade, who submitted the task.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from stentor.auth.principal import Principal
from stentor.core.errors import Forbidden
from stentor.core.security.policy import PolicyEntity
from stentor.domains.registry.model import DEFAULT_SCORE, Agent, AgentChanges, TrustTier, is_looser

AgentAction = Literal[
    "trust",
    "scores",
    "grade",
    "suspend",
    "activate",
    "archive",
    "restore",
    "clear_violations",
    "tier",
    "key",
    "connection",
    "approve",
    "rollback",
]

_PHRASES: dict[AgentAction, str] = {
    "trust": "change its trust",
    "scores": "change its scores",
    "grade": "grade its tasks",
    "suspend": "suspend it",
    "activate": "activate it",
    "archive": "archive it",
    "restore": "restore it",
    "clear_violations": "clear its violations",
    "tier": "change its tier",
    "key": "change its key",
    "connection": "change its connections",
    "approve": "approve its updates",
    "rollback": "roll it back",
}


def authorize_change(
    principal: Principal, action: AgentAction, agent: Agent, *, submitted_by: Iterable[str | None] = ()
) -> None:
    """Refuse a change of an agent that the caller may not make. Fails closed. Raises Forbidden.

    A person's key may change every agent of its tenant. A key with the role `agent` never changes an agent
    that it can run as, except to suspend it. It may grade a task if it submitted the task or one of its ancestors:
    `submitted_by` holds the key names of their submitters. Everything else needs the permission `admin`, and an agent
    that has its own key.
    """
    if principal.is_person:
        return
    if can_work_as(principal, agent):
        if action == "suspend" and principal.may("admin"):
            return
        raise Forbidden(
            f"The key {principal.name!r} can run as the agent {agent.name!r}, so it may not {_PHRASES[action]}: "
            "use a person's key."
        )
    if principal.may("admin") or (action == "grade" and principal.name in set(submitted_by)):
        return
    raise Forbidden(f"The key {principal.name!r} has the role agent, so it may not {_PHRASES[action]}.")


def may_change(principal: Principal, action: AgentAction, agent: Agent) -> bool:
    """Return whether `authorize_change` permits it."""
    try:
        authorize_change(principal, action, agent)
    except Forbidden:
        return False
    return True


def authorize_entity_change(principal: Principal, action: AgentAction, entity_id: str, agent: Agent | None) -> None:
    """Check a change of the records of an id that may be no agent's; then `agent` is None. Raises Forbidden."""
    if agent is not None:
        authorize_change(principal, action, agent)
    elif not principal.is_person and (not principal.may("admin") or entity_id == principal.name):
        raise Forbidden(f"The key {principal.name!r} has the role agent, so it may not change the records of this id.")


def authorize_edit(principal: Principal, agent: Agent, changes: AgentChanges) -> None:
    """Refuse new scores, a tier or a key that the caller may not set. Fails closed. Raises Forbidden.

    The key decides who acts as the agent and whose approval of its updates counts as its own, so only a person moves
    it, and not with the key that the agent has: its program may hold that one.
    """
    fields = changes.fields
    if any(name.endswith("_score") for name in fields):
        authorize_change(principal, "scores", agent)
    if changes.trust_tier is not None:
        authorize_tier(principal, agent, changes.trust_tier)
    if "key_name" in fields:
        authorize_change(principal, "key", agent)
        if fields["key_name"] != agent.key_name:
            _require_other_person(principal, "key", agent)


def authorize_tier(principal: Principal, agent: Agent, tier: TrustTier) -> None:
    """Refuse a tier that the caller may not set. Raises Forbidden.

    A looser tier takes a person's approval away, so only a person sets it, and not with the key that the agent has.
    """
    authorize_change(principal, "tier", agent)
    if is_looser(agent.trust_tier, tier):
        _require_other_person(principal, "tier", agent)


def is_other_person(principal: Principal, agent: Agent) -> bool:
    """Return whether the caller is a person, and its key is not the one that the agent's program may hold."""
    return principal.is_person and agent.key_name != principal.name


def _require_other_person(principal: Principal, action: AgentAction, agent: Agent) -> None:
    if is_other_person(principal, agent):
        return
    if not principal.is_person:
        raise Forbidden(f"A key with the role agent may not {_PHRASES[action]} to this value: use a person's key.")
    raise Forbidden(
        f"{principal.name!r} is the key of the agent {agent.name!r}, so it may not {_PHRASES[action]} to this "
        "value: use the key of another person."
    )


def authorize_registration(
    principal: Principal, scores: Iterable[float], tier: TrustTier, known: Iterable[Agent] = ()
) -> None:
    """Refuse a registration that `authorize_change` would refuse as a change. Raises Forbidden.

    A key with the role agent may not register an agent with scores above the default or with the tier auto, and no
    agent at all while one that it can run as is quarantined or its own one is suspended. `known` are the agents of the
    tenant.
    """
    if principal.is_person:
        return
    for agent in known:
        if agent.status == "quarantined" and can_work_as(principal, agent):
            raise Forbidden(
                f"The agent {agent.name!r}, which the key {principal.name!r} can run as, is quarantined, so the key "
                "may not register another agent: use a person's key."
            )
        # Archiving suspends the agent, which says nothing about its quality: the status before it counts.
        if (agent.archived_from or agent.status) == "suspended" and agent.key_name == principal.name:
            raise Forbidden(
                f"The agent {agent.name!r} of the key {principal.name!r} is suspended, so the key may not register "
                "another agent: use a person's key."
            )
    # Routing prefers agents with high scores: a key could otherwise register its own agent ahead of all others.
    if all(score <= DEFAULT_SCORE for score in scores) and tier != "auto":
        return
    raise Forbidden(
        f"A key with the role agent may only register agents with scores of at most {DEFAULT_SCORE:g} and a tier other "
        "than auto: use a person's key."
    )


def can_act_for(principal: Principal, agent: Agent) -> bool:
    """Return whether the caller may claim the agent's tasks, report outcomes, delegate its authority and send as it.

    A key with the role agent may for the agents that have its name and, with the permission `admin`, for those without
    a key. Not for the others, which `authorize_change` lets it change: it could register an agent, raise its scores,
    and then act as that agent.
    """
    if principal.is_person:
        return True
    return principal.may("admin") if agent.key_name is None else agent.key_name == principal.name


def can_work_as(principal: Principal, agent: Agent) -> bool:
    """Return whether the holder of a key with the role agent could be the one behind this agent.

    Every such key with the permission `admin` could be behind an agent without a key, and behind one whose endpoint,
    model or program the service calls: no key is shown for its work, so `key_name` does not identify its owner. Nobody
    is behind the builtin agents, which belong to the service.
    """
    # A person's key can have the name of an agent's too, but then it is still the key of a person.
    if principal.is_person or agent.key_name == principal.name:
        return principal.role == "agent"
    return principal.may("admin") and (
        is_called_by_service(agent) or (agent.key_name is None and not _is_builtin(agent))
    )


def is_called_by_service(agent: Agent) -> bool:
    """Return whether the service calls the agent, so that no key reports its outcomes; False for builtin agents."""
    return agent.runtime.kind != "worker" and not _is_builtin(agent)


def _is_builtin(agent: Agent) -> bool:
    return agent.runtime.kind == "builtin"


def to_policy_entity(agent: Agent) -> PolicyEntity:
    """Return the agent as rules of a policy file see it."""
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
