"""The zone kernel: tasks. A message that has work done becomes a task, which is how it reaches an agent.

The zone sandbox: work for an agent that runs in a cage, and for no other.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from stentor.auth.principal import Principal
from stentor.core import runlog
from stentor.core.clock import SECOND, format_iso, format_iso_or_none
from stentor.core.db import Tx, idempotency
from stentor.core.errors import CapabilityUnavailable, PreferredAgentIneligible
from stentor.domains.atp import header as atp_header
from stentor.domains.atp.bodies import ActionBody, ExecuteBody, ListTasksBody, TaskDecisionBody, TaskIdBody
from stentor.domains.atp.model import AtpHeader
from stentor.domains.atp.text_format import strip_header
from stentor.domains.messaging.model import (
    ActionContext,
    ActionResult,
    CommitStep,
    MessageRoute,
    StoredMessage,
    ZoneAction,
)
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.routing.model import RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks.model import TASK_STATUSES, Task, TaskDraft, TaskFilter, TaskMetadata, TaskSummary
from stentor.domains.tasks.service import TaskService, require_task
from stentor.domains.tasks.submission import SubmissionService

ITSELF = MessageRoute((), "The kernel does it itself.")


class KernelZone:
    def __init__(self, submission: SubmissionService, tasks: TaskService, routing: RoutingEngine) -> None:
        self._submission = submission
        self._tasks = tasks
        self._routing = routing

    def actions(self) -> dict[tuple[str, str], ZoneAction]:
        itself = _itself
        return {
            ("kernel", "execute"): ZoneAction("write", self.execute, self.route),
            ("kernel", "schedule"): ZoneAction("write", self.execute, self.route),
            ("kernel", "cancel"): ZoneAction("write", self.cancel, itself),
            ("kernel", "retry"): ZoneAction("write", self.retry, itself),
            ("kernel", "approve"): ZoneAction("admin", self.approve, itself),
            ("kernel", "reject"): ZoneAction("admin", self.reject, itself),
            ("kernel", "query"): ZoneAction("write", self.query, self.route),
            ("kernel", "get_status"): ZoneAction("read", self.get_status, itself),
            ("kernel", "list"): ZoneAction("read", self.list_tasks, itself),
        }

    async def execute(self, work: ActionContext) -> CommitStep:
        """Raises Conflict for a task id that has another body."""
        assert isinstance(work.body, ExecuteBody)
        draft = build_task_draft(work.message, work.body)
        submit = self._submission.prepare_submit(work.principal, draft, work.parent_event_id, work.header)

        def close(tx: Tx) -> ActionResult:
            answer = submit(tx)
            if answer.status_code != 202:
                return _denied(answer)
            task = require_task(tx, work.principal.tenant, answer.body["task_id"])
            return _waiting(tx, work, task)

        return close

    async def query(self, work: ActionContext) -> CommitStep:
        """A plain text is a question to an agent, an object asks for a task."""
        return await (self.execute(work) if isinstance(work.body, ExecuteBody) else self.get_status(work))

    async def cancel(self, work: ActionContext) -> CommitStep:
        task_id = _task_id(work)

        def close(tx: Tx) -> ActionResult:
            moment = self._tasks.cancel_in_tx(tx, work.principal, task_id, _via(work))
            return ActionResult({"task_id": task_id, "status": "cancelled", "cancelled_at": format_iso(moment)}, ITSELF)

        return close

    async def retry(self, work: ActionContext) -> CommitStep:
        again = await self._tasks.prepare_retry(work.principal, _task_id(work), _via(work))
        return lambda tx: _waiting(tx, work, again(tx))

    async def approve(self, work: ActionContext) -> CommitStep:
        task_id = _task_id(work)
        return lambda tx: ActionResult(
            task_to_json(self._tasks.approve_in_tx(tx, work.principal, task_id, _via(work))), ITSELF
        )

    async def reject(self, work: ActionContext) -> CommitStep:
        assert isinstance(work.body, TaskDecisionBody)
        task_id, reason = work.body.task_id, work.body.reason
        return lambda tx: ActionResult(
            task_to_json(self._tasks.reject_in_tx(tx, work.principal, task_id, reason, _via(work))), ITSELF
        )

    async def get_status(self, work: ActionContext) -> CommitStep:
        task = await self._tasks.get(work.principal, _task_id(work))
        return lambda tx: ActionResult(task_to_json(task), ITSELF)

    async def list_tasks(self, work: ActionContext) -> CommitStep:
        assert isinstance(work.body, ListTasksBody)
        status = next((known for known in TASK_STATUSES if known == work.body.status), None)
        if work.body.status is not None and status is None:
            return lambda tx: ActionResult({"tasks": [], "total": 0}, ITSELF)
        wanted = TaskFilter(status, work.body.agent_id)
        page = await self._tasks.list_page(work.principal, wanted, work.body.limit, 0)
        shown = {"tasks": [_row(row) for row in page.rows], "total": page.total}
        return lambda tx: ActionResult(shown, ITSELF)

    def route(self, principal: Principal, header: AtpHeader, body: ActionBody) -> MessageRoute:
        """Who would get the work now. Raises the RoutingDenied."""
        if not isinstance(body, ExecuteBody):
            return ITSELF
        wanted, named = required_capabilities(header, body), preferred_agent(header, body)
        authority = self._routing.caller_authority(principal)
        decision = self._routing.decide(RoutingRequest(principal.tenant, body.task.type, wanted, authority, named))
        best = decision.candidates[0]
        among = f"Routed to {decision.agent_name} among {decision.candidates_total}"
        return MessageRoute(
            (decision.agent_id,), f"{among}, with the blended score {best.blended:.3f}{_having(wanted)}."
        )


def build_task_draft(stored: StoredMessage, body: ExecuteBody) -> TaskDraft:
    """The task of a message. Nothing of the header reaches its input; the same message is the same task."""
    task = body.task
    given = strip_header(task.input) if isinstance(task.input, str) else task.input
    return TaskDraft(
        task.type,
        given,
        task.id or stored.message_id,
        required_capabilities(stored.header, body),
        task.timeout_seconds,
        preferred_agent(stored.header, body),
        TaskMetadata(priority=stored.header.priority, sender_agent=stored.sender_agent),
    )


def task_to_json(task: Task) -> dict[str, Any]:
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


def required_capabilities(header: AtpHeader, body: ExecuteBody) -> tuple[str, ...]:
    return atp_header.required_capabilities(header, body.task.required_capabilities)


def preferred_agent(header: AtpHeader, body: ExecuteBody) -> str | None:
    return atp_header.named_agent(header) or body.task.agent_preference


def _waiting(tx: Tx, work: ActionContext, task: Task) -> ActionResult:
    """An acknowledgement; only who asked for it directly has a time until which it waits."""
    decided = [
        e for e in runlog.read_latest_events(tx, task.tenant, task.task_id, 10) if e.event_type == "routing_decision"
    ]
    rationale = (decided[-1].message if decided else "Routed before.").rstrip(".") + _having(task.required_capabilities)
    agents = (task.assigned_agent,) if task.assigned_agent else ()
    direct = work.header.mode == "direct"
    deadline = tx.now + task.timeout_seconds * SECOND if direct else None
    shown = {"acknowledged": True, "task_id": task.task_id, "status": task.status}
    return ActionResult(shown, MessageRoute(agents, f"{rationale}."), awaited_task_id=task.task_id, deadline=deadline)


def _having(capabilities: tuple[str, ...]) -> str:
    return f", for {', '.join(capabilities)}" if capabilities else ""


def _denied(answer: idempotency.StoredResponse) -> ActionResult:
    error = {"code": answer.body["code"], "message": answer.body["message"], "details": answer.body["details"]}
    return ActionResult({"error": error}, MessageRoute((), answer.body["message"]), "failed")


def _task_id(work: ActionContext) -> str:
    assert isinstance(work.body, TaskIdBody)
    return work.body.task_id


def _via(work: ActionContext) -> dict[str, str]:
    return {"message_id": work.message.message_id, "caused_by": work.parent_event_id}


def _itself(principal: Principal, header: AtpHeader, body: ActionBody) -> MessageRoute:
    return ITSELF


def _row(row: TaskSummary) -> dict[str, Any]:
    shown = {"task_id": row.task_id, "status": row.status, "type": row.type, "assigned_agent": row.assigned_agent}
    return shown | {"created_at": format_iso(row.created_at), "completed_at": format_iso_or_none(row.completed_at)}


SANDBOXED_RUNTIME = "command"


class SandboxZone:
    def __init__(self, kernel: KernelZone, routing: RoutingEngine, snapshot: AgentCache) -> None:
        self._kernel = kernel
        self._routing = routing
        self._snapshot = snapshot

    def actions(self) -> dict[tuple[str, str], ZoneAction]:
        return {("sandbox", "execute"): ZoneAction("write", self.execute, self.route)}

    async def execute(self, work: ActionContext) -> CommitStep:
        """The same as kernel/execute, for command agents alone. Raises a RoutingDenied, or what that raises."""
        body = self._caged(work.principal, work.header, work.body)
        return await self._kernel.execute(msgspec.structs.replace(work, body=body))

    def route(self, principal: Principal, header: AtpHeader, body: ActionBody) -> MessageRoute:
        return self._kernel.route(principal, header, self._caged(principal, header, body))

    def _caged(self, principal: Principal, header: AtpHeader, body: ActionBody) -> ExecuteBody:
        """The body with the agent chosen: the best command agent, as routing ranks them."""
        given = cast("ExecuteBody", body)
        wanted, named = required_capabilities(header, given), preferred_agent(header, given)
        chosen = named if named is not None else self._best(principal, given.task.type, wanted)
        if chosen is None:
            raise CapabilityUnavailable(
                "No command agent has all the required capabilities.", {"required_capabilities": list(wanted)}
            )
        if named is not None and not self._is_caged(principal.tenant, named):
            raise PreferredAgentIneligible("The agent that is named runs in no cage.", {"agent_preference": named})
        return given.model_copy(update={"task": given.task.model_copy(update={"agent_preference": chosen})})

    def _best(self, principal: Principal, task_type: str, wanted: tuple[str, ...]) -> str | None:
        authority = self._routing.caller_authority(principal)
        ranked = self._routing.decide(RoutingRequest(principal.tenant, task_type, wanted, authority)).candidates
        for one in ranked:
            if self._is_caged(principal.tenant, one.agent_id):
                return one.agent_id
        able = self._snapshot.list_capable(principal.tenant, wanted)  # beyond those that a decision lists
        found = (
            agent.agent_id for agent in able if agent.runtime.kind == SANDBOXED_RUNTIME and agent.status == "active"
        )
        return min(found, default=None)

    def _is_caged(self, tenant: str, agent_id: str) -> bool:
        agent = self._snapshot.get(tenant, agent_id)
        return agent is not None and agent.runtime.kind == SANDBOXED_RUNTIME
