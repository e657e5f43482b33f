"""Submission of tasks. Routing decides before the transaction; the transaction stores the task and its events.

Idempotent by task id and by Idempotency-Key. What happens to a stored task is in `service` and `execution`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import msgspec
from prometheus_client.core import Metric

from stentor.auth.principal import Principal
from stentor.core import ids, trace_context
from stentor.core.clock import SECOND
from stentor.core.db import NO_LOCKS, Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.db.locks import locks
from stentor.core.errors import Conflict, InvalidRequest, NotFound, ParentCancelled, RoutingDenied, all_errors
from stentor.core.metrics import REQUEST_BUCKETS_S, Histogram
from stentor.core.runlog import EventDraft, RunLog, read_task_events
from stentor.domains.atp.model import AtpHeader
from stentor.domains.atp.text_format import content_for_agent
from stentor.domains.routing.model import Authority
from stentor.domains.sessions.service import require_session
from stentor.domains.tasks import events, model, queries, store
from stentor.domains.tasks.access import is_archived
from stentor.domains.tasks.model import SubmitResult, Task, TaskClaim, TaskDraft
from stentor.domains.tasks.reading import visibility_queries
from stentor.domains.tasks.reading.progress import describe_offline, describe_unused_session, notice_fields
from stentor.domains.tasks.submission.drafts import (
    derive_title,
    inherit_limits,
    with_input_length,
    with_parent_task,
    with_traceparent,
)
from stentor.domains.tasks.submission.placement import (
    AuthorityResolver,
    Placement,
    ReservedSlot,
    StartConditions,
    TaskQueue,
    TaskRouter,
    start_or_enqueue,
)

_NO_KEY = nullcontext()
_DENIALS_BY_CODE = {error.code: error for error in all_errors() if issubclass(error, RoutingDenied)}


class Submission(msgspec.Struct, frozen=True):
    """A routed task with what its transaction needs.

    `body_hash` is the hash of what the client sent. `granted_parent` is the task of the submitter's grant. If the task
    came as a message, `cause` is the event of the message and `header` its header. With a `slot` it starts at once.
    """

    principal: Principal
    draft: TaskDraft
    body_hash: str
    placement: Placement
    key: IdempotencyKey | None = None
    granted_parent: str | None = None
    cause: str | None = None
    header: AtpHeader | None = None
    trace: str | None = None
    slot: ReservedSlot | None = None


class SubmissionService:
    """Routes and stores new tasks."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        router: TaskRouter,
        dispatch: TaskQueue,
        grants: AuthorityResolver,
        starts: StartConditions,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._router = router
        self._dispatch = dispatch
        self._grants = grants
        self._starts = starts
        self._running: set[tuple[str, str, str, str]] = set()
        text = "Duration of a submission until it is stored, by result; a failed one stored nothing."
        self._durations = Histogram("stentor_submit_duration_seconds", text, REQUEST_BUCKETS_S, "result")
        self._by_result = {result: self._durations.labels(result) for result in ("accepted", "denied", "failed")}

    async def submit(
        self,
        principal: Principal,
        draft: TaskDraft,
        key: IdempotencyKey | None = None,
        header: AtpHeader | None = None,
    ) -> SubmitResult:
        """Route and store a task. `header` is the header of its ATP message, if it came as one.

        Raises RoutingDenied, after storing the task as failed. The same id or Idempotency-Key with the same body gets
        the first response again; with another body it is a Conflict (id) or an IdempotencyMismatch (key).
        """
        started, result = time.perf_counter(), "failed"
        try:
            response = await self._submit_once(principal, draft, key, header)
            result = "accepted" if response.status_code == 202 else "denied"
        finally:
            self._by_result[result].observe(time.perf_counter() - started)
        return _result_or_denial(response)

    async def _submit_once(
        self, principal: Principal, draft: TaskDraft, key: IdempotencyKey | None, header: AtpHeader | None
    ) -> StoredResponse:
        # Read it here: the transaction runs in the writer's thread, which has another context.
        trace = trace_context.current_traceparent()
        # Hash what the client sent: the authority of its grant may have changed when it repeats the submission.
        body_hash = model.compute_body_hash(draft)
        with _NO_KEY if key is None else self._reject_concurrent(key):
            granted, granted_parent = await self._resolve_grant(principal, draft)
            draft = with_input_length(with_parent_task(draft, granted_parent))
            with await self._router.place(principal, draft, granted) as placement:
                slot = self._reserve(draft, placement)
                submission = Submission(
                    principal, draft, body_hash, placement, key, granted_parent, None, header, trace, slot
                )
                return await self._db.write(
                    # Locks are taken inside, by id and by key, so that other submissions need not wait.
                    lambda tx: self._submit(tx, submission),
                    NO_LOCKS,
                    # Not in a `finally` here: the caller may cancel this coroutine while the transaction continues.
                    on_end=None if slot is None else slot.release,
                )

    def _reserve(self, draft: TaskDraft, placement: Placement) -> ReservedSlot | None:
        """Reserve a slot for a task that starts at once; None for one that is queued, waits or is denied."""
        if placement.status != "queued" or draft.after or draft.start_at is not None:
            return None
        assert placement.agent_id is not None
        assert placement.runtime_kind is not None
        return self._dispatch.reserve(placement.agent_id, placement.runtime_kind)

    def collect_metrics(self) -> Iterable[Metric]:
        """Return the submission durations."""
        return self._durations.collect()

    async def _resolve_grant(self, principal: Principal, draft: TaskDraft) -> tuple[Authority | None, str | None]:
        """Return what the grant of the draft permits, and the task that it belongs to; None without a grant."""
        if draft.metadata.grant_id is None:
            return None, None
        return await self._grants.resolve_authority(principal, draft.metadata.grant_id)

    @asynccontextmanager
    async def prepare_submit(
        self, principal: Principal, draft: TaskDraft, cause: str | None = None, header: AtpHeader | None = None
    ) -> AsyncIterator[Callable[[Tx], StoredResponse]]:
        """Route now and yield the function that stores the task in the caller's transaction.

        For a message, `cause` is the event that the task follows from, and `header` its header.

        The response is 202 with the fields of a SubmitResult, or the status of a denial and `{code, message, details}`.
        """
        body_hash = model.compute_body_hash(draft)
        draft = with_input_length(draft)
        with await self._router.place(principal, draft) as placement:
            submission = Submission(principal, draft, body_hash, placement, cause=cause, header=header)
            yield lambda tx: self._submit(tx, submission)

    def _submit(self, tx: Tx, submission: Submission) -> StoredResponse:
        key = submission.key
        if key is not None and (stored := idempotency.find_response(tx, key)):
            return stored
        existing = _find_submitted(tx, submission)
        if existing is None:
            response = self._store(tx, submission, _complete_draft(tx, submission))
        else:
            response = _first_response(tx, existing)
        if key is not None:
            idempotency.store_response(tx, key, response)
        return response

    def _store(self, tx: Tx, submission: Submission, draft: TaskDraft) -> StoredResponse:
        principal, placement, slot = submission.principal, submission.placement, submission.slot
        waits = bool(draft.after) or (draft.start_at is not None and draft.start_at > tx.now)
        if waits and placement.status == "queued":
            placement = msgspec.structs.replace(placement, status="waiting")
        event_drafts = events.submission_events(principal, draft, placement, submission.header)
        task = self._new_task(tx, principal, draft, placement, event_drafts, submission.body_hash)
        claim = _claim_new(tx, task, draft, event_drafts, slot)
        store.insert(tx, task, draft.input, claim)
        self._runlog.append(tx, task.tenant, event_drafts, task_id=task.task_id, parent=submission.cause)
        status = task.status if claim is None else "executing"
        queries.update_counts(tx, task.tenant, task.created_at, (status, task.assigned_agent, 1))
        if draft.metadata.rerun_from is not None:
            self._starts.take_over(tx, principal, task)
        if waits and placement.denial is None:
            self._starts.begin(tx, principal, task, draft)
        self._starts.expect_times(tx, draft)
        self._router.record_placement(tx, task)
        if claim is None:
            start_or_enqueue(tx, task, self._dispatch, slot)
        return _first_response(tx, task, placement)

    def _new_task(
        self,
        tx: Tx,
        principal: Principal,
        draft: TaskDraft,
        placement: Placement,
        event_drafts: list[EventDraft],
        body_hash: str,
    ) -> Task:
        begin = max(tx.now, draft.start_at or 0)
        start, completion = self._router.estimate_times(begin, principal.tenant, placement.agent_id, draft.type)
        denial, queue_timeout = placement.denial, draft.queue_timeout_seconds
        # A task that waits or needs approval gets its queue deadline when it is queued.
        deadline = tx.now + queue_timeout * SECOND if queue_timeout and placement.status == "queued" else None
        task_id, provenance_id = draft.id or ids.new_id(), event_drafts[0].event_id
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
            provenance_id=provenance_id,
            head_id=event_drafts[-1].event_id,
            parent_task_id=draft.metadata.parent_task_id,
            submitted_by=principal.name,
            submitted_status=placement.status,
            estimated_start=start,
            estimated_completion=completion,
            body_hash=body_hash,
            required_capabilities=draft.required_capabilities,
            agent_preference=draft.agent_preference,
            metadata=draft.metadata,
            error=events.denial_error(denial, task_id=task_id, provenance_id=provenance_id) if denial else None,
            result=None,
            queue_timeout_seconds=queue_timeout,
            queue_deadline_at=deadline,
            end_by=draft.deadline,
            title=draft.metadata.title or derive_title(draft.type, draft.input),
        )

    @contextmanager
    def _reject_concurrent(self, key: IdempotencyKey) -> Iterator[None]:
        """Reject a second request with the same Idempotency-Key while the first one runs in this process: Conflict."""
        # Requests at different processes meet at the lock of `find_response`. This check saves work within one process.
        if key.scope in self._running:
            raise Conflict("A request with this Idempotency-Key is still running. Try again in a moment.")
        self._running.add(key.scope)
        try:
            yield
        finally:
            self._running.discard(key.scope)


def _find_submitted(tx: Tx, submission: Submission) -> Task | None:
    """Return the task of an earlier submission with the same id and body. Raises Conflict for any other with the id."""
    principal, task_id = submission.principal, submission.draft.id
    if task_id is None:
        return None
    # If two processes receive submissions with the same id, the second must find the row of the first.
    tx.lock(locks.task_lock(principal.tenant, task_id))
    if task := store.find(tx, principal.tenant, task_id):
        # Also a conflict if the caller may not read the task: otherwise it could find out the input by trial and error.
        if task.body_hash != submission.body_hash or not visibility_queries.can_see(tx, principal, task):
            raise Conflict(f"A task with the id {task_id!r} and another body exists. Use another id.")
    elif is_archived(tx, principal.tenant, task_id):
        # Stored again it would be executed a second time.
        raise Conflict(f"A task with the id {task_id!r} ended and was archived. Use another id.")
    return task


def _complete_draft(tx: Tx, submission: Submission) -> TaskDraft:
    """Return the draft with its parent's limits and its trace. Raises InvalidRequest for an invalid reference."""
    draft, principal = submission.draft, submission.principal
    if draft.metadata.parent_task_id is not None:
        parent = _require_parent(tx, principal, draft.metadata.parent_task_id, submission.granted_parent)
        draft = inherit_limits(draft, parent)
    if draft.deadline is not None and draft.deadline <= max(tx.now, draft.start_at or 0):
        raise InvalidRequest(
            "deadline: must be in the future and after start_at. The deadline of a parent task applies too."
        )
    if draft.metadata.session is not None:
        _require_usable_session(tx, principal, draft.metadata.session)
    # After the hash of the body, because each retry of a submission has another trace.
    return with_traceparent(draft, submission.trace)


def _claim_new(
    tx: Tx, task: Task, draft: TaskDraft, event_drafts: list[EventDraft], slot: ReservedSlot | None
) -> TaskClaim | None:
    """Return the claim of a new task that starts at once, and add its event; None if it must be stored first."""
    if slot is None or task.status != "queued" or draft.metadata.rerun_from is not None:
        return None
    lease_until = slot.admit_new(tx, task)
    if lease_until is None:
        return None
    assert task.assigned_agent is not None
    started = events.started_event(task.assigned_agent, 1)
    event_drafts.append(started)
    claim = model.first_claim(task, content_for_agent(draft.input), lease_until, started.event_id)
    slot.start(tx, claim)
    return claim


def _require_parent(tx: Tx, principal: Principal, parent_task_id: str, granted_parent: str | None) -> Task:
    """Return the parent. Raises InvalidRequest if the submitter cannot see it, and ParentCancelled."""
    # The cancellation of the parent takes the same lock: a child stored after it would never be cancelled.
    tx.lock(locks.task_lock(principal.tenant, parent_task_id))
    parent = store.find(tx, principal.tenant, parent_task_id)
    # The holder of a grant may not be able to see the grant's task, but may add subtasks to it.
    if parent is None or (parent_task_id != granted_parent and not visibility_queries.can_see(tx, principal, parent)):
        raise InvalidRequest(
            f"metadata.parent_task_id: there is no task with the id {parent_task_id!r}. Leave the field out for a task "
            "without a parent."
        )
    if parent.status == "cancelled":
        raise ParentCancelled(f"The task {parent_task_id!r} was cancelled, so it can have no more subtasks.")
    return parent


def _require_usable_session(tx: Tx, principal: Principal, session_id: str) -> None:
    """Raise InvalidRequest for a session that the submitter may not use: its task could read the session."""
    try:
        require_session(tx, principal, session_id)
    except NotFound:
        raise InvalidRequest(
            f"session: there is no session {session_id!r}. Create it: `stentor session create` or "
            "POST /api/v1/sessions."
        ) from None


def _first_response(tx: Tx, task: Task, placement: Placement | None = None) -> StoredResponse:
    """Return the response to the first submission of a task; `placement` is known only while the task is stored.

    What the row does not hold comes from the first two events, which no retry changes.
    """
    if task.submitted_status == "failed":
        denied = read_task_events(tx, task.tenant, task.task_id, 2)[-1].metadata
        details = denied["details"] | {"task_id": task.task_id, "provenance_id": task.provenance_id}
        error = {"code": denied["code"], "message": denied["message"], "details": details}
        return StoredResponse(_DENIALS_BY_CODE[denied["code"]].status, error)
    if placement is not None and placement.decision is not None:
        decision = placement.decision
        can_start, agent_name = decision.online and not placement.is_unseen, decision.agent_name
    else:
        routing = read_task_events(tx, task.tenant, task.task_id, 2)[-1].metadata["routing"]
        can_start, agent_name = routing.get("online", True) and not routing.get("unseen"), routing["agent_name"]
    is_queued = task.submitted_status == "queued"
    notice = describe_unused_session(task.runtime_kind, agent_name, task.metadata.session)
    if is_queued and not can_start:
        notice = describe_offline(task.runtime_kind, agent_name)
    result = SubmitResult(
        task.task_id,
        task.submitted_status,
        task.estimated_start,
        task.estimated_completion,
        provenance_id=task.provenance_id,
        priority=task.metadata.priority,
        **notice_fields(notice),
    )
    return StoredResponse(202, msgspec.structs.asdict(result))


def _result_or_denial(response: StoredResponse) -> SubmitResult:
    if response.status_code != 202:
        raise _DENIALS_BY_CODE[response.body["code"]](response.body["message"], response.body["details"])
    return SubmitResult(**response.body)
