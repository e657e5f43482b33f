"""Drafts of tasks that are made from a task or from another draft. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.domains.tasks.model import Task, TaskDraft, TaskMetadata


def draft_rerun(task: Task, task_input: Any, agent_preference: str | None, from_step: str | None) -> TaskDraft:
    """Return the draft of a new task that repeats a task; without `agent_preference` it has the preference again.

    From a step on it prefers the agent that wrote the journal, whose program has these steps. It is not a subtask and
    uses no grant: those belong to the first run.
    """
    meta, writer = task.metadata, task.assigned_agent if from_step is not None else None
    return TaskDraft(
        task.type,
        task_input,
        required_capabilities=task.required_capabilities,
        timeout_seconds=task.timeout_seconds,
        agent_preference=agent_preference or writer or task.agent_preference,
        metadata=TaskMetadata(
            meta.user_id,
            meta.priority,
            tags=meta.tags,
            prefer=meta.prefer,
            title=meta.title,
            rerun_of=task.task_id,
            rerun_from=from_step,
            limit=meta.limit,
            session=meta.session,
        ),
        queue_timeout_seconds=task.queue_timeout_seconds,
    )


def inherit_limits(draft: TaskDraft, parent: Task) -> TaskDraft:
    """Return the draft of a subtask with the budgets of its parent, and with its deadline if that is earlier."""
    deadlines = [each for each in (draft.deadline, parent.end_by) if each is not None]
    budgets = parent.metadata.budgets_of(parent.task_id)
    metadata = msgspec.structs.replace(draft.metadata, budgets=budgets) if budgets else draft.metadata
    return msgspec.structs.replace(draft, metadata=metadata, deadline=min(deadlines, default=None))


def with_traceparent(draft: TaskDraft, traceparent: str | None) -> TaskDraft:
    """Return the draft with a trace context; unchanged without one."""
    if traceparent is None:
        return draft
    return msgspec.structs.replace(draft, metadata=msgspec.structs.replace(draft.metadata, traceparent=traceparent))


def with_parent_task(draft: TaskDraft, parent_task_id: str | None) -> TaskDraft:
    """Return the draft as a subtask of another task; unchanged without one."""
    if parent_task_id is None:
        return draft
    metadata = msgspec.structs.replace(draft.metadata, parent_task_id=parent_task_id)
    return msgspec.structs.replace(draft, metadata=metadata)
