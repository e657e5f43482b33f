"""Admission and the routing decision. Pure; the formula of the score is in `ranking`.

Fails closed: a candidate that fails any check is not admitted, and a request without an admitted candidate is denied
with the code of the furthest check that any candidate reached. Source: core contract, "Routing rules".
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence

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
from stentor.core.jsontext import JsonObject
from stentor.domains.registry.model import Agent, describe_remedy
from stentor.domains.routing.candidates import NEUTRAL_TRUST, AgentCandidate, RankedCandidate
from stentor.domains.routing.penalties import Preference
from stentor.domains.routing.ranking import RULE_VERSION, RankingResult, rank_candidates

MAX_RECORDED_CANDIDATES = 10
"""Candidates that a decision lists, best first. Not all, or each record would grow with the registry."""
MAX_RECORDED_DENIALS = 50
"""Denied candidates that a decision lists."""
MAX_LISTED_CAPABILITIES = 100
"""Known capabilities in the details of an error."""
MAX_NAMED_CAPABILITIES = 12
"""Known capabilities in its message."""
MODEL_UNSERVED = "ROUTING_MODEL_UNSERVED"
"""The code of an agent whose model no provider serves, in a decision for an agent that is offline but may come back."""

# In the order of the checks in `find_denial`: the furthest one reached names the denial of the whole request.
ADMISSION_CHECKS: tuple[type[RoutingDenied], ...] = (
    CapabilityUnavailable,
    TenantDenied,
    AgentUnavailable,
    DelegationDenied,
    TrustFloorExcludedAll,
    PolicyDenied,
)
DENIAL_MESSAGES: dict[type[RoutingDenied], str] = {
    CapabilityUnavailable: "No registered agent has all the required capabilities.",
    TenantDenied: "The agents with these capabilities belong to another tenant.",
    AgentUnavailable: "Every agent with these capabilities is suspended, quarantined or archived.",
    DelegationDenied: "The caller has no authority to delegate these capabilities.",
    TrustFloorExcludedAll: "Every agent with these capabilities is below the trust floor.",
    PolicyDenied: "The policy of this service permits no agent with these capabilities for this task.",
}

UNNAMED_CAPABILITIES = (
    "The task requires no capability, and every agent can do more than the caller may request. Name what it needs in "
    "required_capabilities."
)

DENIAL_REASONS = {
    CapabilityUnavailable.code: "lacks a capability",
    TenantDenied.code: "belongs to another tenant",
    AgentUnavailable.code: "is suspended, quarantined or archived",
    DelegationDenied.code: "requires authority that the caller lacks",
    TrustFloorExcludedAll.code: "has too little trust",
    PolicyDenied.code: "is denied by the policy of this service",
    MODEL_UNSERVED: "has a model that no provider serves",
}
Denial = tuple[Agent, str]
"""An agent that was not admitted, with a code of DENIAL_REASONS."""


def describe_denial(code: str) -> str:
    """Return why an agent was not admitted, after its name; a code that is unknown here as words."""
    return DENIAL_REASONS.get(code) or code.removeprefix("ROUTING_").replace("_", " ").lower()


class Authority(msgspec.Struct, frozen=True):
    """What a caller may request. `capabilities` None means all; with `is_active` false nothing.

    `key_name` is the key whose own capabilities they are, None for those of a grant.
    """

    is_active: bool = True
    capabilities: frozenset[str] | None = None
    key_name: str | None = None

    def covers(self, required: Collection[str], agent: Agent) -> bool:
        """Return whether the agent may be given work that requires these capabilities."""
        if not self.is_active or self.capabilities is None:
            return self.is_active
        if required:
            return self.capabilities.issuperset(required)
        # Work that requires no capability may be anything the agent does, which is unknown for an agent that declares
        # none.
        is_own = self.key_name is not None and agent.key_name == self.key_name
        return is_own or (bool(agent.capabilities) and self.capabilities.issuperset(agent.capabilities))


class RoutingRequest(msgspec.Struct, frozen=True):
    """What routing needs to know of a task. `starts_later`: it waits for a time or for other tasks first.

    `input_length` is in bytes, None if it is unknown.
    """

    tenant: str
    task_type: str
    capabilities: tuple[str, ...]
    authority: Authority = Authority()
    preferred_agent_id: str | None = None
    preference: Preference = "balanced"
    starts_later: bool = False
    input_length: int | None = None


PolicyCheck = Callable[[RoutingRequest, AgentCandidate], bool]
"""Return whether the policy file permits a candidate that all checks before it admitted."""


class RoutingPolicy(msgspec.Struct, frozen=True):
    """The settings of routing.

    `alpha` is the share of the evidence after the first outcome, `beta` the share of trust in the score. With
    `own_authority` a key with the role agent may request only what its agents can do themselves or what it was granted.
    """

    alpha: float = 0.2
    beta: float = 0.0
    trust_floor: float = 0.0
    own_authority: bool = False
    is_permitted: PolicyCheck | None = None

    @property
    def without_trust(self) -> RoutingPolicy:
        """The policy to apply while trust cannot be read."""
        return msgspec.structs.replace(self, beta=0.0, trust_floor=0.0)


class DeniedCandidate(msgspec.Struct, frozen=True):
    """A candidate that was not admitted, with the code of the check that it failed."""

    agent_id: str
    name: str
    code: str


class RoutingDecision(msgspec.Struct, frozen=True):
    """The chosen agent with everything that the choice depended on, as recorded in the run log."""

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


def describe_choice(decision: RoutingDecision) -> str:
    """Return the name of the chosen agent, and that it was requested or among how many candidates it was chosen."""
    total = decision.candidates_total
    if decision.preferred:
        return f"{decision.agent_name}, as the task requested"
    return f"{decision.agent_name}, {'the only candidate' if total == 1 else f'chosen among {total} candidates'}"


def find_denial(
    request: RoutingRequest, candidate: AgentCandidate, policy: RoutingPolicy
) -> type[RoutingDenied] | None:
    """Return the first check that the candidate fails, or None if it is admitted."""
    agent = candidate.agent
    if not agent.capability_set.issuperset(request.capabilities):
        return CapabilityUnavailable
    if agent.tenant != request.tenant:
        return TenantDenied
    if agent.status != "active":
        return AgentUnavailable
    if not request.authority.covers(request.capabilities, agent):
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
    """Admit, rank and choose. Raises the RoutingDenied of the furthest check if no candidate is admitted."""
    if not trust_available:
        policy = policy.without_trust
    admitted: list[AgentCandidate] = []
    failed: list[tuple[Agent, type[RoutingDenied]]] = []
    denied: list[Denial] = []
    for candidate in candidates:
        reason = find_denial(request, candidate, policy)
        if reason is None:
            admitted.append(candidate)
        else:
            failed.append((candidate.agent, reason))
            denied.append((candidate.agent, reason.code))
    if not admitted:
        raise build_denial(request, failed)
    ranking = rank_candidates(admitted, policy.beta, request.preference, MAX_RECORDED_CANDIDATES)
    if not ranking.candidates[0].online and (
        waiting := [each for each in admitted if each.agent.runtime.kind != "llm"]
    ):
        # A worker comes back, while a model that no provider serves fails the task at once.
        denied += [(each.agent, MODEL_UNSERVED) for each in admitted if each.agent.runtime.kind == "llm"]
        admitted = waiting
        ranking = rank_candidates(admitted, policy.beta, request.preference, MAX_RECORDED_CANDIDATES)
    return _decision(request, policy, ranking, len(admitted), denied, trust_available)


def _decision(
    request: RoutingRequest,
    policy: RoutingPolicy,
    ranking: RankingResult,
    admitted_total: int,
    denied: list[Denial],
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
        admitted_total,
        _denied_candidates(denied),
        len(denied),
        request.preferred_agent_id is not None,
        best.online,
        usual_cost=ranking.usual_cost,
    )


def build_denial(request: RoutingRequest, denied: Sequence[tuple[Agent, type[RoutingDenied]]]) -> RoutingDenied:
    """Return the error for a request without an admitted candidate."""
    furthest = max((reason for _, reason in denied), key=ADMISSION_CHECKS.index, default=CapabilityUnavailable)
    details: JsonObject = {"required_capabilities": list(request.capabilities)}
    if request.preferred_agent_id is not None:
        details |= {"agent_preference": request.preferred_agent_id, "reason": furthest.code}
        message = _describe_unavailable(denied) or (
            f"The preferred agent is not eligible: it {describe_denial(furthest.code)}. Choose another one, or none."
            if denied
            else f"No agent has the id {request.preferred_agent_id!r}. Choose another one, or none."
        )
        return PreferredAgentIneligible(message, details)
    # All candidates are of the request's tenant, so that this names no agent of another one.
    codes = [(agent, reason.code) for agent, reason in denied[:MAX_RECORDED_DENIALS]]
    details["denied"] = [msgspec.to_builtins(d) for d in _denied_candidates(codes)]
    message = _describe_unavailable(denied) if furthest is AgentUnavailable else None
    if furthest is DelegationDenied and request.authority.is_active and not request.capabilities:
        message = UNNAMED_CAPABILITIES
    return furthest(message or DENIAL_MESSAGES[furthest], details)


def _describe_unavailable(denied: Sequence[tuple[Agent, type[RoutingDenied]]]) -> str | None:
    """Return that all agents that were unavailable are archived, suspended or quarantined, and how to change that."""
    unavailable = [agent for agent, reason in denied if reason is AgentUnavailable]
    if not unavailable:
        return None
    is_one, name = len(unavailable) == 1, unavailable[0].name
    which = f"The agent {name}" if is_one else "Every agent with these capabilities"
    if all(agent.is_archived for agent in unavailable):
        return f"{which} is archived{describe_remedy('archived', name)}"
    suspended = [agent for agent in unavailable if agent.status == "suspended" and not agent.is_archived]
    if not suspended:
        status = "quarantined" if is_one else "quarantined or archived"
        return f"{which} is {status}{describe_remedy('quarantined', name)}"
    status = "suspended" if is_one else "suspended, quarantined or archived"
    return f"{which} is {status}{describe_remedy('suspended', suspended[0].name)}"


def build_capability_denial(request: RoutingRequest, known: Collection[str]) -> CapabilityUnavailable:
    """Return the error for capabilities that no agent of the tenant has together; `known` are those of its agents."""
    message = DENIAL_MESSAGES[CapabilityUnavailable]
    unknown = [capability for capability in request.capabilities if capability not in known]
    if unknown:
        similar = difflib.get_close_matches(unknown[0], known, 1)
        message += f" None has {unknown[0]!r}" + (f"; did you mean {similar[0]!r}?" if similar else ".")
        if known:
            named = sorted(known)[:MAX_NAMED_CAPABILITIES]
            message += f" Known capabilities: {', '.join(named)}{', ...' if len(known) > len(named) else '.'}"
        else:
            message += " No agent has any capability."
    details: JsonObject = {
        "required_capabilities": list(request.capabilities),
        "unknown_capabilities": unknown,
        "known_capabilities": sorted(known)[:MAX_LISTED_CAPABILITIES],
    }
    return CapabilityUnavailable(message, details)


def _denied_candidates(denied: Sequence[Denial]) -> tuple[DeniedCandidate, ...]:
    return tuple(DeniedCandidate(agent.agent_id, agent.name, code) for agent, code in denied[:MAX_RECORDED_DENIALS])
