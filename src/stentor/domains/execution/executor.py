"""One attempt at a task inside the service: claim, admit again, run, end. Each step is one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from stentor.core import ids, trace_context
from stentor.core.db import Database, Tx, locks
from stentor.core.errors import LeaseLost, NotFound, RoutingDenied
from stentor.core.live import Hub
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.execution.model import TIMEOUT_OUTCOME, AgentFailed, AttemptOutcome
from stentor.domains.execution.outcomes import OutcomeRecorder
from stentor.domains.execution.runtimes import RuntimeDriver
from stentor.domains.learning.service import learning_skipped_event
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.routing.model import RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks import queries, store
from stentor.domains.tasks.grants import GrantService
from stentor.domains.tasks.model import QueuedTask, Task, TaskClaim
from stentor.domains.tasks.service import require_task

AGENT_BROKEN_OUTCOME = AttemptOutcome(
    "agent_failure",
    error={"code": "AGENT_BROKEN", "message": "The agent failed in a way it did not foresee."},
)
log = logging.getLogger(__name__)


class TaskExecutor:
    """Holds the drivers of the runtimes; shared by the dispatcher and the workers' routes. `lease`, in microseconds, is
    how long a claim inside the service holds before it must be renewed.
    """

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        routing: RoutingEngine,
        snapshot: AgentCache,
        ending: OutcomeRecorder,
        hub: Hub,
        drivers: Mapping[str, RuntimeDriver],
        grants: GrantService,
        lease_us: int,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._routing = routing
        self._snapshot = snapshot
        self._ending = ending
        self._hub = hub
        self._drivers = drivers
        self._grants = grants
        self.lease_us = lease_us
        self.held_claims: dict[tuple[str, str], TaskClaim] = {}
        """The claims whose work runs in this process; their leases are renewed."""

    async def claim_and_run(self, queued: QueuedTask) -> None:
        """Returns when the attempt is over, whatever its outcome, or when somebody else has the task."""
        claim = await self._db.write(lambda tx: self.claim(tx, queued, self.lease_us), ())
        if claim is not None:
            await self.run_claim(claim)

    async def run_claim(self, claim: TaskClaim) -> None:
        """The same for a task that is claimed already."""
        key = (claim.tenant, claim.task_id)
        self.held_claims[key] = claim
        try:
            outcome = await self._work(claim)
            await self._db.write(
                lambda tx: self.record_outcome(tx, claim, outcome), (locks.agent_lock(claim.agent_id),)
            )
        except LeaseLost:
            log.info("task %s was taken from this attempt", claim.task_id)
        finally:
            if self.held_claims.get(key) is claim:
                del self.held_claims[key]
                self._hub.drop_tokens(*key)

    def claim(self, tx: Tx, queued: QueuedTask, lease: int) -> TaskClaim | None:
        """Admit again and claim, in one transaction; a task that is denied now ends as failed.

        None when the task is not to be worked on.
        """
        task = self._admissible(tx, queued)
        if task is not None:
            self._deny(tx, *task)
            return None
        started = EventDraft(
            "task_started", "execution", "Started.", {"epoch": queued.epoch + 1}, queued.agent_id, None
        )
        claim = store.claim(tx, queued, lease, started.event_id)
        if claim is None:
            return None
        self._runlog.append(tx, claim.tenant, [started], task_id=claim.task_id, parent=queued.head_id)
        changes = ("queued", claim.agent_id, -1), ("executing", claim.agent_id, 1)
        queries.update_counts(tx, claim.tenant, claim.created_at, *changes)
        return claim

    def record_outcome(self, tx: Tx, claim: TaskClaim, outcome: AttemptOutcome) -> None:
        """Raises LeaseLost."""
        self._ending.record(tx, claim, claim.agent_id, claim.start_time, outcome)

    async def _work(self, claim: TaskClaim) -> AttemptOutcome:
        agent = self._snapshot.get(claim.tenant, claim.agent_id)
        driver = self._drivers.get(claim.runtime_kind)
        if agent is None or driver is None:
            return AGENT_BROKEN_OUTCOME
        try:
            with trace_context.use_traceparent(claim.metadata.traceparent):
                async with asyncio.timeout(claim.timeout_seconds):
                    return await driver.run(claim, agent, self._emitter(claim))
        except AgentFailed as failure:
            return failure.outcome
        except TimeoutError:
            return TIMEOUT_OUTCOME
        except Exception:
            # Whatever an agent throws is that agent's failure, never the service's.
            log.exception("agent %s broke on task %s", agent.name, claim.task_id)
            return AGENT_BROKEN_OUTCOME

    def _emitter(self, claim: TaskClaim):  # type: ignore[no-untyped-def]
        def emit(text: str) -> None:
            self._hub.append_token(claim.tenant, claim.task_id, claim.head_id, text)

        return emit

    def _admissible(self, tx: Tx, queued: QueuedTask) -> tuple[Task, RoutingDenied] | None:
        """None when the agent may still have the task; else the task and the denial."""
        agent = self._snapshot.get(queued.tenant, queued.agent_id)
        if agent is not None and self._quick(agent) and not queued.granted:
            return None
        try:
            task = require_task(tx, queued.tenant, queued.task_id)
        except NotFound:
            return None
        if task.status != "queued" or task.epoch != queued.epoch:
            return None
        authority = self._grants.resolve_task_authority(tx, task)
        request = RoutingRequest(task.tenant, task.type, task.required_capabilities, authority)
        denial = self._routing.recheck_admission(request, queued.agent_id)
        return None if denial is None else (task, denial)

    def _quick(self, agent: Agent) -> bool:
        """An active agent as it was registered is admitted, where neither a trust floor nor a policy file is set."""
        policy = self._routing.policy
        unchanged = agent.updated_at == agent.created_at
        return unchanged and agent.status == "active" and policy.trust_floor == 0 and policy.is_permitted is None

    def _deny(self, tx: Tx, task: Task, denial: RoutingDenied) -> None:
        error = {"code": denial.code, "message": denial.message, "details": denial.details or {}}
        meta = error | {"outcome_class": "routing_failed", "learning_eligible": False}
        drafts = [
            EventDraft("dispatch_denied", "routing", denial.message, meta, event_id=ids.new_id()),
            EventDraft(
                "task_failed",
                "execution",
                denial.message,
                {"outcome_class": "routing_failed", "status": "failed"},
            ),
            learning_skipped_event("routing_failed"),
        ]
        head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        if store.end_without_learning(tx, task, "failed", "routing_failed", error, head):
            changes = ("queued", task.assigned_agent, -1), ("failed", task.assigned_agent, 1)
            queries.update_counts(tx, task.tenant, task.created_at, *changes)
