"""The activity of a task: as a trail, and as a live stream that can be resumed."""

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
from stentor.domains.activity import model, store
from stentor.domains.activity.model import MAX_EVENTS, Events
from stentor.domains.registry.snapshot import Snapshot
from stentor.domains.reports.model import Report
from stentor.domains.tasks import envelope, sight
from stentor.domains.tasks import store as task_store
from stentor.domains.tasks.model import MAX_ID, Task

LEARNING_FAILED = "Learning from the outcome failed; it is tried again later."
CUT = "The reader was too slow. Connect again with Last-Event-ID to go on."
log = logging.getLogger(__name__)


class Step(msgspec.Struct, frozen=True):
    """One step of a stream. `id` is what a reader resumes from."""

    kind: Literal["routing", "activity", "token", "complete", "error"]
    data: dict[str, Any]
    id: str | None = None


class Position(msgspec.Struct):
    """What a reader has seen: the last event, and the tokens of which attempt."""

    event_id: str = ""
    attempt: str = ""
    token: int = 0


ReportsOf = Callable[[str, str], Awaitable[list[Report]]]
"""The reports of a tenant's task. Raises ReportsUnreadable."""


class History(msgspec.Struct, frozen=True):
    """A task with its events; `reports` are linked by the task's exact id."""

    task: Task | None = None
    events: Events = Events()
    reports: list[Report] = []


async def no_reports(tenant: str, task_id: str) -> list[Report]:
    """For a service without a vault."""
    return []


class Activity:
    def __init__(self, db: Database, hub: Hub, snapshot: Snapshot, reports: ReportsOf = no_reports) -> None:
        self._db = db
        self._hub = hub
        self._snapshot = snapshot
        self._reports = reports

    async def of(self, principal: Principal, task_id: str, limit: int, after: str = "") -> History:
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

    async def _history(self, principal: Principal, task_id: str, limit: int, after: str) -> History:
        """Nothing of a task that the caller does not see."""
        if not _storable(task_id):
            return History()

        def read(tx: Tx) -> History:
            task = task_store.find(tx, principal.tenant, task_id)
            if not sight.sees_record(tx, principal, task):
                return History()
            return History(task, store.read(tx, principal.tenant, task_id, limit, after))

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

    async def require(self, principal: Principal, task_id: str) -> None:
        """Raises NotFound before a stream begins, so that the status can still say so."""
        if (await self._history(principal, task_id, 1, "")).task is None:
            raise NotFound("No task has this id.")

    async def envelope(self, tenant: str, task_id: str) -> dict[str, Any]:
        """The `provenance_id` and `atp` of the task's frames. Raises NotFound."""
        task, events = await self._read(tenant, task_id, most=1)
        if task is None:
            raise NotFound("No task has this id.")
        return envelope.of_task(task, next(iter(events), None))

    async def stream(self, tenant: str, task_id: str, last_event_id: str | None) -> AsyncIterator[Step]:
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
                    yield Step("error", {"error": CUT, "task_id": task_id})
                    return
                async for step in self._past(tenant, task_id, seen):
                    yield step
                task, _ = await self._read(tenant, task_id, seen.event_id)
        if task is None:
            raise NotFound("No task has this id.")
        yield self._terminal(task)

    async def _past(self, tenant: str, task_id: str, seen: Position) -> AsyncIterator[Step]:
        """Steps of the events that are recorded already."""
        while events := (await self._read(tenant, task_id, seen.event_id))[1]:
            for event in events:
                yield self._step(event, seen)

    async def _until_change(self, watcher: TaskWatcher, seen: Position) -> AsyncIterator[Step]:
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

    def _next(self, message: StreamedToken | RunLogEvent | RunLogChanged, seen: Position) -> Step | None:
        """What a message of the hub adds to what the reader has seen."""
        if isinstance(message, RunLogChanged):
            return None
        if isinstance(message, StreamedToken):
            return _token_step(message, seen)
        return self._step(message, seen) if message.event_id > seen.event_id else None

    def _step(self, event: RunLogEvent, seen: Position) -> Step:
        seen.event_id = event.event_id
        if event.event_type != "routing_decision":
            return Step("activity", model.event_out(event), event.event_id)
        data = {
            "decision": event.metadata.get("routing"),
            "agent_name": event.metadata.get("agent_name"),
            "task_id": event.task_id,
            "provenance_id": event.event_id,
        }
        return Step("routing", data, event.event_id)

    def _terminal(self, task: Task) -> Step:
        agent = self._snapshot.get(task.tenant, task.assigned_agent or "")
        if task.status == "completed":
            error = LEARNING_FAILED if task.learning_pending else None
            return Step("complete", model.complete_data(task, agent.name if agent else None, error))
        code = task.error.get("code") if isinstance(task.error, dict) else None
        data = {
            "error": f"The task is {task.status}.",
            "code": code,
            "status": task.status,
            "task_id": task.task_id,
        }
        return Step("error", data)


def _storable(task_id: str) -> bool:
    return 0 < len(task_id) <= MAX_ID and "\0" not in task_id


def _over(task: Task) -> bool:
    return task.completion_time is not None


def _token_steps(tokens: list[StreamedToken], seen: Position) -> list[Step]:
    return [step for token in tokens if (step := _token_step(token, seen))]


def _token_step(token: StreamedToken, seen: Position) -> Step | None:
    if token.attempt == seen.attempt and token.n <= seen.token:
        return None
    seen.attempt, seen.token = token.attempt, token.n
    return Step("token", {"text": token.text}, f"{seen.event_id}:{token.attempt}:{token.n}")


def _position(last_event_id: str | None) -> Position:
    """From a Last-Event-ID: `<event>` or `<event>:<attempt>:<n>`; nonsense starts from the beginning."""
    parts = (last_event_id or "").split(":")
    if len(parts) == 3 and parts[2].isdecimal() and len(parts[2]) < 10:
        return Position(parts[0], parts[1], int(parts[2]))
    return Position(parts[0] if len(parts) == 1 and "\0" not in parts[0] else "")
