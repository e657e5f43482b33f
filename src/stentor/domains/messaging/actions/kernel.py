"""The actions of the zones kernel (tasks) and sandbox (tasks for sandboxed agents only).

A message that requests work becomes a task; routing and execution are those of every other task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from stentor.auth.principal import Principal
from stentor.core import runlog
from stentor.core.clock import SECOND, format_iso, format_iso_or_none
from stentor.core.db import Tx
from stentor.core.errors import CapabilityUnavailable, NotFound, PreferredAgentIneligible
from stentor.core.jsontext import JsonObject
from stentor.domains.atp import header as atp_header
from stentor.domains.atp.bodies import ActionBody, ExecuteBody, ListTasksBody, TaskDecisionBody, TaskIdBody, TaskSpec
from stentor.domains.atp.model import AtpHeader
from stentor.domains.atp.text_format import strip_header
from stentor.domains.messaging.model import (
    ActionContext,
    ActionResult,
    CommitStep,
    MessageRoute,
    StoredMessage,
    ZoneAction,
    fixed_route,
)
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.routing.model import RoutingRequest, describe_choice
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks.access import require_task
from stentor.domains.tasks.model import TASK_STATUSES, Task, TaskDraft, TaskMetadata
from stentor.domains.tasks.reading.list_model import TaskFilter, TaskSummary
from stentor.domains.tasks.reading.reader import TaskReader
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission.drafts import measure_input
from stentor.domains.tasks.submission.service import SubmissionService

INTERNAL_ROUTE = MessageRoute((), "Executed by the kernel; no agent is needed.")
SANDBOXED_RUNTIME = "command"
Withdraw = Callable[[Tx, Principal, str], bool]


class KernelZone:
    """Actions on tasks. `withdraw` ends a scheduled message that still waits; it returns whether there is one."""

    def __init__(
        self,
        submission: SubmissionService,
        tasks: TaskService,
        reader: TaskReader,
        routing: RoutingEngine,
        withdraw: Withdraw,
    ) -> None:
        self._submission = submission
        self._tasks = tasks
        self._reader = reader
        self._routing = routing
        self._withdraw = withdraw

    def actions(self) -> dict[tuple[str, str], ZoneAction]:
        internal = fixed_route(INTERNAL_ROUTE)
        return {
            ("kernel", "execute"): ZoneAction("write", self.execute, self.route),
            ("kernel", "schedule"): ZoneAction("write", self.execute, self.route),
            ("kernel", "cancel"): ZoneAction("write", self.cancel, internal),
            ("kernel", "retry"): ZoneAction("write", self.retry, internal),
            ("kernel", "approve"): ZoneAction("approve", self.approve, internal),
            ("kernel", "reject"): ZoneAction("approve", self.reject, internal),
            ("kernel", "query"): ZoneAction("write", self.query, self.route),
            ("kernel", "get_status"): ZoneAction("read", self.get_status, internal),
            ("kernel", "list"): ZoneAction("read", self.list_tasks, internal),
        }

    async def execute(self, context: ActionContext) -> CommitStep:
        """Submit the task of the message. Raises Conflict for a task id that has another body."""
        assert isinstance(context.body, ExecuteBody)
        draft = build_task_draft(context.message, context.body)
        principal, cause = context.principal, context.parent_event_id
        prepared = self._submission.prepare_submit(principal, draft, cause, context.header)
        submit = await context.held.enter_async_context(prepared)

        def commit(tx: Tx) -> ActionResult:
            submitted = submit(tx)
            # A denial is returned, not raised: it must be committed together with the failed message.
            if submitted.status_code != 202:
                error = {name: submitted.body[name] for name in ("code", "message", "details")}
                return ActionResult({"error": error}, MessageRoute((), error["message"]), "failed")
            task = require_task(tx, context.principal.tenant, submitted.body["task_id"])
            return _accepted_result(tx, context, task)

        return commit

    async def query(self, context: ActionContext) -> CommitStep:
        """Submit a plain-text question as a task; for a body with a task id return that task."""
        return await (self.execute(context) if isinstance(context.body, ExecuteBody) else self.get_status(context))

    async def cancel(self, context: ActionContext) -> CommitStep:
        task_id = _task_id(context)

        def commit(tx: Tx) -> ActionResult:
            try:
                self._tasks.cancel_in_tx(tx, context.principal, task_id, context.event_metadata)
            except NotFound:
                # A scheduled message becomes a task only at its time.
                if not self._withdraw(tx, context.principal, task_id):
                    raise
            response = {"task_id": task_id, "status": "cancelled", "cancelled_at": format_iso(tx.now)}
            return ActionResult(response, INTERNAL_ROUTE)

        return commit

    async def retry(self, context: ActionContext) -> CommitStep:
        prepared = self._tasks.prepare_retry(context.principal, _task_id(context), context.event_metadata)
        retry = await context.held.enter_async_context(prepared)
        return lambda tx: _accepted_result(tx, context, retry(tx))

    async def approve(self, context: ActionContext) -> CommitStep:
        task_id = _task_id(context)
        return lambda tx: ActionResult(
            task_to_json(self._tasks.approve_in_tx(tx, context.principal, task_id, context.event_metadata)),
            INTERNAL_ROUTE,
        )

    async def reject(self, context: ActionContext) -> CommitStep:
        assert isinstance(context.body, TaskDecisionBody)
        task_id, reason = context.body.task_id, context.body.reason
        return lambda tx: ActionResult(
            task_to_json(self._tasks.reject_in_tx(tx, context.principal, task_id, reason, context.event_metadata)),
            INTERNAL_ROUTE,
        )

    async def get_status(self, context: ActionContext) -> CommitStep:
        task = await self._reader.get(context.principal, _task_id(context))
        return lambda tx: ActionResult(task_to_json(task), INTERNAL_ROUTE)

    async def list_tasks(self, context: ActionContext) -> CommitStep:
        assert isinstance(context.body, ListTasksBody)
        status = next((name for name in TASK_STATUSES if name == context.body.status), None)
        # A status that does not exist matches no task; without this the filter would match every task.
        if context.body.status is not None and status is None:
            return lambda tx: ActionResult({"tasks": [], "total": 0}, INTERNAL_ROUTE)
        task_filter = TaskFilter(status, context.body.agent_id)
        page = await self._reader.list_page(context.principal, task_filter, context.body.limit, 0)
        response = {"tasks": [_summary_to_json(row) for row in page.rows], "total": page.total}
        return lambda tx: ActionResult(response, INTERNAL_ROUTE)

    def route(self, principal: Principal, header: AtpHeader, body: ActionBody) -> MessageRoute:
        """Return the agent that routing would choose now. Raises RoutingDenied if there is none."""
        if not isinstance(body, ExecuteBody):
            return INTERNAL_ROUTE
        capabilities, preferred = required_capabilities(header, body), preferred_agent(header, body)
        authority = self._routing.caller_authority(principal)
        length = measure_input(_input_without_header(body.task))
        request = RoutingRequest(
            principal.tenant, body.task.type, capabilities, authority, preferred, input_length=length
        )
        decision = self._routing.decide(request)
        best = decision.candidates[0]
        score = f"with the blended score {best.blended:.3f}{_capabilities_suffix(capabilities)}"
        return MessageRoute((decision.agent_id,), f"Routed to {describe_choice(decision)}, {score}.")


class SandboxZone:
    """Execution of tasks by sandboxed agents, those with the runtime `command`."""

    def __init__(self, kernel: KernelZone, routing: RoutingEngine, agents: AgentCache) -> None:
        self._kernel = kernel
        self._routing = routing
        self._agents = agents

    def actions(self) -> dict[tuple[str, str], ZoneAction]:
        return {("sandbox", "execute"): ZoneAction("write", self.execute, self.route)}

    async def execute(self, context: ActionContext) -> CommitStep:
        """Submit a task for a sandboxed agent. Raises RoutingDenied, and Conflict as kernel/execute does."""
        body = self._choose_agent(context.principal, context.header, context.body)
        return await self._kernel.execute(msgspec.structs.replace(context, body=body))

    def route(self, principal: Principal, header: AtpHeader, body: ActionBody) -> MessageRoute:
        return self._kernel.route(principal, header, self._choose_agent(principal, header, body))

    def _choose_agent(self, principal: Principal, header: AtpHeader, body: ActionBody) -> ExecuteBody:
        """Return the body with a sandboxed agent as its preference: the one that is named, else the best one.

        Raises CapabilityUnavailable if there is none, PreferredAgentIneligible if the named agent is not sandboxed.
        """
        execute = cast("ExecuteBody", body)
        capabilities, preferred = required_capabilities(header, execute), preferred_agent(header, execute)
        agent_id = preferred if preferred is not None else self._best_agent(principal, execute.task, capabilities)
        if agent_id is None:
            raise CapabilityUnavailable(
                "No sandboxed agent (runtime command) has all the required capabilities.",
                {"required_capabilities": list(capabilities)},
            )
        if preferred is not None and not self._is_sandboxed(principal.tenant, preferred):
            raise PreferredAgentIneligible(
                "The preferred agent is not sandboxed. Name an agent with the runtime command, or none.",
                {"agent_preference": preferred},
            )
        return execute.model_copy(update={"task": execute.task.model_copy(update={"agent_preference": agent_id})})

    def _best_agent(self, principal: Principal, task: TaskSpec, capabilities: tuple[str, ...]) -> str | None:
        authority, length = self._routing.caller_authority(principal), measure_input(_input_without_header(task))
        decision = self._routing.decide(
            RoutingRequest(principal.tenant, task.type, capabilities, authority, input_length=length)
        )
        for candidate in decision.candidates:
            if self._is_sandboxed(principal.tenant, candidate.agent_id):
                return candidate.agent_id
        # A decision lists only its best candidates; sandboxed agents may rank below them.
        capable = self._agents.list_capable(principal.tenant, capabilities)
        sandboxed = (
            agent.agent_id for agent in capable if agent.runtime.kind == SANDBOXED_RUNTIME and agent.status == "active"
        )
        # By id, so that the same message always gets the same agent.
        return min(sandboxed, default=None)

    def _is_sandboxed(self, tenant: str, agent_id: str) -> bool:
        agent = self._agents.get(tenant, agent_id)
        return agent is not None and agent.runtime.kind == SANDBOXED_RUNTIME


def build_task_draft(stored: StoredMessage, body: ExecuteBody) -> TaskDraft:
    """Build the task of a message. Its id defaults to the message id, so processing a message again finds its task."""
    task = body.task
    return TaskDraft(
        task.type,
        _input_without_header(task),
        task.id or stored.message_id,
        required_capabilities(stored.header, body),
        task.timeout_seconds,
        preferred_agent(stored.header, body),
        TaskMetadata(priority=stored.header.priority, sender_agent=stored.sender_agent),
    )


def _input_without_header(task: TaskSpec) -> Any:
    """Return the input of a task. The header is for routing and permissions only; an agent must never see one."""
    return strip_header(task.input) if isinstance(task.input, str) else task.input


def task_to_json(task: Task) -> JsonObject:
    """Return a task as it appears in the response to a message."""
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


def _accepted_result(tx: Tx, context: ActionContext, task: Task) -> ActionResult:
    """Acknowledge a task. Only mode direct sets a deadline, because only there the sender waits for the response."""
    # Ten are enough for a new task; the decision of a task that has run may be further back.
    latest = runlog.read_latest_events(tx, task.tenant, task.task_id, 10)
    decisions = [event for event in latest if event.event_type == "routing_decision"]
    rationale = (decisions[-1].message if decisions else "Routed earlier.").rstrip(".")
    route = MessageRoute(
        (task.assigned_agent,) if task.assigned_agent else (),
        f"{rationale}{_capabilities_suffix(task.required_capabilities)}.",
    )
    deadline = tx.now + task.timeout_seconds * SECOND if context.header.mode == "direct" else None
    response = {"acknowledged": True, "task_id": task.task_id, "status": task.status}
    return ActionResult(response, route, awaited_task_id=task.task_id, deadline=deadline)


def _capabilities_suffix(capabilities: tuple[str, ...]) -> str:
    return f", for {', '.join(capabilities)}" if capabilities else ""


def _task_id(context: ActionContext) -> str:
    assert isinstance(context.body, TaskIdBody)
    return context.body.task_id


def _summary_to_json(row: TaskSummary) -> JsonObject:
    fields = {"task_id": row.task_id, "status": row.status, "type": row.type, "assigned_agent": row.assigned_agent}
    return fields | {"created_at": format_iso(row.created_at), "completed_at": format_iso_or_none(row.completed_at)}
