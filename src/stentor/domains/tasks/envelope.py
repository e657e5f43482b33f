"""The provenance and the ATP header of a task, as answers about its work carry them: pure.

A task that came as a message runs under the message's header, which its first event records. Any other task runs under
the header that the same request would have had as a message. Source: core contract, "Routing rules".
"""

from __future__ import annotations

from typing import Any

from stentor.core.runlog import RunLogEvent
from stentor.domains.tasks.model import Task


def block(provenance_id: str, priority: str | None, header: dict[str, Any] | None = None) -> dict[str, Any]:
    """`provenance_id` and `atp {header}`; `priority` is the task's, None when it has none."""
    own = {
        "mode": "async",
        "context": provenance_id,
        "priority": priority or "normal",
        "actionType": "execute",
        "targetZone": "kernel",
    }
    return {"provenance_id": provenance_id, "atp": {"header": header or own}}


def of_task(task: Task, root: RunLogEvent | None) -> dict[str, Any]:
    """The block of a stored task; `root` is its first event."""
    header = root.metadata.get("atp") if root is not None else None
    return block(task.provenance_id, task.metadata.priority, header)
