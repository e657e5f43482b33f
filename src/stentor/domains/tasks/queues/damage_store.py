"""SQL that takes a malformed task out of the way of the others: an open one ends, and no lesson waits for it.

Reads only the columns that are not JSON. The malformed ones stay as they are, so that the cause can be investigated.
"""

from __future__ import annotations

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.tasks.model import TERMINAL_STATUSES, OutcomeClass, TaskStatus


class TaskStub(msgspec.Struct, frozen=True):
    """What is known of a task without its JSON."""

    tenant: str
    task_id: str
    status: TaskStatus
    epoch: int
    head_id: str
    assigned_agent: str | None
    created_at: int
    learning_pending: int

    @property
    def has_ended(self) -> bool:
        return self.status in TERMINAL_STATUSES

    @property
    def end(self) -> TaskStatus:
        """The status in which it ends: only what is queued or runs may fail."""
        return "failed" if self.status in ("queued", "executing") else "aborted"


_COLUMNS = ", ".join(TaskStub.__struct_fields__)
_KEY = "tenant = :tenant and task_id = :task_id"
_FIND = Sql(f"select {_COLUMNS} from tasks where {_KEY}")
# The head too: if the task was changed since, the process that did so could read it.
_SEEN = f"{_KEY} and status = :source and epoch = :epoch and head_id = :seen"
_END = Sql(
    f"""update tasks set status = :status, completion_time = :now, error = :error, outcome_class = :outcome_class,
        learning_eligible = 0, learning_pending = 0, result = null, head_id = :head_id, lease_until = null,
        deadline_at = null
    where {_SEEN}"""
)
_LEARN_NOTHING = Sql(f"update tasks set learning_pending = 0, head_id = :head_id where {_SEEN}")


def find_stub(tx: Tx, tenant: str, task_id: str) -> TaskStub | None:
    row = tx.row(_FIND, tenant=tenant, task_id=task_id)
    return None if row is None else TaskStub(*row)


def end(tx: Tx, stub: TaskStub, outcome_class: OutcomeClass, error: JsonObject, head_id: str) -> bool:
    """End an open task; False if it changed since it was read."""
    values = {"status": stub.end, "outcome_class": outcome_class, "error": jsontext.dump(error), "head_id": head_id}
    return tx.run(_END, **_seen(stub), **values, now=tx.now) == 1


def learn_nothing(tx: Tx, stub: TaskStub, head_id: str) -> bool:
    """Forget that the outcome of an ended task is to be learned; False if it changed since it was read."""
    return tx.run(_LEARN_NOTHING, **_seen(stub), head_id=head_id) == 1


def _seen(stub: TaskStub) -> dict[str, str | int]:
    return {
        "tenant": stub.tenant,
        "task_id": stub.task_id,
        "source": stub.status,
        "epoch": stub.epoch,
        "seen": stub.head_id,
    }
