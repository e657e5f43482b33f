"""The routing engine: builds the candidates from memory and calls the pure functions of `model` and `ranking`.

Reads the agent cache and the views of learning and trust. Touches no database, so that a decision stays fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
from prometheus_client.core import Metric

from stentor.auth.principal import Principal
from stentor.core.clock import DAY, Clock
from stentor.core.errors import AgentUnavailable, RoutingDenied, TenantDenied, all_errors
from stentor.core.jsontext import JsonObject
from stentor.core.metrics import SHORT_BUCKETS_S, Counter, Histogram
from stentor.domains.learning.length import Splits, length_group, share_evidence
from stentor.domains.learning.load import Factors, load_group, mean_factor, own_factors
from stentor.domains.learning.model import Weight
from stentor.domains.learning.outages import without_outage
from stentor.domains.learning.view import NO_RECORDS, LearningView, TaskTypeRecords
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.routing import model
from stentor.domains.routing.candidates import AgentCandidate, Candidate
from stentor.domains.routing.model import Authority, RoutingDecision, RoutingPolicy, RoutingRequest
from stentor.domains.routing.track_record import TrackRecord, build_track_record
from stentor.domains.trust.service import TrustView

_DENIAL_CODES = [
    (error.code,) for error in all_errors() if issubclass(error, RoutingDenied) and error is not RoutingDenied
]
AGE_STEP = 32
"""Evidence decays, and exploration grows, in steps of this many outcomes, so that a cached track record
lasts that long."""
MAX_CHOSEN = 100_000
"""Agents and task types whose tasks since the last counted outcome are remembered."""


class AgentLoad(msgspec.Struct, frozen=True, gc=False):
    """How busy an agent is. `ahead` counts its queued and running tasks.

    `failing_share` is the share of its tasks that its provider fails, `stalled_ms` for how long it has neither taken
    nor ended a task; 0 if it has room.
    """

    ahead: int = 0
    concurrency: int = 1
    is_online: bool = True
    is_resting: bool = False
    failing_share: float = 0.0
    stalled_ms: float = 0.0


LoadLookup = Callable[[Agent], AgentLoad]
IDLE = AgentLoad()


class RoutingEngine:
    """Decides which agent gets a task."""

    def __init__(
        self,
        agents: AgentCache,
        learning: LearningView,
        trust: TrustView,
        clock: Clock,
        policy: RoutingPolicy,
    ) -> None:
        self._agents = agents
        self._learning = learning
        self._trust = trust
        self._clock = clock
        self.policy = policy
        self.agent_load: LoadLookup = lambda _: IDLE
        """Set by `bootstrap/parts/tasks.py`, because the dispatcher, which knows the load, itself needs routing."""
        self.is_unseen: Callable[[Agent], bool] = lambda _: False
        """Set there too: whether no program has connected yet as an agent that was registered just now."""
        text = "Duration of a routing decision that chose an agent."
        self._durations = Histogram("stentor_routing_duration_seconds", text, SHORT_BUCKETS_S)
        self._chosen: dict[tuple[str, str, bool], tuple[int, int]] = {}
        """For an agent and a task type: its outcomes that counted when it was chosen, and how often it was since.

        True: for tasks that still wait for their start or an approval.
        """
        text = "Routing decisions without an eligible agent, by reason."
        self._denials = Counter("stentor_routing_denials", text, "reason", known=_DENIAL_CODES)

    def decide(self, request: RoutingRequest) -> RoutingDecision:
        """Choose an agent. Raises RoutingDenied."""
        started = time.perf_counter_ns()
        try:
            decision = self._decide(request)
        except RoutingDenied as denial:
            self._denials.labels(denial.code).inc()
            raise
        duration_ns = time.perf_counter_ns() - started
        self._durations.observe(duration_ns / 1e9)
        return msgspec.structs.replace(decision, duration_us=duration_ns // 1000)

    def record_choice(
        self, tenant: str, task_type: str, agent_id: str, change: int = 1, *, waits: bool = False
    ) -> None:
        """Count a task that an agent got: it is a try, also if its outcome teaches nothing. In this process only.

        `change` is -1 for a task that the agent has no more and never began. While a task `waits` for its start or an
        approval, it is a try only for others that will wait too.
        """
        key = agent_id, task_type, waits
        weight = self._learning.records(tenant, task_type).weights_by_agent.get(agent_id)
        count = _count_chosen(self._chosen.get(key, (0, 0)), weight)
        if len(self._chosen) >= MAX_CHOSEN:
            self._chosen.clear()
        self._chosen[key] = weight.samples if weight else 0, max(0, count + change)

    def decide_for_waiting(self, request: RoutingRequest, planned: Mapping[str, int]) -> RoutingDecision | None:
        """Choose an online agent for a queued task; None if no such agent is online.

        `planned` are tasks per agent that are about to be moved there too, less those that are not ahead of this one.
        Not counted in the metrics.
        """
        started = time.perf_counter_ns()
        # No agents of tier `human`: an approval, or the absence of one, was for the original agent only.
        agents = [agent for agent in self._pool(request) if agent.trust_tier != "human"]
        # Asked first, because in an outage of all workers every waiting task comes here.
        if not any(self.agent_load(agent).is_online for agent in agents):
            return None
        candidates = [
            msgspec.structs.replace(each, ahead=max(0, each.ahead + planned.get(each.agent.agent_id, 0)))
            for each in self._candidates(request, agents, self._clock.now())
        ]
        try:
            decision = model.decide(request, candidates, self.policy, trust_available=self._trust.is_available)
        except RoutingDenied:
            return None
        duration_us = (time.perf_counter_ns() - started) // 1000
        return msgspec.structs.replace(decision, duration_us=duration_us) if decision.online else None

    def _decide(self, request: RoutingRequest) -> RoutingDecision:
        now = self._clock.now()
        agents = self._pool(request)
        if not agents and request.preferred_agent_id is None:
            raise self._denial_without_candidates(request)
        candidates = self._candidates(request, agents, now)
        return model.decide(request, candidates, self.policy, trust_available=self._trust.is_available)

    def collect_metrics(self) -> Iterable[Metric]:
        """Yield the duration of decisions and the number of denials."""
        yield from self._durations.collect()
        yield from self._denials.collect()

    def recheck_admission(self, request: RoutingRequest, agent_id: str) -> RoutingDenied | None:
        """Check admission of the chosen agent again at dispatch; return the denial, or None if it is still admitted."""
        agent = self._agents.get(request.tenant, agent_id)
        if agent is None:
            # It has been deleted since it was chosen: treated as if no agent had the capabilities.
            return model.build_denial(request, [])
        policy = self.policy if self._trust.is_available else self.policy.without_trust
        candidate = self._candidates(request, [agent], self._clock.now())[0]
        reason = model.find_denial(request, candidate, policy)
        return None if reason is None else model.build_denial(request, [(agent, reason)])

    def caller_authority(self, principal: Principal) -> Authority:
        """Return what a caller may request: nothing if all agents of its key are suspended or quarantined."""
        return self.key_authority(principal.tenant, principal.name) if principal.is_bound_agent else Authority()

    def is_active(self, principal: Principal) -> bool:
        """Return whether the caller may act: see `stentor.auth.principal.IsActive`."""
        return self.caller_authority(principal).is_active

    def key_authority(self, tenant: str, key_name: str) -> Authority:
        """Return what the key of an agent may request now."""
        agents = self._agents.list_by_key(tenant, key_name)
        active = not agents or any(agent.status == "active" for agent in agents)
        if not self.policy.own_authority:
            return Authority(active)
        capabilities = frozenset(name for agent in agents if agent.status == "active" for name in agent.capabilities)
        return Authority(active, capabilities, key_name)

    def _pool(self, request: RoutingRequest) -> list[Agent]:
        if request.preferred_agent_id is None:
            return self._agents.list_capable(request.tenant, request.capabilities)
        preferred = self._agents.get(request.tenant, request.preferred_agent_id)
        return [] if preferred is None else [preferred]

    def _candidates(self, request: RoutingRequest, agents: list[Agent], now: int) -> list[AgentCandidate]:
        records = self._learning.records(request.tenant, request.task_type)
        odds, lengths = records.length_effect(), None
        if odds is not None and request.input_length is not None:
            lengths = odds, length_group(request.input_length)
        cache = _track_record_cache(records, now // DAY, odds, lengths and lengths[1])
        # Looked up once: this loop takes most of the time of a decision.
        tenant, trust, agent_load, alpha = request.tenant, self._trust.score, self.agent_load, self.policy.alpha
        tick, by_grades = records.progress.tick, records.well_graded > 0
        weights, recent_by_agent = records.weights_by_agent, self._learning.recent_by_agent
        effect = records.load_effect()
        all_chosen, task_type, starts_later = self._chosen, request.task_type, request.starts_later
        candidates = []
        for agent in agents:
            agent_id = agent.agent_id
            weight, recent = weights.get(agent_id), recent_by_agent.get(agent_id)
            age = (tick - (0 if weight is None else weight.tick)) // AGE_STEP
            entry = cache.get(agent_id)
            # Frozen values are replaced when they change, so identity tells whether the entry is still valid.
            if (
                entry is None
                or entry[0] is not weight
                or entry[1] is not recent
                or entry[2] != age
                or entry[3] is not agent
                or entry[4] is not effect
            ):
                stale = records.progress.has_changed_since(weight)
                elsewhere = recent.elsewhere(task_type) if recent else (0.0, 0.0)
                factors = effect if effect is None or weight is None else own_factors(effect, weight.load_counts)
                build = partial(
                    track_record_from_weight,
                    agent.composite,
                    alpha,
                    elsewhere=elsewhere,
                    age=age * AGE_STEP,
                    now=now,
                    by_grades=by_grades,
                    seen=tick,
                    factors=factors,
                    lengths=lengths,
                )
                retry = None
                if weight is not None and records.own_outages.is_retry_due(weight, age * AGE_STEP):
                    retry = msgspec.structs.replace(build(without_outage(weight), stale=False), retry=True)
                track_record = build(weight, stale=stale)
                entry = cache[agent_id] = (weight, recent, age, agent, effect, factors, track_record, retry)
            load = agent_load(agent)
            ahead = load.ahead
            chosen = all_chosen.get((agent_id, task_type, False))
            unlearned = max(0, _count_chosen(chosen, weight) - ahead) if chosen else 0
            if starts_later or agent.trust_tier == "human":
                unlearned += _count_chosen(all_chosen.get((agent_id, task_type, True), (0, 0)), weight)
            # An agent that may have had an outage is tried with one task.
            track_record = entry[6] if entry[7] is None or ahead or unlearned else entry[7]
            score = trust(tenant, agent_id, now)
            overload = 0.0
            if (factors := entry[5]) is not None and ahead:
                # A worker that does not poll at this moment may still have room: its concurrency is what it holds.
                overload = 1 - factors[load_group(min(ahead, load.concurrency))]
            candidates.append(
                Candidate(
                    agent,
                    track_record,
                    score,
                    ahead,
                    load.concurrency,
                    load.is_online,
                    load.is_resting,
                    unlearned,
                    load.stalled_ms,
                    load.failing_share,
                    overload,
                )
            )
        return candidates

    def find_capability_problem(self, tenant: str, capabilities: tuple[str, ...]) -> str | None:
        """Return that no agent of the tenant has all the capabilities, or only archived ones; None if one has them."""
        agents = self._agents.list_capable(tenant, capabilities)
        if any(not agent.is_archived for agent in agents):
            return None
        request = RoutingRequest(tenant, "", capabilities)
        if not agents:
            return model.build_capability_denial(request, self._agents.list_capabilities(tenant)).message
        return model.build_denial(request, [(agent, AgentUnavailable) for agent in agents]).message

    def _denial_without_candidates(self, request: RoutingRequest) -> RoutingDenied:
        in_other_tenant = self._agents.is_capable_elsewhere(request.tenant, request.capabilities)
        if in_other_tenant:
            details: JsonObject = {"required_capabilities": list(request.capabilities)}
            return TenantDenied(model.DENIAL_MESSAGES[TenantDenied], details)
        known = self._agents.list_capabilities(request.tenant)
        return model.build_capability_denial(request, known)


def track_record_from_weight(
    composite: float,
    alpha: float,
    weight: Weight | None,
    elsewhere: tuple[float, float],
    age: int,
    now: int,
    *,
    stale: bool,
    by_grades: bool,
    seen: int,
    factors: Factors | None = None,
    lengths: tuple[Splits, int] | None = None,
) -> TrackRecord:
    """Return the track record of an agent at a task type; `weight` is None without an outcome.

    `elsewhere` are rewards and outcomes at other task types, `age` the outcomes of others since the agent's last one.
    `stale`: the results of some agent changed after that one. `by_grades`: ungraded outcomes are estimated by grades.
    `seen` are the outcomes of all agents at the task type. `factors`: by how much the load lowers results, by group.
    `lengths`: the odds of a split by length, and the group of the input, if the length counts at the task type.
    """
    if weight is None:
        return build_track_record(composite, alpha, elsewhere=elsewhere, stale=stale, seen=seen)
    rewards, outcomes = weight.estimate_rewards(stale=stale, by_grades=by_grades)
    if factors is not None:
        # The number of outcomes with which an idle agent would have had the same successes.
        outcomes *= mean_factor(factors, weight.loads, len(weight.rewards) // 2)
        rewards = min(rewards, outcomes)
    duration_ms, any_length = weight.mean_ms if weight.samples else None, None
    if lengths is not None and weight.lengths:
        any_length = rewards, outcomes
        outcome_share, reward_share, duration_ms = share_evidence(weight.length_counts, weight.split_factors, *lengths)
        outcomes *= outcome_share
        rewards = min(rewards * reward_share, outcomes)
    return build_track_record(
        composite,
        alpha,
        rewards,
        outcomes,
        elsewhere,
        age=age,
        variation=weight.variation,
        weight=weight.weight_at(now),
        duration_ms=duration_ms,
        cost=weight.mean_cost,
        stale=stale,
        seen=seen,
        any_length=any_length,
    )


def _count_chosen(chosen: tuple[int, int], weight: Weight | None) -> int:
    """Return how often an agent was chosen since its last outcome counted."""
    samples, count = chosen
    return count if samples == (weight.samples if weight else 0) else 0


def _track_record_cache(records: TaskTypeRecords, day: int, odds: Splits | None, group: int | None) -> dict[str, Any]:
    """Return the cached track records of a task type for inputs of a group, None if the length does not count.

    Emptied when the results of any agent change, which makes others stale, every day, when weights decay, with the
    first good grade, and when the odds of splits by length change.
    """
    if records is NO_RECORDS:
        return {}  # shared by all task types without outcomes
    state = (records.progress.changed_tick, day, records.well_graded > 0, odds)
    if records.derived_at != state:
        records.derived, records.derived_at = {}, state
    return records.derived.setdefault(group, {})
