"""Submitting a task. Routing decides before the transaction, the transaction writes all or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec
from prometheus_client.core import Metric

from stentor.auth.principal import Principal
from stentor.core import ids, trace_context
from stentor.core.clock import SECOND
from stentor.core.db import Database, Tx, idempotency, locks
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.errors import Conflict, RoutingDenied, all_errors
from stentor.core.metrics import REQUEST_BUCKETS_S, LabeledHistogram, labeled_histogram_family
from stentor.core.runlog import EventDraft, RunLog, read_task_events
from stentor.domains.atp.model import AtpHeader
from stentor.domains.routing.model import NO_WORKER_ONLINE, RoutingDecision
from stentor.domains.tasks import events, model, queries, store
from stentor.domains.tasks.model import SubmitResult, Task, TaskDraft
from stentor.domains.tasks.placement import AuthorityResolver, Placement, TaskQueue, TaskRouter, enqueue_after_commit


class SubmissionService:
    def __init__(
        self, db: Database, runlog: RunLog, placing: TaskRouter, dispatch: TaskQueue, grants: AuthorityResolver
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._placing = placing
        self._dispatch = dispatch
        self._grants = grants
        self._running: set[tuple[str, str, str, str]] = set()
        self._times = LabeledHistogram(REQUEST_BUCKETS_S, ("accepted",), ("denied",), ("failed",))

    async def submit(
        self,
        principal: Principal,
        draft: TaskDraft,
        key: IdempotencyKey | None = None,
        header: AtpHeader | None = None,
    ) -> SubmitResult:
        """Route and store a task; `header` is that of the message which it came as.

        Raises the RoutingDenied after storing the task as failed.

        The same id or Idempotency-Key with the same body answers as the first time; another body
        is a Conflict (id) or an IdempotencyMismatch (key).
        """
        started, result = time.perf_counter(), "failed"
        try:
            answer = await self._answered(principal, draft, key, header)
            result = "accepted" if answer.status_code == 202 else "denied"
        finally:
            self._times.labels(result).observe(time.perf_counter() - started)
        return _submitted(answer)

    async def _answered(
        self, principal: Principal, draft: TaskDraft, key: IdempotencyKey | None, header: AtpHeader | None
    ) -> StoredResponse:
        trace = trace_context.current_traceparent()  # here, because the writer's thread has another context
        with self._alone(key):
            draft, placement = await self._placed(principal, draft)
            return await self._db.write(
                lambda tx: self._submit(tx, principal, draft, placement, key, header=header, trace=trace), ()
            )

    def collect_metrics(self) -> Iterable[Metric]:
        """For /metrics."""
        text = "Time of a submit until it was stored, by whether an agent was found; failed ones stored nothing."
        yield labeled_histogram_family("stentor_submit_duration_seconds", text, ("result",), self._times.items())

    async def _placed(self, principal: Principal, draft: TaskDraft) -> tuple[TaskDraft, Placement]:
        """Work with delegated authority belongs to the task that the authority is for."""
        if draft.metadata.grant_id is None:
            return draft, self._placing.route(principal, draft)
        granted, task_id = await self._grants.resolve_authority(principal, draft.metadata.grant_id)
        return model.with_parent_task(draft, task_id), self._placing.route(principal, draft, granted)

    def prepare_submit(
        self, principal: Principal, draft: TaskDraft, cause: str, header: AtpHeader
    ) -> Callable[[Tx], StoredResponse]:
        """The same as a part of a message's own transaction, under the event that led to it. The answer is 202 with
        a Submitted, or a denial's status with `{code, message, details}`.
        """
        placement = self._placing.route(principal, draft)
        return lambda tx: self._submit(tx, principal, draft, placement, None, cause, header)

    def _submit(
        self,
        tx: Tx,
        principal: Principal,
        draft: TaskDraft,
        placement: Placement,
        key: IdempotencyKey | None,
        cause: str | None = None,
        header: AtpHeader | None = None,
        trace: str | None = None,
    ) -> StoredResponse:
        if key is not None and (known := idempotency.find_response(tx, key)):
            return _complete(tx, principal.tenant, known)
        body_hash = model.compute_body_hash(draft)
        if draft.id is not None:
            tx.lock(locks.task_lock(principal.tenant, draft.id))
        if draft.id is not None and (task := store.find(tx, principal.tenant, draft.id)):
            # What the caller does not see is another body, else it could guess what the input was.
            if task.body_hash != body_hash or not queries.can_see(tx, principal, task):
                raise Conflict(f"A task with the id {draft.id!r} and another body exists.")
            answer = _first_answer(tx, task)
        else:
            # After the hash: the same task may be sent again within another trace.
            answer = self._store(
                tx, principal, model.with_traceparent(draft, trace), placement, body_hash, cause, header
            )
        if key is not None:
            idempotency.store_response(tx, key, answer)
        return answer

    def _store(
        self,
        tx: Tx,
        principal: Principal,
        draft: TaskDraft,
        placement: Placement,
        body_hash: str,
        cause: str | None,
        header: AtpHeader | None,
    ) -> StoredResponse:
        drafts = events.submission_events(principal, draft, placement, header)
        task = self._task(tx, principal, draft, placement, drafts, body_hash)
        store.insert(tx, task, draft)
        self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=cause)
        queries.update_counts(tx, task.tenant, task.created_at, (task.status, task.assigned_agent, 1))
        enqueue_after_commit(tx, task, self._dispatch)
        return _first_answer(tx, task, placement.decision)

    def _task(
        self,
        tx: Tx,
        principal: Principal,
        draft: TaskDraft,
        placement: Placement,
        drafts: list[EventDraft],
        body_hash: str,
    ) -> Task:
        start, completion = self._placing.estimate_times(tx.now, principal.tenant, placement.agent_id, draft.type)
        denial, patience = placement.denial, draft.queue_timeout_seconds
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
            error=events.denial_error(denial, task_id=task_id, provenance_id=drafts[0].event_id) if denial else None,
            result=None,
            queue_timeout_seconds=patience,
            queue_deadline_at=tx.now + patience * SECOND if patience and placement.status == "queued" else None,
        )

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


def _first_answer(tx: Tx, task: Task, decision: RoutingDecision | None = None) -> StoredResponse:
    """What the first submit of this task answered; what the row does not tell is read from the run log, where it
    outlives retries. `decision` is at hand for a task that is stored just now.
    """
    if task.submitted_status == "failed":
        denied = read_task_events(tx, task.tenant, task.task_id, 2)[-1].metadata
        details = denied["details"] | {"task_id": task.task_id, "provenance_id": task.provenance_id}
        error = {"code": denied["code"], "message": denied["message"], "details": details}
        return StoredResponse(_DENIALS[denied["code"]].status, error)
    if decision is not None:
        online = decision.online
    else:
        online = read_task_events(tx, task.tenant, task.task_id, 2)[-1].metadata["routing"].get("online", True)
    answer = SubmitResult(
        task.task_id,
        task.submitted_status,
        task.estimated_start,
        task.estimated_completion,
        None if online or task.submitted_status != "queued" else NO_WORKER_ONLINE,
        task.provenance_id,
        task.metadata.priority,
    )
    return StoredResponse(202, msgspec.structs.asdict(answer))


def _complete(tx: Tx, tenant: str, known: StoredResponse) -> StoredResponse:
    """A kept answer; one that an earlier version kept has no provenance id, so it is made again from the row."""
    if known.status_code != 202 or "provenance_id" in known.body:
        return known
    task = store.find(tx, tenant, known.body["task_id"])
    return known if task is None else _first_answer(tx, task)


def _submitted(answer: StoredResponse) -> SubmitResult:
    if answer.status_code != 202:
        raise _DENIALS[answer.body["code"]](answer.body["message"], answer.body["details"])
    return SubmitResult(**answer.body)


_DENIALS = {cls.code: cls for cls in all_errors() if issubclass(cls, RoutingDenied)}
