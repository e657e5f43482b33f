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
from stentor.domains.execution.model import TIMED_OUT, AgentFailed, Outcome
from stentor.domains.execution.outcomes import Ending
from stentor.domains.execution.runtimes import Driver
from stentor.domains.learning.service import skipped
from stentor.domains.registry.model import Agent
from stentor.domains.registry.snapshot import Snapshot
from stentor.domains.routing.model import Request
from stentor.domains.routing.service import Routing
from stentor.domains.tasks import listing, store
from stentor.domains.tasks.grants.service import Grants
from stentor.domains.tasks.model import Claim, Queued, Task
from stentor.domains.tasks.service import require

BROKEN = Outcome(
    "agent_failure",
    error={"code": "AGENT_BROKEN", "message": "The agent failed in a way it did not foresee."},
)
log = logging.getLogger(__name__)


class Attempts:
    """Holds the drivers of the runtimes; shared by the dispatcher and the workers' routes. `lease`, in microseconds, is
    how long a claim inside the service holds before it must be renewed.
    """

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        routing: Routing,
        snapshot: Snapshot,
        ending: Ending,
        hub: Hub,
        drivers: Mapping[str, Driver],
        grants: Grants,
        lease: int,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._routing = routing
        self._snapshot = snapshot
        self._ending = ending
        self._hub = hub
        self._drivers = drivers
        self._grants = grants
        self.lease = lease
        self.held: dict[tuple[str, str], Claim] = {}
        """The claims whose work runs in this process; their leases are renewed."""

    async def run(self, queued: Queued) -> None:
        """Returns when the attempt is over, whatever its outcome, or when somebody else has the task."""
        claim = await self._db.write(lambda tx: self.claim(tx, queued, self.lease), ())
        if claim is not None:
            await self.carry(claim)

    async def carry(self, claim: Claim) -> None:
        """The same for a task that is claimed already."""
        key = (claim.tenant, claim.task_id)
        self.held[key] = claim
        try:
            outcome = await self._work(claim)
            await self._db.write(lambda tx: self.end(tx, claim, outcome), (locks.agent_lock(claim.agent_id),))
        except LeaseLost:
            log.info("task %s was taken from this attempt", claim.task_id)
        finally:
            if self.held.get(key) is claim:
                del self.held[key]
                self._hub.drop_tokens(*key)

    def claim(self, tx: Tx, queued: Queued, lease: int) -> Claim | None:
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
        listing.count(tx, claim.tenant, claim.created_at, *changes)
        return claim

    def end(self, tx: Tx, claim: Claim, outcome: Outcome) -> None:
        """Raises LeaseLost."""
        self._ending.apply(tx, claim, claim.agent_id, claim.start_time, outcome)

    async def _work(self, claim: Claim) -> Outcome:
        agent = self._snapshot.get(claim.tenant, claim.agent_id)
        driver = self._drivers.get(claim.runtime_kind)
        if agent is None or driver is None:
            return BROKEN
        try:
            with trace_context.use_traceparent(claim.metadata.traceparent):
                async with asyncio.timeout(claim.timeout_seconds):
                    return await driver.run(claim, agent, self._emitter(claim))
        except AgentFailed as failure:
            return failure.outcome
        except TimeoutError:
            return TIMED_OUT
        except Exception:
            # Whatever an agent throws is that agent's failure, never the service's.
            log.exception("agent %s broke on task %s", agent.name, claim.task_id)
            return BROKEN

    def _emitter(self, claim: Claim):  # type: ignore[no-untyped-def]
        def emit(text: str) -> None:
            self._hub.append_token(claim.tenant, claim.task_id, claim.head_id, text)

        return emit

    def _admissible(self, tx: Tx, queued: Queued) -> tuple[Task, RoutingDenied] | None:
        """None when the agent may still have the task; else the task and the denial."""
        agent = self._snapshot.get(queued.tenant, queued.agent_id)
        if agent is not None and self._quick(agent) and not queued.granted:
            return None
        try:
            task = require(tx, queued.tenant, queued.task_id)
        except NotFound:
            return None
        if task.status != "queued" or task.epoch != queued.epoch:
            return None
        authority = self._grants.authority_of(tx, task)
        request = Request(task.tenant, task.type, task.required_capabilities, authority)
        denial = self._routing.recheck(request, queued.agent_id)
        return None if denial is None else (task, denial)

    def _quick(self, agent: Agent) -> bool:
        """An active agent as it was registered is admitted, where neither a trust floor nor a policy file is set."""
        policy = self._routing.policy
        unchanged = agent.updated_at == agent.created_at
        return unchanged and agent.status == "active" and policy.trust_floor == 0 and policy.permitted is None

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
            skipped("routing_failed"),
        ]
        head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        if store.end(tx, task, "failed", "routing_failed", error, head):
            changes = ("queued", task.assigned_agent, -1), ("failed", task.assigned_agent, 1)
            listing.count(tx, task.tenant, task.created_at, *changes)
