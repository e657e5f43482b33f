"""Brings the candidates together from memory and has the pure functions decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client.core import Metric

from stentor.auth.principal import Principal
from stentor.core.clock import DAY, Clock
from stentor.core.errors import CapabilityUnavailable, RoutingDenied, TenantDenied, all_errors
from stentor.core.metrics import SHORT_BUCKETS_S, Histogram, LabeledCounter, histogram_family, labeled_counter_family
from stentor.domains.learning.model import Weight
from stentor.domains.learning.service import NO_RECORDS, LearningView, RewardSums, TaskTypeRecords
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.routing import model
from stentor.domains.routing.model import Authority, RoutingDecision, RoutingPolicy, RoutingRequest
from stentor.domains.routing.ranking import AgentCandidate, TrackRecord, build_track_record
from stentor.domains.trust.service import TrustView

_REASONS = [(error.code,) for error in all_errors() if issubclass(error, RoutingDenied) and error is not RoutingDenied]


AGE_STEP = 32
"""Outcomes of others that evidence is faded for at a time: what is computed from a record holds for that long."""
LoadLookup = Callable[[Agent], tuple[int, int, bool]]
"""Of an agent now: tasks that wait for it or run, how many it does at a time, and whether it is online."""


def _derived(records: TaskTypeRecords, day: int) -> dict[str, Any]:
    """What was computed from these records since the last change of anybody's results, today."""
    if records is NO_RECORDS:
        return {}
    state = (records.progress.changed_tick, day)
    if records.derived_at != state:
        records.derived, records.derived_at = {}, state
    return records.derived


def _idle(agent: Agent) -> tuple[int, int, bool]:
    return 0, 1, True


class RoutingEngine:
    """Reads three views and the load of the agents in memory; touches no database."""

    def __init__(
        self,
        snapshot: AgentCache,
        learning: LearningView,
        trust: TrustView,
        clock: Clock,
        policy: RoutingPolicy,
    ) -> None:
        self._snapshot = snapshot
        self._learning = learning
        self._trust = trust
        self._clock = clock
        self.policy = policy
        self.agent_load: LoadLookup = _idle
        """Set once the engine is there, which needs routing itself."""
        self._times, self._denied = Histogram(SHORT_BUCKETS_S), LabeledCounter(*_REASONS)

    def decide(self, request: RoutingRequest) -> RoutingDecision:
        """Raises a RoutingDenied. The decision says how long it took, in microseconds."""
        started = time.perf_counter_ns()
        try:
            decision = self._decided(request)
        except RoutingDenied as denial:
            self._denied.increment(denial.code)
            raise
        took = time.perf_counter_ns() - started
        self._times.observe(took / 1e9)
        return msgspec.structs.replace(decision, duration_us=took // 1000)

    def decide_for_waiting(self, request: RoutingRequest, planned: Mapping[str, int]) -> RoutingDecision | None:
        """For a task that waits for an agent which is offline: the best one that is online, None without one.

        Nobody whose work needs an approval: that was given, or was not asked for, for another agent. `planned` tasks
        are about to wait for the agents that it names. Counts in no figure of routing.
        """
        started = time.perf_counter_ns()
        agents = [agent for agent in self._pool(request) if agent.trust_tier != "human"]
        if not any(self.agent_load(agent)[2] for agent in agents):
            return None
        candidates = [
            msgspec.structs.replace(each, ahead=each.ahead + planned.get(each.agent.agent_id, 0))
            for each in self._candidates(request, agents, self._clock.now())
        ]
        try:
            decision = model.decide(request, candidates, self.policy, trust_available=self._trust.is_available)
        except RoutingDenied:
            return None
        took = (time.perf_counter_ns() - started) // 1000
        return msgspec.structs.replace(decision, duration_us=took) if decision.online else None

    def _decided(self, request: RoutingRequest) -> RoutingDecision:
        now = self._clock.now()
        agents = self._pool(request)
        if not agents and request.preferred_agent_id is None:
            raise self._nobody(request)
        candidates = self._candidates(request, agents, now)
        return model.decide(request, candidates, self.policy, trust_available=self._trust.is_available)

    def collect_metrics(self) -> Iterable[Metric]:
        """For /metrics."""
        text = "Time of a routing decision that chose an agent."
        yield histogram_family("stentor_routing_duration_seconds", text, self._times)
        text = "Routing decisions that nobody was admitted in, by reason."
        yield labeled_counter_family("stentor_routing_denials", text, ("reason",), self._denied.snapshot())

    def recheck_admission(self, request: RoutingRequest, agent_id: str) -> RoutingDenied | None:
        """Admission again, at dispatch, for the agent that was chosen."""
        agent = self._snapshot.get(request.tenant, agent_id)
        if agent is None:
            return model.build_denial(request, [])
        policy = self.policy if self._trust.is_available else self.policy.without_trust
        candidate = self._candidates(request, [agent], self._clock.now())[0]
        reason = model.find_denial(request, candidate, policy)
        return None if reason is None else model.build_denial(request, [(agent, reason)])

    def caller_authority(self, principal: Principal) -> Authority:
        """An agent whose every registration is suspended or quarantined has nothing to delegate."""
        if not principal.is_bound_agent:
            return Authority()
        own = self._snapshot.list_of_key(principal.tenant, principal.name)
        active = not own or any(agent.status == "active" for agent in own)
        if not self.policy.own_authority:
            return Authority(active)
        abilities = frozenset(name for agent in own if agent.status == "active" for name in agent.capabilities)
        return Authority(active, abilities)

    def _pool(self, request: RoutingRequest) -> list[Agent]:
        if request.preferred_agent_id is None:
            return self._snapshot.list_capable(request.tenant, request.capabilities)
        preferred = self._snapshot.get(request.tenant, request.preferred_agent_id)
        return [] if preferred is None else [preferred]

    def _candidates(self, request: RoutingRequest, agents: list[Agent], now: int) -> list[AgentCandidate]:
        records = self._learning.records(request.tenant, request.task_type)
        derived = _derived(records, now // DAY)
        tenant, trust, load, alpha = request.tenant, self._trust.score, self.agent_load, self.policy.alpha
        tick = records.progress.tick
        of_agent, sums = records.weights_by_agent, self._learning.sums_by_agent
        found = []
        for agent in agents:
            agent_id = agent.agent_id
            record, summed = of_agent.get(agent_id), sums.get(agent_id)
            age = 0 if record is None else (tick - record.tick) // AGE_STEP
            entry = derived.get(agent_id)
            if (
                entry is None
                or entry[0] is not record
                or entry[1] is not summed
                or entry[2] != age
                or entry[3] is not agent
            ):
                stale = records.progress.has_changed_since(record)
                known = track_record_from_weight(
                    agent.composite, alpha, record, summed, age * AGE_STEP, now, stale=stale
                )
                entry = derived[agent_id] = (record, summed, age, agent, known)
            found.append(AgentCandidate(agent, entry[4], trust(tenant, agent_id, now), *load(agent)))
        return found

    def _nobody(self, request: RoutingRequest) -> RoutingDenied:
        elsewhere = self._snapshot.is_capable_elsewhere(request.tenant, request.capabilities)
        reason = TenantDenied if elsewhere else CapabilityUnavailable
        details = {"required_capabilities": list(request.capabilities)}
        return reason(model.DENIAL_MESSAGES[reason], details)


def track_record_from_weight(
    composite: float, alpha: float, record: Weight | None, sums: RewardSums | None, age: int, now: int, *, stale: bool
) -> TrackRecord:
    """What a record, None without an outcome, says now. `sums` are those of all task types together, `age` the outcomes
    of others since the record's last one; `stale` when the results of another one changed after it.
    """
    if record is None:
        return build_track_record(composite, alpha, elsewhere=sums or (0.0, 0.0), stale=stale)
    rewards, outcomes = record.stale_rewards if stale else record.counted_rewards
    own = record.counted_rewards
    rewards_all, outcomes_all = sums or own
    return build_track_record(
        composite,
        alpha,
        rewards,
        outcomes,
        (max(0.0, rewards_all - own[0]), max(0.0, outcomes_all - own[1])),
        age=age,
        variation=record.variation,
        weight=record.weight_at(now),
        duration_ms=record.mean_ms if record.samples else None,
        cost=record.mean_cost,
        stale=stale,
    )
