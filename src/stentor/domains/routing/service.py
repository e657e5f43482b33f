"""Brings the candidates together from memory and has the pure functions decide."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec
from prometheus_client.core import Metric

from stentor.auth.principal import Principal
from stentor.core.clock import Clock
from stentor.core.errors import CapabilityUnavailable, RoutingDenied, TenantDenied, all_errors
from stentor.core.figures import SHORT, Counts, Histogram, counters, histogram
from stentor.domains.learning.service import LearningView
from stentor.domains.registry.model import Agent
from stentor.domains.registry.snapshot import Snapshot
from stentor.domains.routing import model
from stentor.domains.routing.model import Authority, Candidate, Decision, Policy, Request
from stentor.domains.trust.service import TrustView

_REASONS = [(error.code,) for error in all_errors() if issubclass(error, RoutingDenied) and error is not RoutingDenied]


class Routing:
    """Reads three views in memory; touches no database."""

    def __init__(
        self, snapshot: Snapshot, learning: LearningView, trust: TrustView, clock: Clock, policy: Policy
    ) -> None:
        self._snapshot = snapshot
        self._learning = learning
        self._trust = trust
        self._clock = clock
        self.policy = policy
        self._times, self._denied = Histogram(SHORT), Counts(*_REASONS)

    def decide(self, request: Request) -> Decision:
        """Raises a RoutingDenied. The decision says how long it took, in microseconds."""
        started = time.perf_counter_ns()
        try:
            decision = self._decided(request)
        except RoutingDenied as denial:
            self._denied.add(denial.code)
            raise
        took = time.perf_counter_ns() - started
        self._times.observe(took / 1e9)
        return msgspec.structs.replace(decision, duration_us=took // 1000)

    def _decided(self, request: Request) -> Decision:
        now = self._clock.now()
        agents = self._pool(request)
        if not agents and request.preferred is None:
            raise self._nobody(request)
        candidates = self._candidates(request, agents, now)
        return model.decide(request, candidates, self.policy, trust_available=self._trust.available)

    def figures(self) -> Iterable[Metric]:
        """For /metrics."""
        text = "Time of a routing decision that chose an agent."
        yield histogram("stentor_routing_duration_seconds", text, self._times)
        text = "Routing decisions that nobody was admitted in, by reason."
        yield counters("stentor_routing_denials", text, ("reason",), self._denied.read())

    def recheck(self, request: Request, agent_id: str) -> RoutingDenied | None:
        """Admission again, at dispatch, for the agent that was chosen."""
        agent = self._snapshot.get(request.tenant, agent_id)
        if agent is None:
            return model.denial(request, [])
        policy = self.policy if self._trust.available else self.policy.without_trust
        candidate = self._candidates(request, [agent], self._clock.now())[0]
        reason = model.refusal(request, candidate, policy)
        return None if reason is None else model.denial(request, [(agent, reason)])

    def authority_of(self, principal: Principal) -> Authority:
        """An agent whose every registration is suspended or quarantined has nothing to delegate."""
        if not principal.is_bound_agent:
            return Authority()
        own = self._snapshot.of_key(principal.tenant, principal.name)
        active = not own or any(agent.status == "active" for agent in own)
        if not self.policy.own_authority:
            return Authority(active)
        abilities = frozenset(name for agent in own if agent.status == "active" for name in agent.capabilities)
        return Authority(active, abilities)

    def _pool(self, request: Request) -> list[Agent]:
        if request.preferred is None:
            return self._snapshot.capable(request.tenant, request.capabilities)
        preferred = self._snapshot.get(request.tenant, request.preferred)
        return [] if preferred is None else [preferred]

    def _candidates(self, request: Request, agents: list[Agent], now: int) -> list[Candidate]:
        weights = self._learning.of_type(request.task_type)
        tenant, score = request.tenant, self._trust.score
        found = []
        for agent in agents:
            weight = weights.get(agent.agent_id)
            trust = score(tenant, agent.agent_id, now)
            found.append(Candidate(agent, None if weight is None else weight.at(now), trust))
        return found

    def _nobody(self, request: Request) -> RoutingDenied:
        elsewhere = self._snapshot.capable_elsewhere(request.tenant, request.capabilities)
        reason = TenantDenied if elsewhere else CapabilityUnavailable
        details = {"required_capabilities": list(request.capabilities)}
        return reason(model.SENTENCES[reason], details)
