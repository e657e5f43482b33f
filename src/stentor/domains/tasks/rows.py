"""A row of the table of tasks as a `Task`. A malformed one is set aside by `damage_store`, or reported."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import ids, jsontext
from stentor.core.errors import CorruptRow
from stentor.domains.tasks.model import QueuedTask, Task, TaskMetadata

TABLE = "tasks"
FIELDS = Task.__struct_fields__
COLUMNS_OF_TASK = ", ".join(f"tasks.{name}" for name in FIELDS)
_EMPTY = {"required_capabilities": "[]", "metadata": "{}"}
_capabilities_decoder = msgspec.json.Decoder(tuple[str, ...])
decode_metadata = msgspec.json.Decoder(TaskMetadata).decode
"""Decodes the metadata of a row. Raises msgspec.MsgspecError."""


def task_from_row(row: tuple[Any, ...]) -> Task:
    """Return the task of a row with the columns COLUMNS_OF_TASK. Raises CorruptRow.

    One that was set aside as malformed has neither capabilities nor metadata, but its status and its error.
    """
    values = dict(zip(FIELDS, row, strict=True))
    values["title"] = values["title"] or values["type"]  # a task from before there were titles
    ids.advance_past(values["head_id"])  # see queue_store.queued_from_row
    try:
        return _decode(values)
    except msgspec.MsgspecError as error:
        if values["status"] in ("failed", "aborted") and CorruptRow.code in (values["error"] or ""):
            return _decode(values | _EMPTY)
        raise corrupt_task(values["tenant"], values["task_id"], error) from error


def corrupt_task(tenant: str, task_id: str, error: Exception) -> CorruptRow:
    """Return the error of a row that could not be decoded."""
    return CorruptRow(f"The stored record of task {task_id!r} is malformed: {error}.", TABLE, (tenant, task_id))


def decode_claimed(
    queued: QueuedTask, content: str, capabilities: str, metadata: str
) -> tuple[Any, tuple[str, ...], TaskMetadata]:
    """Return the decoded input, capabilities and metadata of a claimed task. Raises CorruptRow."""
    try:
        return jsontext.load(content), _capabilities_decoder.decode(capabilities), decode_metadata(metadata)
    except msgspec.MsgspecError as error:
        raise corrupt_task(queued.tenant, queued.task_id, error) from error


def _decode(values: dict[str, Any]) -> Task:
    decoded = {
        "required_capabilities": _capabilities_decoder.decode(values["required_capabilities"]),
        "metadata": decode_metadata(values["metadata"]),
        "learning_pending": bool(values["learning_pending"]),
    }
    for optional in ("error", "result"):
        if values[optional] is not None:
            decoded[optional] = jsontext.load(values[optional])
    if values["learning_eligible"] is not None:
        decoded["learning_eligible"] = bool(values["learning_eligible"])
    return msgspec.convert(values | decoded, Task)
