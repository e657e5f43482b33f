"""The state changes of a message and their events: claimed, requeued, waiting for its task, completed or failed.

Also completes messages when the task they wait for ends. The loop that claims and executes is in `processor`, SQL in
`store`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx
from stentor.core.errors import CorruptRow, StoreUnavailable, Timeout
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.domains.messaging import store
from stentor.domains.messaging.actions.kernel import task_to_json
from stentor.domains.messaging.model import ActionResult, MessageStatus, StoredMessage, error_response
from stentor.domains.tasks import store as task_store
from stentor.domains.tasks.reading import visibility_queries
from stentor.domains.tasks.service import TaskService

BATCH, MAX_AWAITED = 200, 10_000
DEADLINE_EXCEEDED = Timeout("The task did not end within its timeout, so the message has no response.")
TaskKey = tuple[str, str]
"""Tenant and task id."""
log = logging.getLogger(__name__)


class StaleEpoch(Exception):
    """The epoch is not the message's current one: another process claimed the message, or it has ended."""


class MissedEndings(NamedTuple):
    """What one poll found: work that no notification in this process announced."""

    overdue: list[StoredMessage]
    ended: list[TaskKey]
    """Tasks that have ended while messages still wait for them."""
    awaited: set[TaskKey] | None
    """All tasks that messages wait for; None unless this process holds more than MAX_AWAITED."""


class MessageLifecycle:
    """State changes of messages. Those that take a transaction change the message and append its event together."""

    def __init__(self, db: Database, runlog: RunLog, tasks: TaskService) -> None:
        self._db = db
        self._runlog = runlog
        self._tasks = tasks
        self._awaited: set[TaskKey] = set()
        self._ended: set[TaskKey] = set()
        self._wake = asyncio.Event()

    def claim(self, tx: Tx, lease: int, limit: int) -> list[StoredMessage]:
        """Claim up to `limit` messages, the most urgent first; `lease` in microseconds."""
        messages: list[StoredMessage] = []
        while len(messages) < limit and (stored := self._claim(tx, lease)):
            messages.append(stored)
        return messages

    def _claim(self, tx: Tx, lease: int) -> StoredMessage | None:
        event = EventDraft("message_started", "messaging", "Claimed.")
        stored = store.claim_next(tx, lease, event.event_id)
        if stored is None:
            return None
        metadata = {"message_id": stored.message_id, "epoch": stored.epoch}
        parent = stored.provenance_id
        self._runlog.append(tx, stored.tenant, [msgspec.structs.replace(event, metadata=metadata)], parent=parent)
        return stored

    def requeue(self, tx: Tx, stored: StoredMessage) -> bool:
        """Requeue a claimed message; return False if the claim is no longer the current one."""
        metadata = {"message_id": stored.message_id, "epoch": stored.epoch}
        event = EventDraft("message_requeued", "messaging", "Requeued: its processor stopped.", metadata)
        if not store.requeue(tx, stored, event.event_id):
            return False
        self._runlog.append(tx, stored.tenant, [event], parent=stored.head_id)
        return True

    async def set_aside(self, error: CorruptRow) -> None:
        """Fail a message whose row is malformed, so that others have their turn, unless it has ended."""

        def work(tx: Tx) -> None:
            tenant, message_id = error.key
            response = error_response(error)
            event = EventDraft("message_failed", "messaging", error.message, {"message_id": message_id, **response})
            head = store.fail_malformed(tx, tenant, message_id, response, event.event_id)
            if head is not None:
                self._runlog.append(tx, tenant, [event], parent=head)
                log.error("messaging: malformed record set aside error=%s", error.message)

        await self._db.write(work)

    def record_result(self, tx: Tx, stored: StoredMessage, result: ActionResult) -> None:
        """Record the result of an action. Raises StaleEpoch, which also rolls back the effects of the action."""
        route = msgspec.to_builtins(result.route)
        if result.awaited_task_id is None:
            self._finish(tx, stored, result.status, result.response, route)
            return
        # In mode async the acknowledgement is the first response; other senders wait for the task.
        response = result.response if stored.header.mode == "async" else None
        if not store.wait_for_task(tx, stored, result.awaited_task_id, result.deadline, route, response):
            raise StaleEpoch
        task_id = result.awaited_task_id
        # Only after the commit: before it `_complete_waiting` would not see that this message waits.
        tx.after_commit(lambda: self.await_task(stored.tenant, task_id))

    def withdraw(self, tx: Tx, principal: Principal, message_id: str) -> bool:
        """End a scheduled message before its time; return False unless the caller may read one that still waits."""
        stored = store.find(tx, principal.tenant, message_id)
        if stored is None or stored.status != "queued" or stored.due_at <= tx.now:
            return False
        if principal.is_bound_agent and stored.principal.name != principal.name:
            return False
        # Only a claimed message may end.
        claimed = store.claim(tx, stored.tenant, message_id, stored.epoch, 0, stored.head_id)
        if claimed is None:
            return False
        response = {"task_id": message_id, "status": "cancelled", "cancelled_by": principal.name}
        self._finish(tx, claimed, "failed", response, None)
        return True

    def _finish(
        self,
        tx: Tx,
        stored: StoredMessage,
        status: MessageStatus,
        response: JsonObject,
        route: JsonObject | None,
        agent: str | None = None,
    ) -> None:
        event_type: EventType = "message_completed" if status == "completed" else "message_failed"
        metadata: JsonObject = {"message_id": stored.message_id, "status": status}
        if stored.task_id is not None:
            metadata["task_id"] = stored.task_id
        if status == "failed" and response.get("error"):
            metadata["error"] = response["error"]
        text = "Completed." if status == "completed" else "Failed."
        event = EventDraft(event_type, "messaging", text, metadata, agent_id=agent)
        if not store.finish(tx, stored, status, _batch_response(stored, status, response), route, event.event_id):
            raise StaleEpoch
        self._runlog.append(tx, stored.tenant, [event], parent=stored.head_id)

    # Responses that come with the end of a task.

    def await_task(self, tenant: str, task_id: str) -> None:
        """Remember that a message waits for this task, and check it at once: it may have ended already."""
        self._awaited.add((tenant, task_id))
        self._on_end((tenant, task_id))

    def on_task_end(self, tenant: str, task_id: str, events: list[Any]) -> None:
        """Handle the end of a task that the hub (`core/live.Hub`) publishes."""
        if (tenant, task_id) in self._awaited:
            self._on_end((tenant, task_id))

    def _on_end(self, key: TaskKey) -> None:
        self._ended.add(key)
        self._wake.set()

    async def run(self) -> None:
        """Complete waiting messages forever. What fails during an outage is found by the next poll."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            # Swapped, not cleared after the work: a task that ends meanwhile is in the new set and sets the event.
            keys, self._ended = self._ended, set()
            await asyncio.gather(*(self._settle(key) for key in keys))

    async def _settle(self, key: TaskKey) -> None:
        try:
            if await self._db.write(lambda tx: self._complete_waiting(tx, *key)):
                self._awaited.discard(key)
        except (StoreUnavailable, StaleEpoch):
            pass  # the next poll finds it again
        except Exception:
            log.exception("messaging: completing waiting messages failed task_id=%s", key[1])

    def _complete_waiting(self, tx: Tx, tenant: str, task_id: str) -> bool:
        """Complete the messages that wait for a task; return False while the task has not ended."""
        try:
            task = task_store.find(tx, tenant, task_id)
        except CorruptRow as error:
            return self._fail_waiting(tx, tenant, task_id, error)
        if task is None:
            return True
        if task.completion_time is None:
            return False
        status: MessageStatus = "completed" if task.status == "completed" else "failed"
        for stored in store.list_waiting_for_task(tx, tenant, task_id):
            # A retry may have given it to an agent of another key.
            is_visible = visibility_queries.can_see(tx, stored.principal, task)
            response = task_to_json(task) if is_visible else {"task_id": task_id, "status": task.status}
            self._finish(tx, stored, status, response, None, task.assigned_agent)
        return True

    def _fail_waiting(self, tx: Tx, tenant: str, task_id: str, error: CorruptRow) -> bool:
        """Fail the messages that wait for a task whose row is malformed. Raises the error if the task has not ended."""
        if (tenant, task_id) not in store.list_ended_tasks(tx, MAX_AWAITED):
            raise error  # so that the task is set aside
        for stored in store.list_waiting_for_task(tx, tenant, task_id):
            self._finish(tx, stored, "failed", error_response(error) | {"task_id": task_id}, None)
        return True

    def poll(self, tx: Tx, *, overdue: bool, ended: bool) -> MissedEndings:
        """Read what `repair` must handle. `overdue` and `ended` say which of the two queries can find rows."""
        # Other processes complete messages too, so without this comparison `_awaited` would grow without limit.
        is_large = len(self._awaited) > MAX_AWAITED
        return MissedEndings(
            store.list_overdue(tx, BATCH) if overdue else [],
            store.list_ended_tasks(tx, BATCH) if ended else [],
            set(store.list_awaited_tasks(tx, 10 * MAX_AWAITED)) if is_large else None,
        )

    async def repair(self, missed: MissedEndings) -> None:
        """Fail overdue messages, complete those whose task has ended, forget tasks that nothing waits for."""
        for stored in missed.overdue:
            try:
                await self._give_up(stored)
            except StoreUnavailable:
                raise
            except Exception:
                # The others continue: one of another tenant must not wait for it.
                log.exception("messaging: ending an overdue message failed message_id=%s", stored.message_id)
        for key in missed.ended:
            self._on_end(key)
        if missed.awaited is not None:
            self._awaited &= missed.awaited

    async def _give_up(self, stored: StoredMessage) -> None:
        """Fail an overdue message. Its task is cancelled unless it runs: then its own timeout ends it."""

        def fail(tx: Tx) -> None:
            if not store.is_overdue(tx, stored):
                return
            ref = stored.tenant, stored.task_id or ""
            task = task_store.find_all(tx, [ref]).get(ref)
            if task is not None and task.status in ("queued", "pending_approval"):
                metadata = {"message_id": stored.message_id, "caused_by": stored.head_id}
                self._tasks.cancel_found(tx, task, stored.principal.name, metadata)
            self._finish(tx, stored, "failed", error_response(DEADLINE_EXCEEDED) | {"task_id": stored.task_id}, None)

        try:
            await self._db.write(fail)
        except StaleEpoch:
            log.info("messaging: overdue message has ended message_id=%s", stored.message_id)


def _batch_response(stored: StoredMessage, status: MessageStatus, response: JsonObject) -> JsonObject:
    """Return the response; in mode batch as a list with one result per operation, and most messages have one."""
    if stored.header.mode != "batch" or "results" in response:
        return response
    succeeded = status == "completed"
    outcome = {"result": response} if succeeded else {"error": response.get("error") or response}
    result = {"index": 0, "status": status, **outcome}
    return {"results": [result], "succeeded": int(succeeded), "failed": int(not succeeded)}
