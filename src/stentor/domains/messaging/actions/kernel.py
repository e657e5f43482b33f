"""The zone kernel: tasks. A message that has work done becomes a task, which is how it reaches an agent."""

from __future__ import annotations

from typing import Any

from stentor.auth.principal import Principal
from stentor.core import runlog
from stentor.core.clock import SECOND, format_iso, format_iso_or_none
from stentor.core.db import Tx, idempotency
from stentor.domains.atp import notes
from stentor.domains.atp.bodies import Body, Execute, Judgement, ListTasks, OfTask
from stentor.domains.atp.model import Header
from stentor.domains.atp.text import without_head
from stentor.domains.messaging.model import Action, Closing, Reply, Route, Stored, Work
from stentor.domains.routing.model import RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks.model import TASK_STATUSES, Task, TaskDraft, TaskFilter, TaskMetadata, TaskSummary
from stentor.domains.tasks.service import TaskService, require_task
from stentor.domains.tasks.submission import SubmissionService

ITSELF = Route((), "The kernel does it itself.")


class Kernel:
    def __init__(self, submission: SubmissionService, tasks: TaskService, routing: RoutingEngine) -> None:
        self._submission = submission
        self._tasks = tasks
        self._routing = routing

    def table(self) -> dict[tuple[str, str], Action]:
        itself = _itself
        return {
            ("kernel", "execute"): Action("write", self.execute, self.route),
            ("kernel", "schedule"): Action("write", self.execute, self.route),
            ("kernel", "cancel"): Action("write", self.cancel, itself),
            ("kernel", "retry"): Action("write", self.retry, itself),
            ("kernel", "approve"): Action("admin", self.approve, itself),
            ("kernel", "reject"): Action("admin", self.reject, itself),
            ("kernel", "query"): Action("write", self.query, self.route),
            ("kernel", "get_status"): Action("read", self.read, itself),
            ("kernel", "list"): Action("read", self.page, itself),
        }

    async def execute(self, work: Work) -> Closing:
        """Raises Conflict for a task id that has another body."""
        assert isinstance(work.body, Execute)
        draft = draft_of(work.stored, work.body)
        submit = self._submission.prepare_submit(work.principal, draft, work.cause, work.header)

        def close(tx: Tx) -> Reply:
            answer = submit(tx)
            if answer.status_code != 202:
                return _denied(answer)
            task = require_task(tx, work.principal.tenant, answer.body["task_id"])
            return _waiting(tx, work, task)

        return close

    async def query(self, work: Work) -> Closing:
        """A plain text is a question to an agent, an object asks for a task."""
        return await (self.execute(work) if isinstance(work.body, Execute) else self.read(work))

    async def cancel(self, work: Work) -> Closing:
        task_id = _task_id(work)

        def close(tx: Tx) -> Reply:
            moment = self._tasks.cancel_in_tx(tx, work.principal, task_id, _via(work))
            return Reply({"task_id": task_id, "status": "cancelled", "cancelled_at": format_iso(moment)}, ITSELF)

        return close

    async def retry(self, work: Work) -> Closing:
        again = await self._tasks.prepare_retry(work.principal, _task_id(work), _via(work))
        return lambda tx: _waiting(tx, work, again(tx))

    async def approve(self, work: Work) -> Closing:
        task_id = _task_id(work)
        return lambda tx: Reply(outcome(self._tasks.approve_in_tx(tx, work.principal, task_id, _via(work))), ITSELF)

    async def reject(self, work: Work) -> Closing:
        assert isinstance(work.body, Judgement)
        task_id, reason = work.body.task_id, work.body.reason
        return lambda tx: Reply(
            outcome(self._tasks.reject_in_tx(tx, work.principal, task_id, reason, _via(work))), ITSELF
        )

    async def read(self, work: Work) -> Closing:
        task = await self._tasks.get(work.principal, _task_id(work))
        return lambda tx: Reply(outcome(task), ITSELF)

    async def page(self, work: Work) -> Closing:
        assert isinstance(work.body, ListTasks)
        status = next((known for known in TASK_STATUSES if known == work.body.status), None)
        if work.body.status is not None and status is None:
            return lambda tx: Reply({"tasks": [], "total": 0}, ITSELF)
        wanted = TaskFilter(status, work.body.agent_id)
        page = await self._tasks.list_page(work.principal, wanted, work.body.limit, 0)
        shown = {"tasks": [_row(row) for row in page.rows], "total": page.total}
        return lambda tx: Reply(shown, ITSELF)

    def route(self, principal: Principal, header: Header, body: Body) -> Route:
        """Who would get the work now. Raises the RoutingDenied."""
        if not isinstance(body, Execute):
            return ITSELF
        wanted, named = required(header, body), preferred(header, body)
        authority = self._routing.caller_authority(principal)
        decision = self._routing.decide(RoutingRequest(principal.tenant, body.task.type, wanted, authority, named))
        best = decision.candidates[0]
        among = f"Routed to {decision.agent_name} among {decision.candidates_total}"
        return Route((decision.agent_id,), f"{among}, with the blended score {best.blended:.3f}{_having(wanted)}.")


def draft_of(stored: Stored, body: Execute) -> TaskDraft:
    """The task of a message. Nothing of the header reaches its input; the same message is the same task."""
    task = body.task
    given = without_head(task.input) if isinstance(task.input, str) else task.input
    return TaskDraft(
        task.type,
        given,
        task.id or stored.message_id,
        required(stored.header, body),
        task.timeout_seconds,
        preferred(stored.header, body),
        TaskMetadata(priority=stored.header.priority, sender_agent=stored.sender_agent),
    )


def outcome(task: Task) -> dict[str, Any]:
    """A task as a response shows it."""
    return {
        "task_id": task.task_id,
        "status": task.status,
        "assigned_agent": task.assigned_agent,
        "outcome_class": task.outcome_class,
        "start_time": format_iso_or_none(task.start_time),
        "completion_time": format_iso_or_none(task.completion_time),
        "duration_ms": task.duration_ms,
        "result": task.result,
        "error": task.error,
        "provenance_id": task.provenance_id,
    }


def required(header: Header, body: Execute) -> tuple[str, ...]:
    return notes.capabilities(header, body.task.required_capabilities)


def preferred(header: Header, body: Execute) -> str | None:
    return notes.agent(header) or body.task.agent_preference


def _waiting(tx: Tx, work: Work, task: Task) -> Reply:
    """An acknowledgement; only who asked for it directly has a time until which it waits."""
    decided = [
        e for e in runlog.read_latest_events(tx, task.tenant, task.task_id, 10) if e.event_type == "routing_decision"
    ]
    rationale = (decided[-1].message if decided else "Routed before.").rstrip(".") + _having(task.required_capabilities)
    agents = (task.assigned_agent,) if task.assigned_agent else ()
    direct = work.header.mode == "direct"
    deadline = tx.now + task.timeout_seconds * SECOND if direct else None
    shown = {"acknowledged": True, "task_id": task.task_id, "status": task.status}
    return Reply(shown, Route(agents, f"{rationale}."), waits_for=task.task_id, deadline=deadline)


def _having(capabilities: tuple[str, ...]) -> str:
    return f", for {', '.join(capabilities)}" if capabilities else ""


def _denied(answer: idempotency.StoredResponse) -> Reply:
    error = {"code": answer.body["code"], "message": answer.body["message"], "details": answer.body["details"]}
    return Reply({"error": error}, Route((), answer.body["message"]), "failed")


def _task_id(work: Work) -> str:
    assert isinstance(work.body, OfTask)
    return work.body.task_id


def _via(work: Work) -> dict[str, str]:
    return {"message_id": work.stored.message_id, "caused_by": work.cause}


def _itself(principal: Principal, header: Header, body: Body) -> Route:
    return ITSELF


def _row(row: TaskSummary) -> dict[str, Any]:
    shown = {"task_id": row.task_id, "status": row.status, "type": row.type, "assigned_agent": row.assigned_agent}
    return shown | {"created_at": format_iso(row.created_at), "completed_at": format_iso_or_none(row.completed_at)}
