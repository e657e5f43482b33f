"""Drafts of tasks that are made from a task or from another draft, and the titles of tasks. No I/O.

A title is what people read in lists instead of the id. The submitter may give one; otherwise it is a text of the input.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.validation.text_checks import is_readable
from stentor.domains.atp.text_format import content_for_agent
from stentor.domains.tasks.model import Task, TaskDraft, TaskMetadata

MAX_TITLE_CHARACTERS = 200
"""Limit for a title that the submitter gives."""
DERIVED_CHARACTERS = 80
"""Limit for a title that is taken from the input."""
KEYS = (
    "title subject headline name question query prompt instruction instructions goal objective task request message "
    "messages description summary text content body input url path file"
).split()
"""Fields of an input that say best what a task is about, the best first."""
_MAX_DEPTH, _MAX_ITEMS, _MAX_SCANNED = 4, 20, 2_000
_MARKS = re.compile(r"^[\s#>*_`~=|:.\-\u2022]+")
_IDENTIFIER = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-|[0-9a-fA-F]{16,}$")


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


def with_input_length(draft: TaskDraft) -> TaskDraft:
    """Return the draft with the length of its input, by which routing may choose."""
    metadata = msgspec.structs.replace(draft.metadata, input_length=measure_input(draft.input))
    return msgspec.structs.replace(draft, metadata=metadata)


def measure_input(task_input: Any) -> int:
    """Return the length of an input as JSON, in bytes."""
    return len(jsontext.encode(task_input))


def with_parent_task(draft: TaskDraft, parent_task_id: str | None) -> TaskDraft:
    """Return the draft as a subtask of another task; unchanged without one."""
    if parent_task_id is None:
        return draft
    metadata = msgspec.structs.replace(draft.metadata, parent_task_id=parent_task_id)
    return msgspec.structs.replace(draft, metadata=metadata)


def derive_title(task_type: str, task_input: Any) -> str:
    """Return a line of at most DERIVED_CHARACTERS from the input, or the type of the task if the input has no text."""
    return _find_title(content_for_agent(task_input), _MAX_DEPTH) or task_type


def _find_title(value: Any, depth: int) -> str | None:
    if isinstance(value, str):
        return _first_line(value)
    if not depth:
        return None
    if isinstance(value, dict):
        # The named fields first; then any other text, because a field that we do not know beats no title.
        nested: list[Any] = [value[key] for key in KEYS if key in value]
        nested += [item for item in list(value.values())[:_MAX_ITEMS] if isinstance(item, str)]
    elif isinstance(value, list):
        # The last message of a conversation is the one to be answered.
        is_chat = bool(value) and all(isinstance(item, dict) and "role" in item for item in value[:_MAX_ITEMS])
        nested = [item.get("content") for item in reversed(value[-_MAX_ITEMS:])] if is_chat else value[:_MAX_ITEMS]
    else:
        return None
    return next((title for item in nested if (title := _find_title(item, depth - 1))), None)


def _first_line(text: str) -> str | None:
    """Return the first line that people can read, or None."""
    for line in text[:_MAX_SCANNED].splitlines():
        start = line[: 2 * DERIVED_CHARACTERS]
        if not start.isprintable():
            start = "".join(c if is_readable(c) else " " for c in start)
        words = _MARKS.sub("", start).split()
        if words and not _is_opaque(words):
            return _shorten(" ".join(words))
    return None


def _is_opaque(words: list[str]) -> bool:
    """Return whether a line is an id, a hash or encoded bytes, or has no letters at all."""
    # A long word is taken for encoded bytes, but with an early slash for an address or a path.
    is_token = len(words) == 1 and (_IDENTIFIER.match(words[0]) or (len(words[0]) > 60 and "/" not in words[0][:20]))
    return bool(is_token) or not any(c.isalpha() for word in words for c in word)


def _shorten(line: str) -> str:
    if len(line) <= DERIVED_CHARACTERS:
        return line
    cut = line[: DERIVED_CHARACTERS - 1]
    return (cut.rpartition(" ")[0] if " " in cut[DERIVED_CHARACTERS // 2 :] else cut).rstrip(" ,;:.-") + "…"
