"""One attempt at a task: check admission again, claim, run, record the outcome. Each database step is one transaction.

The dispatchers decide when to start an attempt; `runtimes/` does the work; `outcomes.py` records the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from stentor.core import ids
from stentor.core.clock import SECOND
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.locks import locks
from stentor.core.errors import LeaseLost, NotFound, RoutingDenied, StoreUnavailable
from stentor.core.fanout.live import Hub
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.timers import tick_forever
from stentor.domains.execution.dispatch.dispatcher import Dispatcher, RunningTasks
from stentor.domains.execution.limits import LimitGate
from stentor.domains.execution.model import QUARANTINED_OUTCOME, TIMEOUT_OUTCOME, AgentFailed, AttemptOutcome
from stentor.domains.execution.outcomes import OutcomeRecorder
from stentor.domains.execution.runtimes import EmitToken, RuntimeDriver
from stentor.domains.execution.spans import AttemptTrace
from stentor.domains.learning.service import learning_skipped_event
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.routing.model import RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.sessions.service import append_of_task
from stentor.domains.tasks import queries, store
from stentor.domains.tasks.access import require_task
from stentor.domains.tasks.events import started_event
from stentor.domains.tasks.grants.service import GrantService
from stentor.domains.tasks.model import QueuedTask, Task, TaskClaim
from stentor.domains.tasks.queues import lease_store
from stentor.domains.tasks.service import is_late

RENEWALS_PER_LEASE = 3
"""So that one renewal of a lease may fail or be late."""
AGENT_BROKEN_OUTCOME = AttemptOutcome(
    "agent_failure",
    error={"code": "AGENT_BROKEN", "message": "The agent failed unexpectedly. The log of the service has the reason."},
)
# A process that does not know the runtime, such as one of an older version, is not evidence about the agent.
NO_DRIVER_OUTCOME = AttemptOutcome("provider_failure", error=AGENT_BROKEN_OUTCOME.error)
log = logging.getLogger(__name__)


class TaskExecutor:
    """Claims tasks and runs those of agents inside the service.

    `lease_us` is the lease of such a claim in microseconds; the reconciler renews it.
    """

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        routing: RoutingEngine,
        agents: AgentCache,
        outcomes: OutcomeRecorder,
        hub: Hub,
        drivers: Mapping[str, RuntimeDriver],
        grants: GrantService,
        limits: LimitGate,
        lease_us: int,
        trace: AttemptTrace,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._routing = routing
        self._agents = agents
        self._outcomes = outcomes
        self._hub = hub
        self._drivers = drivers
        self._grants = grants
        self._limits = limits
        self.lease_us = lease_us
        self._trace = trace
        self.held_claims: dict[tuple[str, str], TaskClaim] = {}
        """Claims whose attempt runs in this process, by tenant and task id. `LeaseRenewer` renews their leases."""
        self._running = Counter[str]()
        """Number of these by agent."""

    async def claim_and_run(self, queued: QueuedTask, done: Callable[[], None]) -> None:
        """Claim a task and run it; return after the attempt, whatever its outcome, or if another claim was faster.

        `done` is called when the agent has done its work, before the outcome is stored.
        """
        # Needs no lock: the row changes only while it has the status and the epoch of the queue's entry.
        claim = await self._db.write(lambda tx: self.claim(tx, queued, self.lease_us), NO_LOCKS)
        if claim is not None:
            await self.run_claim(claim, done)

    async def run_claim(self, claim: TaskClaim, done: Callable[[], None]) -> None:
        """Run a claimed task, call `done` and record the outcome."""
        key = (claim.tenant, claim.task_id)
        self.held_claims[key] = claim
        load = self._running[claim.agent_id]
        self._running[claim.agent_id] += 1
        try:
            outcome = await self._run(claim)
            done()
            # Take the lock of learning up front: requested midway while another process holds it, it makes the whole
            # group run again.
            await self._db.write(
                lambda tx: self.record_outcome(tx, claim, outcome, load),
                (locks.agent_lock(claim.agent_id),),
                self._outcomes.list_reads(claim, outcome),
            )
        except LeaseLost:
            log.info("executor: lease lost task_id=%s", claim.task_id)
        finally:
            self._running[claim.agent_id] -= 1
            if not self._running[claim.agent_id]:
                del self._running[claim.agent_id]
            # After a lost lease a newer attempt of the task may run here; its claim and its tokens must stay.
            if self.held_claims.get(key) is claim:
                del self.held_claims[key]
                self._hub.drop_tokens(*key)

    def claim(self, tx: Tx, queued: QueuedTask, lease: int) -> TaskClaim | None:
        """Claim one task like `claim_all`; None if it was not claimed."""
        claims = self.claim_all(tx, [queued], lease)
        return claims[0] if claims else None

    def claim_all(self, tx: Tx, tasks: Iterable[QueuedTask], lease: int) -> list[TaskClaim]:
        """Check admission again and claim tasks; `lease` in microseconds. Return the claims in the order of the tasks.

        A task that is denied now fails, and one whose limit is reached is parked. There is no claim for these, nor for
        a task that changed in the meantime.
        """
        queue = {(queued.tenant, queued.task_id): queued for queued in tasks}
        claims, unlimited = dict[store.TaskRef, TaskClaim](), list[QueuedTask]()
        for queued in queue.values():
            denied = self._find_denial(tx, queued)
            if denied is not None:
                self._deny(tx, *denied)
            elif queued.limit is None:
                unlimited.append(queued)
            elif self._limits.admit(tx, queued, queued.limit):
                # Before the next task is admitted, because the admission counts this one.
                claims |= self._claim(tx, [queued], lease)
        claims |= self._claim(tx, unlimited, lease)
        return [claims[ref] for ref in queue if ref in claims]

    def _claim(self, tx: Tx, tasks: list[QueuedTask], lease: int) -> dict[store.TaskRef, TaskClaim]:
        started = [(queued, started_event(queued.agent_id, queued.epoch + 1)) for queued in tasks]
        claims = lease_store.claim_all(tx, [(queued, event.event_id) for queued, event in started], lease)
        for queued, event in started:
            claim = claims.get((queued.tenant, queued.task_id))
            if claim is None:
                continue
            if queued.limit is not None:
                self._limits.record_start(tx, claim, queued.limit)
            self._runlog.append(tx, claim.tenant, [event], task_id=claim.task_id, parent=queued.head_id)
            changes = ("queued", claim.agent_id, -1), ("executing", claim.agent_id, 1)
            queries.update_counts(tx, claim.tenant, claim.created_at, *changes)
        return claims

    def is_surely_admitted(self, tenant: str, agent_id: str) -> bool:
        """Return whether admission needs no check: active and unchanged, no trust floor, no policy file."""
        agent, policy = self._agents.get(tenant, agent_id), self._routing.policy
        if agent is None or agent.status != "active" or agent.updated_at != agent.created_at:
            return False
        return policy.trust_floor == 0 and policy.is_permitted is None

    def record_outcome(self, tx: Tx, claim: TaskClaim, outcome: AttemptOutcome, load: int | None = None) -> None:
        """Record the outcome of a claim, with what it adds to a session. Raises LeaseLost.

        The result of an agent that was quarantined while it ran is not accepted, and no failure after the deadline of
        the task: it may be of a subtask that was refused because of the deadline.
        """
        if outcome.error is not None:
            task = store.find(tx, claim.tenant, claim.task_id)
            if task is not None and is_late(tx, task):
                raise LeaseLost("The deadline of the task has passed, and it is about to be aborted.")
        agent = self._agents.get(claim.tenant, claim.agent_id)
        if outcome.error is None and agent is not None and agent.status == "quarantined":
            outcome = msgspec.structs.replace(QUARANTINED_OUTCOME, cost=outcome.cost)
        self._outcomes.record(tx, claim, claim.agent_id, claim.start_time, outcome, load=load)
        if outcome.items and claim.metadata.session is not None:
            append_of_task(tx, claim.tenant, claim.metadata.session, claim.task_id, outcome.items)

    async def _run(self, claim: TaskClaim) -> AttemptOutcome:
        agent = self._agents.get(claim.tenant, claim.agent_id)
        driver = self._drivers.get(claim.runtime_kind)
        if agent is None or driver is None:
            message = "executor: no driver runtime=%s agent_id=%s task_id=%s"
            log.error(message, claim.runtime_kind, claim.agent_id, claim.task_id)
            return NO_DRIVER_OUTCOME
        limit = asyncio.timeout(claim.timeout_seconds)
        try:
            with self._trace(claim):
                async with limit:
                    return await driver.run(claim, agent, self._emitter(claim))
        except AgentFailed as failure:
            return failure.outcome
        except (LeaseLost, StoreUnavailable):
            # Without an outcome the lease runs out, and the task is claimed again.
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return TIMEOUT_OUTCOME
            # Any exception of a driver counts as a failure of the agent; the service continues.
            log.exception("executor: agent failed unexpectedly agent=%s task_id=%s", agent.name, claim.task_id)
            return AGENT_BROKEN_OUTCOME

    def _emitter(self, claim: TaskClaim) -> EmitToken:
        def emit(text: str) -> None:
            self._hub.append_token(claim.tenant, claim.task_id, claim.head_id, text)

        return emit

    def _find_denial(self, tx: Tx, queued: QueuedTask) -> tuple[Task, RoutingDenied] | None:
        """Return the task and its denial if the agent may no longer have it, else None."""
        # The task is not read for most claims. With a grant it must be read: the grant may have ended while the task
        # waited.
        if self.is_surely_admitted(queued.tenant, queued.agent_id) and not queued.granted:
            return None
        try:
            task = require_task(tx, queued.tenant, queued.task_id)
        except NotFound:
            return None
        # Not denied, but changed since it was queued: the claim detects that too, and takes nothing.
        if task.status != "queued" or task.epoch != queued.epoch:
            return None
        authority = self._grants.resolve_task_authority(tx, task)
        request = RoutingRequest(task.tenant, task.type, task.required_capabilities, authority)
        denial = self._routing.recheck_admission(request, queued.agent_id)
        return None if denial is None else (task, denial)

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


class Reservation:
    """A slot of one agent for a task that this process starts at once: it is claimed in the transaction that stores it.

    So a single task takes two commits instead of three. `is_current` checks this process's copy of the agent.
    """

    def __init__(
        self, agent_id: str, running: RunningTasks, executor: TaskExecutor, is_current: Callable[[Tx], bool]
    ) -> None:
        self._agent_id = agent_id
        self._running = running
        self._executor = executor
        self._check_version = is_current
        self._checked: tuple[Tx | None, bool] = None, False
        running.reserve(agent_id)

    def admit_new(self, tx: Tx, task: Task) -> int | None:
        """Return the end of the lease of a task that may be stored as one that executes; None if it must be checked."""
        assert task.assigned_agent is not None
        if task.metadata.grant_id is not None or task.metadata.limit is not None:
            return None
        if not self._executor.is_surely_admitted(task.tenant, task.assigned_agent) or not self._is_current(tx):
            return None
        return tx.now + self._executor.lease_us

    def _is_current(self, tx: Tx) -> bool:
        # Once per transaction: each check that finds the copy outdated counts as a skip of the agent.
        if self._checked[0] is not tx:
            self._checked = tx, self._check_version(tx)
        return self._checked[1]

    def start(self, tx: Tx, claim: TaskClaim) -> None:
        """Run the attempt after the commit: one whose claim is rolled back must not run."""
        tx.after_commit(partial(self._start, claim))

    def try_start(self, tx: Tx, queued: QueuedTask) -> bool:
        """Claim a task that was just stored, to start after the commit; False if it must be queued instead."""
        if not self._is_current(tx):
            return False
        claim = self._executor.claim(tx, queued, self._executor.lease_us)
        if claim is not None:
            self.start(tx, claim)
        return True

    def release(self) -> None:
        """Release the slot after its transaction: it is not needed, or the attempt has it now."""
        # The transaction's hooks have this object: a cycle, with all rows of the commit, for the garbage collector.
        self._checked = None, False
        self._running.release(self._agent_id)

    def _start(self, claim: TaskClaim) -> None:
        key = (claim.tenant, claim.task_id)
        self._running.start(key, claim.agent_id, claim.epoch, partial(self._executor.run_claim, claim))


class LeaseRenewer:
    """Renews the leases of the attempts that run in this process.

    A job of its own: repairs of the reconciler may take longer than a lease, and it ends before the running tasks are
    drained, while an attempt that may still end needs its lease until then.
    """

    def __init__(self, db: Database, dispatcher: Dispatcher, executor: TaskExecutor) -> None:
        self._db = db
        self._dispatcher = dispatcher
        self._executor = executor

    async def run(self) -> None:
        """Run forever; waits out an outage of the database."""
        seconds = self._executor.lease_us / SECOND / RENEWALS_PER_LEASE
        await tick_forever("lease renewal", lambda: asyncio.sleep(seconds), self.renew)

    async def renew(self) -> None:
        """Renew all leases once, and stop the attempts that have lost theirs."""
        claims = list(self._executor.held_claims.values())

        def work(tx: Tx) -> list[TaskClaim]:
            """Return the claims whose task ended or was claimed again."""
            return [
                c
                for c in claims
                if not lease_store.renew_lease(tx, c.tenant, c.task_id, c.epoch, self._executor.lease_us)
            ]

        for claim in await self._db.write(work, NO_LOCKS) if claims else ():
            self._dispatcher.stop(claim.tenant, claim.task_id, claim.epoch)
