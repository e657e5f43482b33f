"""Use cases of tasks. Routing decides before the transaction, the transaction writes all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict, NotFound, RoutingDenied, all_errors
from stentor.core.runlog import Draft, RunLog, read_task
from stentor.domains.learning.service import LearningView, skipped
from stentor.domains.registry.snapshot import Snapshot
from stentor.domains.routing.model import Decision, Request
from stentor.domains.routing.service import Routing
from stentor.domains.tasks import idempotency, listing, model, store
from stentor.domains.tasks.idempotency import Answer, IdempotencyKey
from stentor.domains.tasks.model import Filter, Queued, Status, Submitted, Summary, Task, TaskDraft


class Dispatch(Protocol):
    """Where queued tasks go; the row stays the truth, so an offer may come twice or late."""

    def offer(self, queued: Queued) -> None: ...

    def stop(self, tenant: str, task_id: str) -> None:
        """End the work on a task that is over."""
        ...

    def ahead(self, agent_id: str) -> int:
        """Tasks that wait for or run at an agent."""
        ...

    def lanes(self, agent_id: str) -> int:
        """Tasks that the agent can run at a time."""
        ...


class Placement(msgspec.Struct, frozen=True):
    """What routing made of a request: an agent and a first state, or a denial."""

    status: Status
    decision: Decision | None = None
    runtime_kind: str | None = None
    denial: RoutingDenied | None = None

    @property
    def agent_id(self) -> str | None:
        return self.decision.agent_id if self.decision else None


class Tasks:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        runlog: RunLog,
        routing: Routing,
        snapshot: Snapshot,
        learning: LearningView,
        dispatch: Dispatch,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self._routing = routing
        self._snapshot = snapshot
        self._learning = learning
        self._dispatch = dispatch
        self._running: set[tuple[str, str, str, str]] = set()

    async def submit(self, principal: Principal, draft: TaskDraft, key: IdempotencyKey | None = None) -> Submitted:
        """Route and store a task. Raises the RoutingDenied after storing the task as failed.

        The same id or Idempotency-Key with the same body answers as the first time; another body
        is a Conflict (id) or an IdempotencyMismatch (key).
        """
        with self._alone(key):
            placement = self._place(principal, draft)
            answer = await self._db.write(lambda tx: self._submit(tx, principal, draft, placement, key))
        return _submitted(answer)

    def _submit(
        self, tx: Tx, principal: Principal, draft: TaskDraft, placement: Placement, key: IdempotencyKey | None
    ) -> Answer:
        if key is not None and (known := idempotency.find(tx, key)):
            return known
        body_hash = model.body_hash(draft)
        if draft.id is not None and (task := store.find(tx, principal.tenant, draft.id)):
            if task.body_hash != body_hash:
                raise Conflict(f"A task with the id {draft.id!r} and another body exists.")
            answer = _first_answer(tx, task)
        else:
            answer = self._store(tx, principal, draft, placement, body_hash)
        if key is not None:
            idempotency.keep(tx, key, answer)
        return answer

    def _store(self, tx: Tx, principal: Principal, draft: TaskDraft, placement: Placement, body_hash: str) -> Answer:
        drafts = _submit_events(principal, draft, placement)
        task = self._task(tx, principal, draft, placement, drafts, body_hash)
        store.insert(tx, task, draft)
        self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id)
        listing.count(tx, task.tenant, task.created_at, (task.status, task.assigned_agent, 1))
        self._offer_after_commit(tx, task)
        return _first_answer(tx, task)

    def _task(
        self,
        tx: Tx,
        principal: Principal,
        draft: TaskDraft,
        placement: Placement,
        drafts: list[Draft],
        body_hash: str,
    ) -> Task:
        start, completion = self._estimate(tx.now, placement.agent_id, draft.type)
        denial = placement.denial
        task_id = draft.id or ids.new_id()
        return Task(
            tenant=principal.tenant,
            task_id=task_id,
            status=placement.status,
            type=draft.type,
            priority=draft.priority,
            assigned_agent=placement.agent_id,
            runtime_kind=placement.runtime_kind,
            created_at=tx.now,
            queued_at=tx.now,
            start_time=None,
            completion_time=tx.now if denial else None,
            timeout_seconds=draft.timeout_seconds,
            epoch=0,
            attempt_epoch=0,
            lease_until=None,
            deadline_at=None,
            outcome_class="routing_failed" if denial else None,
            learning_eligible=False if denial else None,
            learning_pending=False,
            performance=None,
            provenance_id=drafts[0].event_id,
            head_id=drafts[-1].event_id,
            parent_task_id=draft.metadata.parent_task_id,
            submitted_by=principal.name,
            submitted_status=placement.status,
            estimated_start=start,
            estimated_completion=completion,
            body_hash=body_hash,
            required_capabilities=draft.required_capabilities,
            agent_preference=draft.agent_preference,
            metadata=draft.metadata,
            error=_error_of(denial, task_id=task_id) if denial else None,
            result=None,
        )

    def _place(self, principal: Principal, draft: TaskDraft) -> Placement:
        """Route; a denial is a placement too, because the task is stored for the record."""
        request = Request(
            principal.tenant,
            draft.type,
            draft.required_capabilities,
            self._routing.authority_of(principal),
            draft.agent_preference,
        )
        try:
            decision = self._routing.decide(request)
        except RoutingDenied as denial:
            return Placement("failed", denial=denial)
        agent = self._snapshot.get(principal.tenant, decision.agent_id)
        assert agent is not None
        status: Status = "pending_approval" if agent.trust_tier == "human" else "queued"
        return Placement(status, decision, agent.runtime.kind)

    def _estimate(self, now: int, agent_id: str | None, task_type: str) -> tuple[int, int]:
        if agent_id is None:
            return now, now
        known = self._learning.of_type(task_type).get(agent_id)
        mean = known.mean_ms if known and known.samples else model.DEFAULT_MEAN_MS
        return model.estimate(now, self._dispatch.ahead(agent_id), mean, self._dispatch.lanes(agent_id))

    async def get(self, tenant: str, task_id: str) -> Task:
        """Raises NotFound, the same for a foreign task as for none."""
        return await self._db.read(lambda tx: require(tx, tenant, task_id))

    async def page(self, tenant: str, wanted: Filter, limit: int, offset: int) -> tuple[list[Summary], int]:
        """A page, newest first, and how many match in all."""

        def read(tx: Tx) -> tuple[list[Summary], int]:
            return listing.page(tx, tenant, wanted, limit, offset), listing.total(tx, tenant, wanted)

        return await self._db.read(read)

    async def cancel(self, principal: Principal, task_id: str) -> int:
        """Final at once; the work is stopped after the commit. Answers the time of the cancellation."""

        def work(tx: Tx) -> int:
            task = _living(tx, principal.tenant, task_id, "cancelled")
            meta = {"by": principal.name, "from": task.status, "status": "cancelled"}
            self._end(tx, task, "cancelled", None, Draft("task_cancelled", "tasks", "Task cancelled.", meta))
            return tx.now

        return await self._db.write(work)

    async def approve(self, principal: Principal, task_id: str) -> Task:
        """Let a task that waits for a human go into the queue."""

        def work(tx: Tx) -> Task:
            task = _pending(tx, principal.tenant, task_id)
            given = Draft("approval_given", "tasks", "Approved.", {"by": principal.name, "approved": True})
            return self._requeue(tx, task, "queued", [given, _queued(task.priority)])

        return await self._db.write(work)

    async def reject(self, principal: Principal, task_id: str, reason: str | None) -> Task:
        """End a task that waits for a human: aborted, APPROVAL_REJECTED."""

        def work(tx: Tx) -> Task:
            task = _pending(tx, principal.tenant, task_id)
            error = {"code": "APPROVAL_REJECTED", "message": reason or "The approval was refused."}
            meta = {"by": principal.name, "approved": False, "reason": reason, "status": "aborted"}
            self._end(tx, task, "aborted", error, Draft("task_aborted", "tasks", "Rejected.", meta))
            return require(tx, task.tenant, task.task_id)

        return await self._db.write(work)

    async def retry(self, principal: Principal, task_id: str) -> Task:
        """A new attempt of a failed or aborted task, routed anew. Raises the RoutingDenied."""
        task = await self.get(principal.tenant, task_id)
        placement = self._place(principal, _draft_of(task))
        if placement.denial is not None and task.status in model.RETRYABLE:
            raise placement.denial

        def work(tx: Tx) -> Task:
            task = require(tx, principal.tenant, task_id)
            if task.status not in model.RETRYABLE or task.learning_pending:
                raise Conflict(f"The task is {task.status}; only a failed or aborted task can be retried.")
            count = (task.metadata.retry_count or 0) + 1
            metadata = msgspec.structs.replace(task.metadata, retry_count=count)
            drafts = _placement_events(placement, task.priority, {"retry_count": count, "by": principal.name})
            return self._requeue(tx, task, placement.status, drafts, placement, metadata)

        return await self._db.write(work)

    def _requeue(
        self,
        tx: Tx,
        task: Task,
        status: Status,
        drafts: list[Draft],
        placement: Placement | None = None,
        metadata: model.Metadata | None = None,
    ) -> Task:
        head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        fresh: dict[str, Any] = {}
        if placement is not None:
            fresh = {
                "agent_id": placement.agent_id,
                "runtime_kind": placement.runtime_kind,
                "attempt_epoch": task.epoch,
                "metadata": metadata,
            }
        if not store.queue(tx, task, status, head, **fresh):
            raise Conflict("The task changed at the same moment. Look at it again.")
        changed = require(tx, task.tenant, task.task_id)
        self._recount(tx, task, status, changed.assigned_agent)
        self._offer_after_commit(tx, changed)
        return changed

    def _end(self, tx: Tx, task: Task, status: Status, error: Any, draft: Draft) -> None:
        """A human's word ends the task: outcome class cancelled, and nothing is learned."""
        drafts = [draft, skipped("cancelled")]
        head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        if not store.end(tx, task, status, "cancelled", error, head):
            raise Conflict("The task changed at the same moment. Look at it again.")
        self._recount(tx, task, status, task.assigned_agent)
        tx.after_commit(lambda: self._dispatch.stop(task.tenant, task.task_id))

    def _recount(self, tx: Tx, task: Task, status: Status, agent_id: str | None) -> None:
        listing.count(tx, task.tenant, task.created_at, (task.status, task.assigned_agent, -1), (status, agent_id, 1))

    def _offer_after_commit(self, tx: Tx, task: Task) -> None:
        if task.status == "queued":
            queued = queued_of(task)
            tx.after_commit(lambda: self._dispatch.offer(queued))

    @contextmanager
    def _alone(self, key: IdempotencyKey | None) -> Iterator[None]:
        """Raises Conflict while a request with the same Idempotency-Key is still running."""
        if key is None:
            yield
            return
        if key.scope in self._running:
            raise Conflict("A request with this Idempotency-Key is still running. Try again in a moment.")
        self._running.add(key.scope)
        try:
            yield
        finally:
            self._running.discard(key.scope)


def queued_of(task: Task) -> Queued:
    assert task.assigned_agent is not None
    assert task.runtime_kind is not None
    return Queued(
        task.tenant,
        task.task_id,
        task.priority,
        task.queued_at,
        task.assigned_agent,
        task.runtime_kind,
        task.epoch,
        task.head_id,
    )


def require(tx: Tx, tenant: str, task_id: str) -> Task:
    """Raises NotFound, also for what can be no id: empty, or longer than 255 characters."""
    task = store.find(tx, tenant, task_id) if 0 < len(task_id) <= model.MAX_ID and "\0" not in task_id else None
    if task is None:
        raise NotFound("No task has this id.")
    return task


def _living(tx: Tx, tenant: str, task_id: str, verb: str) -> Task:
    task = require(tx, tenant, task_id)
    if task.status in model.TERMINAL:
        raise Conflict(f"The task is {task.status} already, so it cannot be {verb}.")
    return task


def _pending(tx: Tx, tenant: str, task_id: str) -> Task:
    task = require(tx, tenant, task_id)
    if task.status != "pending_approval":
        raise Conflict(f"The task is {task.status}; it does not wait for approval.")
    return task


def _draft_of(task: Task) -> TaskDraft:
    return TaskDraft(
        type=task.type,
        input=None,
        required_capabilities=task.required_capabilities,
        agent_preference=task.agent_preference,
        metadata=task.metadata,
    )


def _submit_events(principal: Principal, draft: TaskDraft, placement: Placement) -> list[Draft]:
    meta = {
        "type": draft.type,
        "required_capabilities": draft.required_capabilities,
        "by": principal.name,
        "priority": draft.metadata.priority or "normal",
    }
    return [
        Draft("prompt_received", "tasks", f"Task of type {draft.type} received.", meta),
        *_placement_events(placement, draft.priority, {}),
    ]


def _placement_events(placement: Placement, priority: int, extra: dict[str, Any]) -> list[Draft]:
    if placement.denial is not None:
        error = _error_of(placement.denial) | {"outcome_class": "routing_failed", "learning_eligible": False}
        denied = Draft("dispatch_denied", "routing", placement.denial.message, error | extra)
        return [denied, skipped("routing_failed")]
    decision = placement.decision
    assert decision is not None
    routing = {"routing": msgspec.to_builtins(decision), "agent_name": decision.agent_name} | extra
    message = f"Routed to {decision.agent_name} among {decision.candidates_total}."
    decided = Draft("routing_decision", "routing", message, routing, agent_id=decision.agent_id)
    if placement.status == "pending_approval":
        meta = {"agent_id": decision.agent_id, "trust_tier": "human"}
        return [decided, Draft("approval_requested", "tasks", "Waits for a human's approval.", meta)]
    return [decided, _queued(priority)]


def _queued(priority: int) -> Draft:
    return Draft("task_queued", "execution", "Queued.", {"priority": priority})


def _error_of(denial: RoutingDenied, **details: str) -> dict[str, Any]:
    return {"code": denial.code, "message": denial.message, "details": (denial.details or {}) | details}


def _first_answer(tx: Tx, task: Task) -> Answer:
    """What the first submit of this task answered; a denial is read from the run log, where it outlives retries."""
    if task.submitted_status == "failed":
        denied = read_task(tx, task.tenant, task.task_id, 2)[-1].metadata
        details = denied["details"] | {"task_id": task.task_id}
        error = {"code": denied["code"], "message": denied["message"], "details": details}
        return Answer(_DENIALS[denied["code"]].status, error)
    answer = Submitted(task.task_id, task.submitted_status, task.estimated_start, task.estimated_completion)
    return Answer(202, msgspec.structs.asdict(answer))


def _submitted(answer: Answer) -> Submitted:
    if answer.status_code != 202:
        raise _DENIALS[answer.body["code"]](answer.body["message"], answer.body["details"])
    return Submitted(**answer.body)


_DENIALS = {cls.code: cls for cls in all_errors() if issubclass(cls, RoutingDenied)}
