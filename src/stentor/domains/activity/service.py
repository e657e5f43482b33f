"""The activity of a task: as a trail, and as a live stream that can be resumed.

Reads the events of a task for its activity trail.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core import runlog
from stentor.core.db import Database, Tx
from stentor.core.errors import CorruptRecord, InvalidRequest, NotFound, StentorError
from stentor.core.live import Hub, RunLogChanged, StreamedToken, TaskWatcher
from stentor.core.runlog import RunLogEvent
from stentor.domains.activity import model
from stentor.domains.activity.model import MAX_EVENTS, TaskEvents
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.reports.model import VaultReport
from stentor.domains.tasks import events as envelope
from stentor.domains.tasks import queries
from stentor.domains.tasks import store as task_store
from stentor.domains.tasks.model import MAX_ID_LENGTH, Task

LEARNING_FAILED_MESSAGE = "Learning from the outcome failed; it is tried again later."
SLOW_READER_MESSAGE = "The reader was too slow. Connect again with Last-Event-ID to go on."
log = logging.getLogger(__name__)


class StreamStep(msgspec.Struct, frozen=True):
    """One step of a stream. `id` is what a reader resumes from."""

    kind: Literal["routing", "activity", "token", "complete", "error"]
    data: dict[str, Any]
    id: str | None = None


class StreamPosition(msgspec.Struct):
    """What a reader has seen: the last event, and the tokens of which attempt."""

    event_id: str = ""
    attempt: str = ""
    token: int = 0


ReportLookup = Callable[[str, str], Awaitable[list[VaultReport]]]
"""The reports of a tenant's task. Raises ReportsUnreadable."""


class TaskHistory(msgspec.Struct, frozen=True):
    """A task with its events; `reports` are linked by the task's exact id."""

    task: Task | None = None
    events: TaskEvents = TaskEvents()
    reports: list[VaultReport] = []


async def no_reports(tenant: str, task_id: str) -> list[VaultReport]:
    """For a service without a vault."""
    return []


class ActivityService:
    def __init__(self, db: Database, hub: Hub, snapshot: AgentCache, reports: ReportLookup = no_reports) -> None:
        self._db = db
        self._hub = hub
        self._snapshot = snapshot
        self._reports = reports

    async def read_history(self, principal: Principal, task_id: str, limit: int, after: str = "") -> TaskHistory:
        """What the trail is made of; `after` is the last event of the page before.

        Raises InvalidRequest, then NotFound, CorruptRecord, ReportsUnreadable.

        An unreadable store is a plain StentorError (500) here, as the contract wants it, and no outage to wait for.
        """
        if not 1 <= limit <= MAX_EVENTS:
            raise InvalidRequest(f"limit must be from 1 to {MAX_EVENTS}.", {"fields": {"query.limit": "out of range"}})
        try:
            history = await self._history(principal, task_id, limit, after)
        except CorruptRecord:
            raise
        except Exception as error:
            log.exception("the activity of task %r cannot be read", task_id)
            raise StentorError("The task or its run log cannot be read.") from error
        if history.task is None and not history.events.first:
            raise NotFound("No task has this id.")
        return msgspec.structs.replace(history, reports=await self._reports(principal.tenant, task_id))

    async def _history(self, principal: Principal, task_id: str, limit: int, after: str) -> TaskHistory:
        """Nothing of a task that the caller does not see."""
        if not _storable(task_id):
            return TaskHistory()

        def read(tx: Tx) -> TaskHistory:
            task = task_store.find(tx, principal.tenant, task_id)
            if not queries.can_see_record(tx, principal, task):
                return TaskHistory()
            return TaskHistory(task, read_events(tx, principal.tenant, task_id, limit, after))

        return await self._db.read(read)

    async def _read(
        self, tenant: str, task_id: str, after: str = "", most: int = MAX_EVENTS
    ) -> tuple[Task | None, list[RunLogEvent]]:
        """The task, and its first events after one of them."""
        if not _storable(task_id):
            return None, []
        return await self._db.read(
            lambda tx: (
                task_store.find(tx, tenant, task_id),
                runlog.read_task_events(tx, tenant, task_id, most, after),
            )
        )

    async def require_visible(self, principal: Principal, task_id: str) -> None:
        """Raises NotFound before a stream begins, so that the status can still say so."""
        if (await self._history(principal, task_id, 1, "")).task is None:
            raise NotFound("No task has this id.")

    async def read_envelope(self, tenant: str, task_id: str) -> dict[str, Any]:
        """The `provenance_id` and `atp` of the task's frames. Raises NotFound."""
        task, events = await self._read(tenant, task_id, most=1)
        if task is None:
            raise NotFound("No task has this id.")
        return envelope.task_envelope(task, next(iter(events), None))

    async def stream(self, tenant: str, task_id: str, last_event_id: str | None) -> AsyncIterator[StreamStep]:
        """What happened since `last_event_id`, then what happens, up to one terminal step.

        The work goes on whether or not anybody reads.
        """
        seen = _position(last_event_id)
        with self._hub.watch(tenant, task_id) as watcher:
            tokens = self._hub.tokens(tenant, task_id)  # at once: the end of the attempt forgets them
            async for step in self._past(tenant, task_id, seen):
                yield step
            for step in _token_steps(tokens, seen):
                yield step
            task, _ = await self._read(tenant, task_id, seen.event_id)
            while task is not None and _over(task) and not watcher.is_empty:
                if late := self._next(await watcher.get(), seen):
                    yield late
            while task is not None and not _over(task):
                async for step in self._until_change(watcher, seen):
                    yield step
                if watcher.is_cut:
                    yield StreamStep("error", {"error": SLOW_READER_MESSAGE, "task_id": task_id})
                    return
                async for step in self._past(tenant, task_id, seen):
                    yield step
                task, _ = await self._read(tenant, task_id, seen.event_id)
        if task is None:
            raise NotFound("No task has this id.")
        yield self._terminal(task)

    async def _past(self, tenant: str, task_id: str, seen: StreamPosition) -> AsyncIterator[StreamStep]:
        """Steps of the events that are recorded already."""
        while events := (await self._read(tenant, task_id, seen.event_id))[1]:
            for event in events:
                yield self._step(event, seen)

    async def _until_change(self, watcher: TaskWatcher, seen: StreamPosition) -> AsyncIterator[StreamStep]:
        """Steps up to and with the next terminal event and what waits behind it, or until the cut, or until the run
        log is to be looked at.
        """
        ended = False
        while not (watcher.is_empty and (ended or watcher.is_cut)):
            message = await watcher.get()
            if isinstance(message, RunLogChanged):
                return
            if step := self._next(message, seen):
                yield step
                ended = ended or (isinstance(message, RunLogEvent) and message.event_type in model.TERMINAL_EVENTS)

    def _next(self, message: StreamedToken | RunLogEvent | RunLogChanged, seen: StreamPosition) -> StreamStep | None:
        """What a message of the hub adds to what the reader has seen."""
        if isinstance(message, RunLogChanged):
            return None
        if isinstance(message, StreamedToken):
            return _token_step(message, seen)
        return self._step(message, seen) if message.event_id > seen.event_id else None

    def _step(self, event: RunLogEvent, seen: StreamPosition) -> StreamStep:
        seen.event_id = event.event_id
        if event.event_type != "routing_decision":
            return StreamStep("activity", model.event_out(event), event.event_id)
        data = {
            "decision": event.metadata.get("routing"),
            "agent_name": event.metadata.get("agent_name"),
            "task_id": event.task_id,
            "provenance_id": event.event_id,
        }
        return StreamStep("routing", data, event.event_id)

    def _terminal(self, task: Task) -> StreamStep:
        agent = self._snapshot.get(task.tenant, task.assigned_agent or "")
        if task.status == "completed":
            error = LEARNING_FAILED_MESSAGE if task.learning_pending else None
            return StreamStep("complete", model.completion_data(task, agent.name if agent else None, error))
        code = task.error.get("code") if isinstance(task.error, dict) else None
        data = {
            "error": f"The task is {task.status}.",
            "code": code,
            "status": task.status,
            "task_id": task.task_id,
        }
        return StreamStep("error", data)


def _storable(task_id: str) -> bool:
    return 0 < len(task_id) <= MAX_ID_LENGTH and "\0" not in task_id


def _over(task: Task) -> bool:
    return task.completion_time is not None


def _token_steps(tokens: list[StreamedToken], seen: StreamPosition) -> list[StreamStep]:
    return [step for token in tokens if (step := _token_step(token, seen))]


def _token_step(token: StreamedToken, seen: StreamPosition) -> StreamStep | None:
    if token.attempt == seen.attempt and token.n <= seen.token:
        return None
    seen.attempt, seen.token = token.attempt, token.n
    return StreamStep("token", {"text": token.text}, f"{seen.event_id}:{token.attempt}:{token.n}")


def _position(last_event_id: str | None) -> StreamPosition:
    """From a Last-Event-ID: `<event>` or `<event>:<attempt>:<n>`; nonsense starts from the beginning."""
    parts = (last_event_id or "").split(":")
    if len(parts) == 3 and parts[2].isdecimal() and len(parts[2]) < 10:
        return StreamPosition(parts[0], parts[1], int(parts[2]))
    return StreamPosition(parts[0] if len(parts) == 1 and "\0" not in parts[0] else "")


def read_events(tx: Tx, tenant: str, task_id: str, limit: int, after: str = "") -> TaskEvents:
    """Read a page of at most `limit` events after the event `after`. Raises CorruptRecord."""
    first = last = runlog.read_task_events(tx, tenant, task_id, MAX_EVENTS + 1)  # one more, to see whether more follow
    if len(first) > MAX_EVENTS:
        last = runlog.read_latest_events(tx, tenant, task_id, MAX_EVENTS)
    page = runlog.read_task_events(tx, tenant, task_id, limit + 1, after) if after else first
    return TaskEvents(first, last, page[:limit], len(page) > limit)
