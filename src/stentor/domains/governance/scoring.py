"""Computes an agent's trust from metrics, given or the service's own records, and stores it if that is wanted."""

from __future__ import annotations

from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx
from stentor.domains.governance import scores, store
from stentor.domains.governance.checkpoints import Checkpoints, require_agent
from stentor.domains.governance.scores import Breakdown, Metrics
from stentor.domains.learning import store as lessons
from stentor.domains.registry import authorization
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent
from stentor.domains.trust.service import TrustService


class Scoring:
    def __init__(self, db: Database, trust: TrustService, checkpoints: Checkpoints) -> None:
        self._db = db
        self._trust = trust
        self._checkpoints = checkpoints

    async def compute(
        self, tenant: str, agent_id: str, given: Metrics | None, by: Principal, *, persist: bool
    ) -> Breakdown:
        """Raises NotFound, Forbidden, NoMetrics, InvalidRequest. Storing a score takes a checkpoint before; a score
        of too little is not stored (`Breakdown.too_little`).
        """
        work = self._store if persist else self._look

        def unit(tx: Tx) -> Breakdown:
            return work(tx, require_agent(tx, tenant, agent_id), given, by)

        return await (self._db.write(unit) if persist else self._db.read(unit))

    def _look(self, tx: Tx, agent: Agent, given: Metrics | None, by: Principal) -> Breakdown:
        return scores.compute(given if given is not None else recorded(tx, agent))

    def _store(self, tx: Tx, agent: Agent, given: Metrics | None, by: Principal) -> Breakdown:
        authorization.authorize_change(by, "trust", agent)
        found = self._look(tx, agent, given, by)
        if found.too_little:
            return found
        self._checkpoints.take(tx, agent, "trust_change", by.name)
        self._trust.set_score_in_tx(tx, agent.tenant, agent.agent_id, found.score, None, by.name)
        return found


def recorded(tx: Tx, agent: Agent) -> Metrics:
    """What the service knows itself; not the quality of code, nor hours of downtime.

    An agent that never did anything has no violations because it had no chance: then they are unknown.
    """
    successes, outcomes = lessons.count_results(tx, agent.agent_id)
    violated = bool(agents.list_violations(tx, agent.agent_id, cleared=True))
    approved, decided = store.audit(tx, agent.tenant, agent.agent_id)
    return Metrics(
        successful_executions=successes,
        total_executions=outcomes,
        recent_violation_count=agent.violation_count if outcomes or violated else None,
        approved_updates=approved,
        total_update_attempts=decided,
    )
