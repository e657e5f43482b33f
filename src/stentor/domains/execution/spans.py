"""Spans of attempts and steps for OpenTelemetry: `TaskSpans` makes them of the events of the run log.

Only a service with a collector has a TaskSpans. The ids of spans are derived from those of the task, so that attempts
in different processes are in one trace, and what an attempt calls can name it as parent while it runs.
Attribute names: semantic conventions 1.37.0, as in `llm/tracing`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import msgspec

from stentor.core import trace_context
from stentor.core.db import Tx
from stentor.core.errors import CorruptRecord
from stentor.core.runlog import RunLogEvent
from stentor.core.trace_context import AttributeValue, EndedSpan, SpanRecorder
from stentor.domains.llm.calls import tracing
from stentor.domains.llm.calls.tracing import attribute_text
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.steps import store as steps
from stentor.domains.steps.model import TOOL_CALL, Step
from stentor.domains.steps.service import read_ended_step
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.model import Task, TaskClaim

AttemptTrace = Callable[[TaskClaim], AbstractContextManager[None]]
"""Returns the block in which an attempt runs: outbound calls in it belong to the trace of its task."""
ATTEMPT_ENDS = {
    "task_completed": "completed",
    "task_failed": "failed",
    "task_aborted": "aborted",
    "task_cancelled": "cancelled",
    "task_waiting": "waiting",
    "task_requeued": "lost",
}
"""Events that end an attempt if the task is being executed, and the state of the attempt then."""
STEP_ENDS = frozenset(("step_completed", "step_failed"))
SPAN_ENDS = STEP_ENDS | ATTEMPT_ENDS.keys()
LEASE_LOST, EFFECT_UNKNOWN, CANCELLED, OTHER = "LEASE_LOST", "EFFECT_UNKNOWN", "CANCELLED", "_OTHER"
MAX_REMEMBERED = 100_000
log = logging.getLogger(__name__)
_attempt: ContextVar[str | None] = ContextVar("attempt span", default=None)


def caller_trace(claim: TaskClaim) -> AbstractContextManager[None]:
    """Return the block of an attempt that has no span: its calls carry the trace context of the submission."""
    return trace_context.TraceparentScope(claim.metadata.traceparent)


def step_trace(key: str) -> AbstractContextManager[None]:
    """Return the block in which a step runs in this process; it changes nothing if its attempt has no span."""
    attempt = _attempt.get()
    return nullcontext() if attempt is None else trace_context.TraceparentScope(_step_traceparent(attempt, key))


class TaskSpans:
    """Records a span for each attempt and each step that ends."""

    def __init__(self, recorder: SpanRecorder, agents: AgentCache) -> None:
        self._recorder, self._agents = recorder, agents
        self._submissions: dict[tuple[str, str], str] = {}
        """The trace contexts of the submissions of tasks, empty for none: so the end of a step reads nothing."""

    @contextmanager
    def attempt_trace(self, claim: TaskClaim) -> Iterator[None]:
        """Return the block of an attempt: its calls have its span as parent."""
        traceparent = self.traceparent_of(claim)
        token = _attempt.set(traceparent)
        try:
            with trace_context.TraceparentScope(traceparent):
                yield
        finally:
            _attempt.reset(token)

    def traceparent_of(self, attempt: TaskClaim | Task) -> str:
        """Return the `traceparent` of an attempt's span, in the trace of the submission if that had one."""
        task, parent = (attempt.tenant, attempt.task_id), attempt.metadata.traceparent
        # Steps of forgotten tasks get no span of their own; the attempt that ends is read from its row.
        if len(self._submissions) >= MAX_REMEMBERED:
            self._submissions.clear()
        self._submissions[task] = parent or ""
        return self._attempt_traceparent(task, attempt.epoch, parent)

    def _attempt_traceparent(self, task: tuple[str, str], epoch: int, parent: str | None) -> str:
        trace_id = _digest(16, *task) if parent is None else parent.split("-")[1]
        sampled = self._recorder.is_sampled(trace_id, parent, tracing.INVOKE_AGENT)
        return f"00-{trace_id}-{_digest(8, *task, str(epoch))}-{int(sampled):02x}"

    def with_trace(self, claim: TaskClaim) -> TaskClaim:
        """Return the claim as a worker gets it: its trace context is the attempt's span."""
        metadata = msgspec.structs.replace(claim.metadata, traceparent=self.traceparent_of(claim))
        return msgspec.structs.replace(claim, metadata=metadata)

    def record_events(self, tx: Tx, tenant: str, events: list[RunLogEvent]) -> None:
        """Record the spans that end with these events, after their commit."""
        for event in events:
            if event.task_id is None or event.event_type not in SPAN_ENDS:
                continue
            try:
                for span in self._spans_of(tx, event, event.task_id):
                    tx.after_commit(partial(self._recorder.record, span))
            except CorruptRecord as error:
                # A damaged row must not undo the change that the event records.
                log.error("spans: damaged record task_id=%s error=%s", event.task_id, error)

    def _spans_of(self, tx: Tx, event: RunLogEvent, task_id: str) -> Iterator[EndedSpan]:
        is_step = event.event_type in STEP_ENDS
        if is_step and event.metadata["kind"] == "step":
            parent, step = self._submissions.get((event.tenant, task_id)), read_ended_step(event)
            if parent is not None and not self._is_tool(event, event.agent_id, step):
                attempt = self._attempt_traceparent((event.tenant, task_id), step.epoch, parent or None)
                yield self._step_span(event, step, attempt, event.agent_id)
                return
        task = tasks.find(tx, event.tenant, task_id)
        if task is None:
            return
        if is_step:
            found = steps.find(tx, event.tenant, task_id, event.metadata["key"])
            if found is not None and found.epoch > 0:
                attempt = self.traceparent_of(msgspec.structs.replace(task, epoch=found.epoch))
                was_running = task.status == "executing"
                yield self._step_span(event, found, attempt, task.assigned_agent, was_running=was_running)
        # The event is written before the row, which so still has the attempt that ends.
        elif task.status == "executing" and task.start_time is not None:
            yield self._attempt_span(task, task.start_time, event)
            if event.event_type not in ("task_completed", "task_waiting"):
                for step in steps.list_open(tx, event.tenant, task_id):
                    if step.kind == "effect" and step.epoch == task.epoch:
                        yield self._step_span(event, step, self.traceparent_of(task), task.assigned_agent)

    def _attempt_span(self, task: Task, started: int, event: RunLogEvent) -> EndedSpan:
        agent_id = task.assigned_agent or ""
        agent = self._agents.get(task.tenant, agent_id)
        name = attribute_text(agent.name if agent else agent_id)
        attributes = {
            tracing.OPERATION_NAME: tracing.INVOKE_AGENT,
            tracing.PROVIDER_NAME: "stentor",
            tracing.AGENT_NAME: name,
            **_common(event, task.assigned_agent, task.epoch),
            "stentor.task.type": attribute_text(task.type),
            "stentor.attempt.state": ATTEMPT_ENDS[event.event_type],
        }
        if task.metadata.session is not None:
            attributes[tracing.CONVERSATION_ID] = attribute_text(task.metadata.session)
        return EndedSpan(
            f"{tracing.INVOKE_AGENT} {name}",
            self.traceparent_of(task),
            task.metadata.traceparent,
            started,
            event.happened_at,
            attributes,
            _attempt_error(event),
            is_client=task.runtime_kind == "http",
        )

    def _is_tool(self, event: RunLogEvent, agent_id: str | None, step: Step) -> bool:
        """Return whether a step of an agent of the runtime `llm` is the call of a tool."""
        agent = self._agents.get(event.tenant, agent_id or "") if TOOL_CALL in step.key else None
        return agent is not None and agent.runtime.kind == "llm"

    def _step_span(
        self, event: RunLogEvent, step: Step, attempt: str, agent_id: str | None, *, was_running: bool = True
    ) -> EndedSpan:
        """Return the span of a step that ended with an event, or of an effect whose attempt ended before it."""
        is_open = step.state == "started"
        # A wait without a name of its own has that of its kind.
        name = step.kind if step.name == step.kind else f"{step.kind} {attribute_text(step.name)}"
        attributes = _common(event, agent_id, step.epoch)
        is_tool = self._is_tool(event, agent_id, step)
        tool = step.name if is_tool else event.metadata.get("tool")
        if tool is not None:
            name = f"{tracing.EXECUTE_TOOL} {attribute_text(tool)}"
            attributes |= {tracing.OPERATION_NAME: tracing.EXECUTE_TOOL, tracing.TOOL_NAME: attribute_text(tool)}
        attributes |= {
            "stentor.step.key": attribute_text(step.key),
            "stentor.step.name": attribute_text(step.name),
            "stentor.step.kind": step.kind,
            "stentor.step.state": "unknown" if is_open else step.state,
        }
        started = step.started_at
        if step.kind == "effect" and event.duration_ms and not is_open:
            # It may have begun in an earlier attempt, and was sent again in this one.
            started = event.happened_at - event.duration_ms * 1000
        error = EFFECT_UNKNOWN if is_open else _error_type(step.error)
        if is_tool and error is None and isinstance(step.value, dict) and step.value.keys() == {"error"}:
            error = _error_type(step.value["error"])
        # A person's record of an effect is a separate span: the attempt's own span is the parent of the calls.
        was_resolved = step.kind == "effect" and not is_open and not was_running
        traceparent = _step_traceparent(attempt, f"{step.key}\0resolved" if was_resolved else step.key)
        return EndedSpan(name, traceparent, attempt, started, event.happened_at, attributes, error)


def _common(event: RunLogEvent, agent_id: str | None, epoch: int) -> dict[str, AttributeValue]:
    agent: dict[str, AttributeValue] = {} if agent_id is None else {tracing.AGENT_ID: agent_id}
    return {
        **agent,
        tracing.TENANT: event.tenant,
        tracing.TASK_ID: attribute_text(event.task_id or ""),
        tracing.EPOCH: epoch,
        tracing.EVENT_ID: event.event_id,
    }


def _attempt_error(event: RunLogEvent) -> str | None:
    if event.event_type == "task_requeued":
        return LEASE_LOST
    if event.event_type == "task_cancelled":
        return CANCELLED
    return _error_type(event.metadata.get("error")) if event.event_type in ("task_failed", "task_aborted") else None


def _error_type(error: Any) -> str | None:
    """Return the code or the type of an error, never its message; None without an error."""
    if error is None:
        return None
    value = (error.get("code") or error.get("type")) if isinstance(error, dict) else None
    return attribute_text(value) if isinstance(value, str) else OTHER


def _step_traceparent(attempt: str, key: str) -> str:
    _, trace_id, span_id, flags = attempt.split("-")
    return f"00-{trace_id}-{_digest(8, span_id, key)}-{flags}"


def _digest(size: int, *parts: str) -> str:
    """Return an id of `size` bytes in hex that is always the same for the same parts."""
    # No part has a NUL character, so different parts are different texts.
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[: 2 * size]
