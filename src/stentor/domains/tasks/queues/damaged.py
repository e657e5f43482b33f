"""Sets malformed tasks aside, so that one of them holds up no queue and no job.

`Database` calls it when a write or a poll meets one. Reads of callers set nothing aside: they get the error.
"""

from __future__ import annotations

import logging

from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.errors import Conflict, CorruptRow
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.domains.learning.service import learning_skipped_event
from stentor.domains.tasks import queries
from stentor.domains.tasks.model import OutcomeClass, Task
from stentor.domains.tasks.queues import damage_store
from stentor.domains.tasks.queues.damage_store import TaskStub
from stentor.domains.tasks.submission.placement import TaskQueue

OUTCOME_CLASS: OutcomeClass = "provider_failure"
"""Of something that the agent depends on: it is not evidence about the agent."""
_EVENTS: dict[str, EventType] = {"failed": "task_failed", "aborted": "task_aborted"}
log = logging.getLogger(__name__)


class DamagedTasks:
    """Ends tasks whose rows, or whose waits, are malformed."""

    def __init__(self, db: Database, runlog: RunLog, dispatch: TaskQueue) -> None:
        self._db, self._runlog, self._dispatch = db, runlog, dispatch

    async def set_aside(self, error: CorruptRow) -> None:
        """Set the task of a row aside."""
        await self._db.write(lambda tx: self.set_aside_in_tx(tx, error), NO_LOCKS)

    def set_aside_in_tx(self, tx: Tx, error: CorruptRow) -> None:
        """End a task that has not ended, learn nothing from one that has. Does nothing if it changed in the meantime.

        The key of the row begins with the tenant and the id of the task.
        """
        stub = damage_store.find_stub(tx, error.key[0], error.key[1])
        if stub is None:
            return
        record: JsonObject = {"code": error.code, "message": error.message}
        drafts = [] if stub.has_ended else [_end_event(stub, record)]
        drafts.append(learning_skipped_event(OUTCOME_CLASS, error.message))
        head = drafts[-1].event_id
        if not stub.has_ended:
            if not damage_store.end(tx, stub, OUTCOME_CLASS, record, head):
                return
            changes = (stub.status, stub.assigned_agent, -1), (stub.end, stub.assigned_agent, 1)
            queries.update_counts(tx, stub.tenant, stub.created_at, *changes)
            tx.after_commit(lambda: self._dispatch.stop(stub.tenant, stub.task_id, None))
        elif not stub.learning_pending or not damage_store.learn_nothing(tx, stub, head):
            return
        self._runlog.append(tx, stub.tenant, drafts, task_id=stub.task_id, parent=stub.head_id)
        tx.after_commit(lambda: log.error("tasks: malformed record set aside error=%s", error.message))


def refuse_damaged(task: Task) -> None:
    """Raise Conflict for a task that was set aside: what it would run with is not known."""
    if task.error is not None and task.error.get("code") == CorruptRow.code:
        raise Conflict("The stored record of the task is malformed, so it cannot be retried. Submit it again.")


def _end_event(stub: TaskStub, error: JsonObject) -> EventDraft:
    meta = {"status": stub.end, "from": stub.status, "outcome_class": OUTCOME_CLASS, "learning_eligible": False}
    return EventDraft(_EVENTS[stub.end], "execution", error["message"], meta | {"error": error}, stub.assigned_agent)
