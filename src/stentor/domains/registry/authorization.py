"""Who may move whose standing: trust, scores, grades, status, tier, connections, and the updates of an agent.

The one place that decides it, for REST, gRPC, messages and governance. Pure: permissions are checked by the route, the
rest is decided here from the caller, the agent and, for a grade, who submitted the task. The table that this implements
is in docs/security.md.

An agent as a policy file sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from stentor.auth.principal import Principal
from stentor.core.errors import Forbidden
from stentor.core.security.policy import PolicyEntity
from stentor.domains.registry.model import DEFAULT_SCORE, Agent, TrustTier

AgentAction = Literal[
    "trust",
    "scores",
    "grade",
    "suspend",
    "activate",
    "clear_violations",
    "tier",
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
    "clear_violations": "clear its violations",
    "tier": "change its tier",
    "connection": "change its connections",
    "approve": "approve its updates",
    "rollback": "roll it back",
}


def authorize_change(
    principal: Principal, action: AgentAction, agent: Agent, *, submitted_by: Iterable[str | None] = ()
) -> None:
    """Refuse a change of an agent's standing that the caller may not make. Fails closed. Raises Forbidden.

    A key of role `admin` is a person: it may move every agent of its tenant. A key of role `agent` never moves an agent
    that it works as, except to suspend it. It may grade a task that it submitted, or whose ancestor it submitted:
    `submitted_by` holds the key names of the submitters of the task and of its ancestors. Everything else needs the
    permission `admin`, and an agent that has a key of its own.
    """
    if principal.role == "admin":
        return
    if can_work_as(principal, agent):
        if action == "suspend" and principal.may("admin"):
            return
        raise Forbidden(
            f"The key {principal.name!r} can work as the agent {agent.name!r}, so it may not {_PHRASES[action]}: "
            "use a key of role admin."
        )
    if principal.may("admin") or (action == "grade" and principal.name in set(submitted_by)):
        return
    raise Forbidden(f"The key {principal.name!r} has the role agent, so it may not {_PHRASES[action]}.")


def authorize_entity_change(principal: Principal, action: AgentAction, entity_id: str, agent: Agent | None) -> None:
    """`may_move` for what stands under an id that may be no agent's (`agent` is None then). Raises Forbidden."""
    if agent is not None:
        authorize_change(principal, action, agent)
    elif principal.role != "admin" and (not principal.may("admin") or entity_id == principal.name):
        raise Forbidden(f"The key {principal.name!r} has the role agent, so it may not move what stands under this id.")


def authorize_registration(
    principal: Principal, scores: Iterable[float], tier: TrustTier, known: Iterable[Agent] = ()
) -> None:
    """Refuse a registration by an agent's key that starts with more than the defaults, or in place of one of the
    `known` agents of the tenant that it may not bring back. Raises Forbidden.

    Otherwise a key could give the agent that it works as the standing which `may_move` refuses.
    """
    if principal.role == "admin":
        return
    for agent in known:
        if agent.status == "quarantined" and can_work_as(principal, agent):
            raise Forbidden(
                f"The agent {agent.name!r}, which the key {principal.name!r} can work as, is quarantined, so the key "
                "registers no other: use a key of role admin."
            )
        if agent.status == "suspended" and agent.key_name == principal.name:
            raise Forbidden(
                f"The agent {agent.name!r} of the key {principal.name!r} is suspended, so the key registers no other: "
                "use a key of role admin."
            )
    if all(score <= DEFAULT_SCORE for score in scores) and tier != "auto":
        return
    raise Forbidden(
        f"A key of role agent registers agents with scores of at most {DEFAULT_SCORE:g} and without the tier auto: "
        "use a key of role admin for more."
    )


def can_act_for(principal: Principal, agent: Agent) -> bool:
    """Whether the caller may claim the agent's tasks, report on them, hand on its authority and send in its name.

    An agent's key does so for the agents that have its name, and with `admin` for those that have none. Not for the
    others, which `may_move` lets it move: it could make up an agent, raise it, and then be that agent.
    """
    if principal.role == "admin":
        return True
    return principal.may("admin") if agent.key_name is None else agent.key_name == principal.name


def can_work_as(principal: Principal, agent: Agent) -> bool:
    """Whether the holder of an agent's key can be the one who works as this agent.

    An agent without a key may be worked by every agent's key with `admin`, and so may one whose endpoint, model or
    program the service calls: nobody shows a key for its work, so `key_name` does not tell whose it is. The builtin
    agents are the service's own.
    """
    if principal.role == "admin" or agent.key_name == principal.name:
        return principal.role == "agent"
    return principal.may("admin") and (
        is_called_by_service(agent) or (agent.key_name is None and not _is_builtin(agent))
    )


def is_called_by_service(agent: Agent) -> bool:
    """Whether the service calls the agent, so that no key reports its work. Not so the builtin agents."""
    return agent.runtime.kind != "worker" and not _is_builtin(agent)


def _is_builtin(agent: Agent) -> bool:
    return agent.runtime.kind == "builtin"


def to_policy_entity(agent: Agent) -> PolicyEntity:
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
