"""Admission and the decision as pure functions over frozen values; `ranking` beside it has the formula.

Fails closed: a candidate that any check refuses is out, and a request without a candidate is denied
with the code of the furthest check that any of them reached. Source: core contract, "Routing rules".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stentor.core.errors import (
    AgentUnavailable,
    CapabilityUnavailable,
    DelegationDenied,
    PolicyDenied,
    PreferredAgentIneligible,
    RoutingDenied,
    TenantDenied,
    TrustFloorExcludedAll,
)
from stentor.domains.registry.model import Agent
from stentor.domains.routing.ranking import (
    NEUTRAL_TRUST,
    RULE_VERSION,
    AgentCandidate,
    Preference,
    RankedCandidate,
    RankingResult,
    rank_candidates,
)

MAX_RECORDED_CANDIDATES = 10
"""Candidates that a decision lists one by one, the best first: enough to see why, and a log must not grow with the
registry.
"""
MAX_RECORDED_DENIALS = 50
"""Denials that it lists one by one."""
NO_WORKER_ONLINE = "no worker online"
"""Said of a task whose agent is offline, as every agent is that might have had it."""

ADMISSION_CHECKS: tuple[type[RoutingDenied], ...] = (
    CapabilityUnavailable,
    TenantDenied,
    AgentUnavailable,
    DelegationDenied,
    TrustFloorExcludedAll,
    PolicyDenied,
)


class Authority(msgspec.Struct, frozen=True):
    """What the caller may delegate. `capabilities` None means all; `active` false means nothing."""

    is_active: bool = True
    capabilities: frozenset[str] | None = None


class RoutingRequest(msgspec.Struct, frozen=True):
    tenant: str
    task_type: str
    capabilities: tuple[str, ...]
    authority: Authority = Authority()
    preferred_agent_id: str | None = None
    preference: Preference = "balanced"


PolicyCheck = Callable[[RoutingRequest, AgentCandidate], bool]
"""Whether the policy file lets a candidate have the work that the checks before it admitted it to."""


class RoutingPolicy(msgspec.Struct, frozen=True):
    """`alpha` is the share of the evidence after its first outcome, `beta` the share of trust. With `own_authority` an
    agent's key may ask only for what its agents can do themselves, or for what it was granted.
    """

    alpha: float = 0.2
    beta: float = 0.0
    trust_floor: float = 0.0
    own_authority: bool = False
    is_permitted: PolicyCheck | None = None

    @property
    def without_trust(self) -> RoutingPolicy:
        """For a run whose source of trust cannot be read."""
        return msgspec.structs.replace(self, beta=0.0, trust_floor=0.0)


class DeniedCandidate(msgspec.Struct, frozen=True):
    agent_id: str
    name: str
    code: str


class RoutingDecision(msgspec.Struct, frozen=True):
    """Who was chosen and why, as it stands in the run log."""

    agent_id: str
    agent_name: str
    capability: tuple[str, ...]
    alpha: float
    beta: float
    trust_floor: float
    trust_available: bool
    rule: str
    prefer: Preference
    mean: float
    slope: float
    fastest_ms: float
    cheapest: float
    candidates: tuple[RankedCandidate, ...]
    candidates_total: int
    denied: tuple[DeniedCandidate, ...]
    denied_total: int
    preferred: bool
    online: bool
    duration_us: int = 0
    usual_cost: float | None = None


def find_denial(
    request: RoutingRequest, candidate: AgentCandidate, policy: RoutingPolicy
) -> type[RoutingDenied] | None:
    """The first check that refuses this candidate, or None."""
    agent = candidate.agent
    if not agent.capability_set.issuperset(request.capabilities):
        return CapabilityUnavailable
    if agent.tenant != request.tenant:
        return TenantDenied
    if agent.status != "active":
        return AgentUnavailable
    authority = request.authority
    if not authority.is_active or not (
        authority.capabilities is None or authority.capabilities.issuperset(request.capabilities)
    ):
        return DelegationDenied
    if policy.trust_floor > 0 and (NEUTRAL_TRUST if candidate.trust is None else candidate.trust) < policy.trust_floor:
        return TrustFloorExcludedAll
    if policy.is_permitted is not None and not policy.is_permitted(request, candidate):
        return PolicyDenied
    return None


def decide(
    request: RoutingRequest,
    candidates: Sequence[AgentCandidate],
    policy: RoutingPolicy,
    *,
    trust_available: bool = True,
) -> RoutingDecision:
    """Admit, rank and choose. Raises the RoutingDenied of the furthest check when nobody is left."""
    if not trust_available:
        policy = policy.without_trust
    admitted: list[AgentCandidate] = []
    refused: list[tuple[Agent, type[RoutingDenied]]] = []
    for candidate in candidates:
        reason = find_denial(request, candidate, policy)
        if reason is None:
            admitted.append(candidate)
        else:
            refused.append((candidate.agent, reason))
    if not admitted:
        raise build_denial(request, refused)
    ranking = rank_candidates(admitted, policy.beta, request.preference, MAX_RECORDED_CANDIDATES)
    return _decision(request, policy, ranking, len(admitted), refused, trust_available)


def _decision(
    request: RoutingRequest,
    policy: RoutingPolicy,
    ranking: RankingResult,
    admitted: int,
    refused: list[tuple[Agent, type[RoutingDenied]]],
    trust_available: bool,
) -> RoutingDecision:
    best = ranking.candidates[0]
    return RoutingDecision(
        best.agent_id,
        best.name,
        request.capabilities,
        policy.alpha,
        policy.beta,
        policy.trust_floor,
        trust_available,
        RULE_VERSION,
        request.preference,
        ranking.mean,
        ranking.slope,
        ranking.fastest_ms,
        ranking.cheapest,
        tuple(ranking.candidates),
        admitted,
        _denied(refused),
        len(refused),
        request.preferred_agent_id is not None,
        best.online,
        usual_cost=ranking.usual_cost,
    )


def build_denial(request: RoutingRequest, refused: Sequence[tuple[Agent, type[RoutingDenied]]]) -> RoutingDenied:
    """The error for a request that nobody may take. Names no agent of another tenant."""
    furthest = max((reason for _, reason in refused), key=ADMISSION_CHECKS.index, default=CapabilityUnavailable)
    details: dict[str, Any] = {"required_capabilities": list(request.capabilities)}
    if request.preferred_agent_id is not None:
        details |= {"agent_preference": request.preferred_agent_id, "reason": furthest.code}
        return PreferredAgentIneligible("The preferred agent may not take this task.", details)
    details["denied"] = [msgspec.to_builtins(d) for d in _denied(refused)]
    return furthest(DENIAL_MESSAGES[furthest], details)


def _denied(refused: Sequence[tuple[Agent, type[RoutingDenied]]]) -> tuple[DeniedCandidate, ...]:
    return tuple(
        DeniedCandidate(agent.agent_id, agent.name, reason.code) for agent, reason in refused[:MAX_RECORDED_DENIALS]
    )


DENIAL_MESSAGES: dict[type[RoutingDenied], str] = {
    CapabilityUnavailable: "No registered agent has all the required capabilities.",
    TenantDenied: "The agents with these capabilities belong to another tenant.",
    AgentUnavailable: "Every agent with these capabilities is suspended or quarantined.",
    DelegationDenied: "The caller has no authority to delegate these capabilities.",
    TrustFloorExcludedAll: "Every agent with these capabilities is below the trust floor.",
    PolicyDenied: "The policy of this service lets no agent with these capabilities have the task.",
}
