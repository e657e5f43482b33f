"""The moves of a message and their events: taken, given back, waiting for its task, answered."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

import msgspec

from stentor.core.db import Database, Tx
from stentor.core.errors import StoreUnavailable, Timeout
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.domains.messaging import store
from stentor.domains.messaging.actions.kernel import task_to_json
from stentor.domains.messaging.model import ActionResult, MessageStatus, StoredMessage, error_response
from stentor.domains.tasks import store as task_store
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.service import TaskService

TASK_END_EVENTS = frozenset(("task_completed", "task_failed", "task_aborted", "task_cancelled"))
BATCH, MAX_EXPECTED = 200, 10_000
DEADLINE_EXCEEDED = Timeout("The answer did not come within the task's timeout.")
TaskKey = tuple[str, str]
log = logging.getLogger(__name__)


class StaleEpoch(Exception):
    """The epoch is not the message's current one: somebody else has it, or it is over."""


class MissedEndings(NamedTuple):
    overdue: list[StoredMessage]
    answered: list[TaskKey]
    """Tasks that ended, and nobody here heard of it."""
    expected: set[TaskKey] | None
    """All tasks that messages wait for, when more are remembered than is likely."""


class MessageLifecycle:
    def __init__(self, db: Database, runlog: RunLog, tasks: TaskService) -> None:
        self._db = db
        self._runlog = runlog
        self._tasks = tasks
        self._expected: set[TaskKey] = set()
        self._over: set[TaskKey] = set()
        self._wake = asyncio.Event()

    def claim(self, tx: Tx, lease: int, most: int) -> list[StoredMessage]:
        """Take the next messages, the most urgent first; `lease` in microseconds."""
        taken: list[StoredMessage] = []
        while len(taken) < most and (stored := self._claim(tx, lease)):
            taken.append(stored)
        return taken

    def _claim(self, tx: Tx, lease: int) -> StoredMessage | None:
        started = EventDraft("message_started", "messaging", "Taken.")
        stored = store.claim_next(tx, lease, started.event_id)
        if stored is None:
            return None
        meta = {"message_id": stored.message_id, "epoch": stored.epoch}
        parent = stored.provenance_id
        self._runlog.append(tx, stored.tenant, [msgspec.structs.replace(started, metadata=meta)], parent=parent)
        return stored

    def requeue(self, tx: Tx, stored: StoredMessage) -> bool:
        """Give back what nobody carries any more; False when somebody does."""
        meta = {"message_id": stored.message_id, "epoch": stored.epoch}
        again = EventDraft("message_requeued", "messaging", "Its carrier was stopped.", meta)
        if not store.requeue(tx, stored, again.event_id):
            return False
        self._runlog.append(tx, stored.tenant, [again], parent=stored.head_id)
        return True

    def record_result(self, tx: Tx, stored: StoredMessage, reply: ActionResult) -> None:
        """Record what an action came to. Raises HandedOn, undoing it."""
        route = msgspec.to_builtins(reply.route)
        if reply.awaited_task_id is None:
            self._finish(tx, stored, reply.status, reply.response, route)
            return
        shown = reply.response if stored.header.mode == "async" else None
        if not store.wait_for_task(tx, stored, reply.awaited_task_id, reply.deadline, route, shown):
            raise StaleEpoch
        task_id = reply.awaited_task_id
        tx.after_commit(lambda: self.await_task(stored.tenant, task_id))

    def _finish(
        self, tx: Tx, stored: StoredMessage, status: MessageStatus, response: Any, route: Any, agent: str | None = None
    ) -> None:
        kind: EventType = "message_completed" if status == "completed" else "message_failed"
        meta: dict[str, Any] = {"message_id": stored.message_id, "status": status}
        if stored.task_id is not None:
            meta["task_id"] = stored.task_id
        if status == "failed" and isinstance(response, dict) and response.get("error"):
            meta["error"] = response["error"]
        done = EventDraft(kind, "messaging", "Answered." if status == "completed" else "Failed.", meta, agent_id=agent)
        if not store.finish(tx, stored, status, _by_operation(stored, status, response), route, done.event_id):
            raise StaleEpoch
        self._runlog.append(tx, stored.tenant, [done], parent=stored.head_id)

    # Answers that come with the end of a task.

    def await_task(self, tenant: str, task_id: str) -> None:
        """A message waits for this task; it is looked at once, because it may be over already."""
        self._expected.add((tenant, task_id))
        self._ended((tenant, task_id))

    def on_task_events(self, tenant: str, task_id: str, events: list[Any]) -> None:
        """What the hub announces."""
        if (tenant, task_id) in self._expected and any(event.event_type in TASK_END_EVENTS for event in events):
            self._ended((tenant, task_id))

    def _ended(self, key: TaskKey) -> None:
        self._over.add(key)
        self._wake.set()

    async def run(self) -> None:
        """For ever; what an outage leaves, the next look finds."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            keys, self._over = self._over, set()
            await asyncio.gather(*(self._settle(key) for key in keys))

    async def _settle(self, key: TaskKey) -> None:
        try:
            if await self._db.write(lambda tx: self._answer(tx, *key)):
                self._expected.discard(key)
        except (StoreUnavailable, StaleEpoch):
            pass  # the next look finds it
        except Exception:
            log.exception("the messages that wait for task %s could not be answered", key[1])

    def _answer(self, tx: Tx, tenant: str, task_id: str) -> bool:
        """Whether nobody waits for the task any more."""
        task = task_store.find(tx, tenant, task_id)
        if task is not None and task.completion_time is None:
            return False
        for stored in store.list_waiting_for_task(tx, tenant, task_id) if task is not None else ():
            self._finish(tx, stored, *_result(task), None, task.assigned_agent if task else None)
        return True

    def poll(self, tx: Tx, *, overdue: bool, answered: bool) -> MissedEndings:
        """Those of what there is. What other processes answered is not to be expected for ever."""
        return MissedEndings(
            store.list_overdue(tx, BATCH) if overdue else [],
            store.list_ended_tasks(tx, BATCH) if answered else [],
            set(store.list_awaited_tasks(tx, 10 * MAX_EXPECTED)) if len(self._expected) > MAX_EXPECTED else None,
        )

    async def repair(self, missed: MissedEndings) -> None:
        for stored in missed.overdue:
            await self._give_up(stored)
        for key in missed.answered:
            self._ended(key)
        if missed.expected is not None:
            self._expected &= missed.expected

    async def _give_up(self, stored: StoredMessage) -> None:
        """The sender waits no longer. What nobody has begun is cancelled; what runs ends by its own timeout."""

        def work(tx: Tx) -> None:
            task = task_store.find(tx, stored.tenant, stored.task_id or "")
            if task is not None and task.status in ("queued", "pending_approval"):
                via = {"message_id": stored.message_id, "caused_by": stored.head_id}
                self._tasks.cancel_in_tx(tx, stored.principal, task.task_id, via)
            self._finish(tx, stored, "failed", error_response(DEADLINE_EXCEEDED) | {"task_id": stored.task_id}, None)

        try:
            await self._db.write(work)
        except StaleEpoch:
            log.info("message %s was answered at the last moment", stored.message_id)


def _result(task: Task | None) -> tuple[MessageStatus, Any]:
    assert task is not None
    return "completed" if task.status == "completed" else "failed", task_to_json(task)


def _by_operation(stored: StoredMessage, status: MessageStatus, response: Any) -> Any:
    """In mode batch every answer says what became of each operation; most messages have one."""
    if stored.header.mode != "batch" or (isinstance(response, dict) and "results" in response):
        return response
    done = status == "completed"
    one = {"index": 0, "status": status, **({"result": response} if done else {"error": _error(response)})}
    return {"results": [one], "succeeded": int(done), "failed": int(not done)}


def _error(response: Any) -> Any:
    return response.get("error") if isinstance(response, dict) and response.get("error") else response
