"""The record of a task that its note shows, and the path of the note. Pure."""

from __future__ import annotations

import hashlib
import re

import msgspec

from stentor.core.clock import format_iso
from stentor.core.jsontext import JsonObject
from stentor.domains.tasks.model import OutcomeClass, TaskMetadata, TaskStatus

TASKS_FOLDER = "Tasks"
INBOX_FOLDER = f"{TASKS_FOLDER}/Inbox"
MAX_READ_CHARS = 200_000
"""Maximum number of characters of a stored input, result or error that are read for a note."""
_MIRROR = re.compile(rf"{TASKS_FOLDER}/\d{{4}}(?:/|\Z)")


class TaskNoteRecord(msgspec.Struct, frozen=True):
    """A task as its note shows it; times in microseconds.

    `input`, `result` and `error` are the stored JSON texts, of longer ones the first `MAX_READ_CHARS` + 1 characters.
    """

    task_id: str
    status: TaskStatus
    type: str
    assigned_agent: str | None
    created_at: int
    queued_at: int
    start_time: int | None
    completion_time: int | None
    timeout_seconds: int
    epoch: int
    outcome_class: OutcomeClass | None
    learning_eligible: bool | None
    performance: float | None
    provenance_id: str
    head_id: str
    submitted_by: str
    required_capabilities: tuple[str, ...]
    agent_preference: str | None
    metadata: TaskMetadata
    input: str
    result: str | None
    error: str | None

    @property
    def display_status(self) -> str:
        """Return the status; `routing_failed` for a task that was never routed, which is stored as failed."""
        return "routing_failed" if self.outcome_class == "routing_failed" else self.status

    @property
    def duration_ms(self) -> int | None:
        if self.start_time is None or self.completion_time is None:
            return None
        # A clock that was set back must not make a duration negative.
        return max(self.completion_time - self.start_time, 0) // 1000


class RenderedNote(msgspec.Struct, frozen=True):
    """A note to write into the vault."""

    folder: str
    name: str
    content: bytes

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"


def locate_note(tenant: str, task_id: str, created_at: int) -> tuple[str, str]:
    """Return folder and name of a task's note.

    Callers choose task ids, so the name has only a digest of the id: an id could hold a path.
    """
    time = format_iso(created_at)
    digest = hashlib.sha256(f"{tenant}\0{task_id}".encode()).hexdigest()[:16]
    return f"{TASKS_FOLDER}/{time[:4]}/{time[5:7]}", f"{time[:10]}T{time[11:19].replace(':', '')}-{digest}.md"


def is_mirrored(path: str) -> bool:
    """Return whether a path of the vault is a folder of the mirror or is in one."""
    return _MIRROR.match(path) is not None


def is_in_inbox(path: str) -> bool:
    """Return whether a path of the vault is the inbox or is in it."""
    return f"{path}/".startswith(f"{INBOX_FOLDER}/")


def build_frontmatter(record: TaskNoteRecord) -> JsonObject:
    """Return the fields of the frontmatter in their order; times in ISO 8601."""
    meta, error = record.metadata, _error(record.error)
    fields = {
        "task_id": record.task_id,
        "type": record.type,
        "status": record.display_status,
        "required_capabilities": list(record.required_capabilities),
        "assigned_agent": record.assigned_agent,
        "created_at": format_iso(record.created_at),
        "queued_at": format_iso(record.queued_at),
        "start_time": None if record.start_time is None else format_iso(record.start_time),
        "completion_time": None if record.completion_time is None else format_iso(record.completion_time),
        "duration_ms": record.duration_ms,
        "outcome_class": record.outcome_class,
        "learning_eligible": record.learning_eligible,
        "performance": record.performance,
        "error_code": error.get("code"),
        "provenance_id": record.provenance_id,
        "submitted_by": record.submitted_by,
        "epoch": record.epoch,
        "timeout_seconds": record.timeout_seconds,
        "agent_preference": record.agent_preference,
        "priority": meta.priority or "normal",
    }
    optional = {
        "task_tags": list(meta.tags) or None,
        "user_id": meta.user_id,
        "retry_count": meta.retry_count,
        "parent_task_id": meta.parent_task_id,
    }
    return fields | {key: value for key, value in optional.items() if value is not None}


class _StoredError(msgspec.Struct):
    code: str | None = None


_decode_error = msgspec.json.Decoder(_StoredError).decode


def _error(stored: str | None) -> JsonObject:
    """Return the code of an error if it has one; an agent's error may have any form."""
    if stored is None:
        return {}
    try:
        code = _decode_error(stored).code
    except msgspec.MsgspecError:
        return {}
    return {"code": None if code is None else code[:255]}
