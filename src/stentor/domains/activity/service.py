"""Reads the activity of a task: as a page of its log, and as a live stream that can be resumed.

Live events come from the hub of this process (`core.fanout.live.Hub`); what the hub missed is read from the run log.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import msgspec

from stentor.auth.principal import Principal
from stentor.core import runlog
from stentor.core.db import Database, Tx
from stentor.core.errors import CorruptRecord, InvalidRequest, NotFound, StentorError
from stentor.core.fanout.live import TERMINAL_EVENTS, Hub, RunLogChanged, StreamedToken, TaskWatcher
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLogEvent
from stentor.core.validation.text_checks import UUID_PATTERN
from stentor.domains.activity import model
from stentor.domains.activity.model import MAX_EVENTS, TaskEvents
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.reports.service import VaultReport
from stentor.domains.tasks import events as task_events
from stentor.domains.tasks import store as task_store
from stentor.domains.tasks.access import missing_task, require_task_id, require_visible_task
from stentor.domains.tasks.model import Task, TaskStreamStep
from stentor.domains.tasks.reading import visibility_queries

LEARNING_FAILED_MESSAGE = "Learning from the outcome failed; it is retried later."
NOT_VISIBLE_MESSAGE = "Closed because the key may not read the task."
VISIBILITY_SECONDS = 5.0
CHECKED_STEPS = frozenset(("routing", "complete"))
"""Before these a reader's right is always checked: the task went to another agent, or its result follows."""
SLOW_READER_MESSAGE = "Closed because the client read too slowly. Reconnect with Last-Event-ID to resume."
log = logging.getLogger(__name__)


class StreamPosition(msgspec.Struct):
    """How far a reader has read: the last event, the number of the last token of an attempt, the task at that time.

    `seen` has the ids of the events since `after`, with which the reader began. The last one is not enough, because an
    earlier one may be committed later: the id of a model call is chosen when the call begins.
    """

    event_id: str = ""
    attempt: str = ""
    token: int = 0
    task: Task | None = None
    after: str = ""
    seen: set[str] = set()

    @property
    def as_id(self) -> str:
        """The Last-Event-ID that `_parse_position` reads. After an event too it says which tokens came before."""
        return f"{self.event_id}:{self.attempt}:{self.token}" if self.attempt else self.event_id


ReportLookup = Callable[[str, str], Awaitable[list[VaultReport]]]
"""Returns the reports of a tenant's task. Raises ReportsUnreadable."""


class TaskHistory(msgspec.Struct, frozen=True):
    """A task with its events, and the reports in the vault (the folder of notes) that name its exact id."""

    task: Task | None = None
    events: TaskEvents = TaskEvents()
    reports: list[VaultReport] = []


async def no_reports(tenant: str, task_id: str) -> list[VaultReport]:
    """Return no reports: for a service without a vault."""
    return []


class ActivityService:
    """Reads activity logs and live streams."""

    def __init__(self, db: Database, hub: Hub, agents: AgentCache, reports: ReportLookup) -> None:
        self._db = db
        self._hub = hub
        self._agents = agents
        self._reports = reports

    async def read_history(self, principal: Principal, task_id: str, limit: int, after: str) -> TaskHistory:
        """Return a task with a page of events after the event `after`.

        Raises InvalidRequest, NotFound, CorruptRecord, ReportsUnreadable. An unavailable store is a StentorError (500)
        and not a 503, because the contract says so for this route.
        """
        if not 1 <= limit <= MAX_EVENTS:
            raise InvalidRequest(f"limit must be from 1 to {MAX_EVENTS}.", {"fields": {"query.limit": "out of range"}})
        try:
            history = await self._read_visible(principal, task_id, limit, after)
        except (CorruptRecord, NotFound):
            raise
        except Exception as error:
            log.exception("activity: read failed task_id=%r", task_id)
            raise StentorError(
                "The task or its run log cannot be read. The log of the service has the reason."
            ) from error
        return msgspec.structs.replace(history, reports=await self._reports(principal.tenant, task_id))

    async def _read_visible(self, principal: Principal, task_id: str, limit: int, after: str) -> TaskHistory:
        """Return the task with a page of its events. Raises NotFound, also if the caller may not see the task."""
        require_task_id(task_id)

        def read(tx: Tx) -> TaskHistory:
            task = task_store.find(tx, principal.tenant, task_id)
            if not visibility_queries.can_see_record(tx, principal, task):
                raise missing_task(tx, principal, task_id) if task is None else NotFound("No task has this id.")
            events = read_events(tx, principal.tenant, task_id, limit, after)
            if task is None and not events.first:
                raise missing_task(tx, principal, task_id)
            return TaskHistory(task, events)

        return await self._db.read(read)

    async def require_visible(self, principal: Principal, task_id: str) -> None:
        """Raise NotFound for a task that the caller may not read: a stream that has begun can send no status."""
        await self._db.read(lambda tx: require_visible_task(tx, principal, task_id))

    async def read_envelope(self, principal: Principal, task_id: str) -> JsonObject:
        """Return the `provenance_id` and `atp` for the events of a stream. Raises NotFound like `require_visible`."""

        def read(tx: Tx) -> JsonObject:
            task = require_visible_task(tx, principal, task_id)
            first = runlog.read_task_events(tx, principal.tenant, task_id, limit=1)
            return task_events.task_envelope(task, next(iter(first), None))

        return await self._db.read(read)

    async def stream(
        self, tenant: str, task_id: str, last_event_id: str | None
    ) -> AsyncGenerator[TaskStreamStep, None]:
        """Yield the events since `last_event_id`, then the live ones, up to one terminal event.

        A reader that leaves does not affect the task. Raises NotFound.
        """
        require_task_id(task_id)
        position = _parse_position(last_event_id)
        position.after = position.event_id
        # Watch before the first read of the log: an event between the two would be lost otherwise.
        with self._hub.watch(tenant, task_id) as watcher:
            tokens = self._hub.tokens(tenant, task_id)  # before any await, because the end of the attempt drops them
            async for step in self._recorded_steps(tenant, task_id, position):
                yield step
            for step in _token_steps(tokens, position):
                yield step
            while position.task is not None and not _is_over(position.task):
                async for step in self._live_steps(watcher, position):
                    yield step
                if watcher.has_overflowed:
                    yield TaskStreamStep("error", {"error": SLOW_READER_MESSAGE, "task_id": task_id})
                    return
                async for step in self._recorded_steps(tenant, task_id, position):
                    yield step
            # The task ended during the reads above: its last tokens wait in the watcher.
            while _is_over(position.task) and not watcher.is_empty:
                if late := self._to_step(await watcher.get(), position):
                    yield late
        if position.task is None:
            raise NotFound("No task has this id.")
        yield self._terminal(position.task)

    async def follow(
        self, principal: Principal, task_id: str, last_event_id: str | None
    ) -> AsyncIterator[TaskStreamStep]:
        """Yield the steps of `stream` for as long as the caller may read the task.

        That is asked every few seconds, and before each of CHECKED_STEPS.
        """
        due = 0.0
        async with aclosing(self.stream(principal.tenant, task_id, last_event_id)) as steps:
            async for step in steps:
                # Every other key may read all tasks of its tenant.
                if principal.is_bound_agent and (step.kind in CHECKED_STEPS or time.monotonic() >= due):
                    try:
                        await self.require_visible(principal, task_id)
                    except NotFound:
                        yield TaskStreamStep("error", {"error": NOT_VISIBLE_MESSAGE, "task_id": task_id})
                        return
                    due = time.monotonic() + VISIBILITY_SECONDS
                yield step

    async def _read_page(self, tenant: str, task_id: str, after: str) -> tuple[Task | None, list[RunLogEvent]]:
        return await self._db.read(
            lambda tx: (
                task_store.find(tx, tenant, task_id),
                runlog.read_task_events(tx, tenant, task_id, MAX_EVENTS, after),
            )
        )

    async def _recorded_steps(
        self, tenant: str, task_id: str, position: StreamPosition
    ) -> AsyncIterator[TaskStreamStep]:
        """Yield the steps of the recorded events after the position, and read the task again.

        The task and the last events are of one snapshot: nothing follows them if the task is over.
        """
        is_last = False
        while not is_last:
            position.task, events = await self._read_page(tenant, task_id, position.event_id)
            is_last = len(events) < MAX_EVENTS
            for event in events:
                yield self._event_step(event, position)

    async def _live_steps(self, watcher: TaskWatcher, position: StreamPosition) -> AsyncIterator[TaskStreamStep]:
        """Yield live steps until the run log must be read again.

        Stops when the hub reports a change, after a terminal event and the messages queued behind it, or when the queue
        of a slow reader has overflowed and is empty.
        """
        ended = False
        while not (watcher.is_empty and (ended or watcher.has_overflowed)):
            message = await watcher.get()
            if isinstance(message, RunLogChanged):
                return
            # Sent even if the reader has it or claims to have it: nothing follows it.
            ended = ended or (isinstance(message, RunLogEvent) and message.event_type in TERMINAL_EVENTS)
            if step := self._to_step(message, position):
                yield step

    def _to_step(
        self, message: StreamedToken | RunLogEvent | RunLogChanged, position: StreamPosition
    ) -> TaskStreamStep | None:
        """Return the step of a message of the hub, None if the reader has it already."""
        if isinstance(message, RunLogChanged):
            return None
        if isinstance(message, StreamedToken):
            return _token_step(message, position)
        is_new = message.event_id > position.after and message.event_id not in position.seen
        return self._event_step(message, position) if is_new else None

    def _event_step(self, event: RunLogEvent, position: StreamPosition) -> TaskStreamStep:
        position.event_id = max(position.event_id, event.event_id)
        position.seen.add(event.event_id)
        if event.event_type != "routing_decision":
            return TaskStreamStep("activity", model.event_to_json(event), position.as_id)
        data = {
            "decision": event.metadata.get("routing"),
            "agent_name": event.metadata.get("agent_name"),
            "task_id": event.task_id,
            "provenance_id": event.event_id,
        }
        return TaskStreamStep("routing", data, position.as_id)

    def _terminal(self, task: Task) -> TaskStreamStep:
        if task.status == "completed":
            error = LEARNING_FAILED_MESSAGE if task.learning_pending else None
            agent_name = self._agents.find_name(task.tenant, task.assigned_agent)
            return TaskStreamStep("complete", model.completion_data(task, agent_name, error))
        code = task.error.get("code") if isinstance(task.error, dict) else None
        data = {
            "error": f"The task is {task.status}.",
            "code": code,
            "status": task.status,
            "task_id": task.task_id,
        }
        return TaskStreamStep("error", data)


def _is_over(task: Task | None) -> bool:
    return task is not None and task.completion_time is not None


def _token_steps(tokens: list[StreamedToken], position: StreamPosition) -> list[TaskStreamStep]:
    return [step for token in tokens if (step := _token_step(token, position))]


def _token_step(token: StreamedToken, position: StreamPosition) -> TaskStreamStep | None:
    if token.attempt == position.attempt and token.n <= position.token:
        return None
    position.attempt, position.token = token.attempt, token.n
    return TaskStreamStep("token", {"text": token.text}, position.as_id)


def _parse_position(last_event_id: str | None) -> StreamPosition:
    """Parse a Last-Event-ID, `<event>` or `<event>:<attempt>:<n>`; an invalid one starts from the beginning."""
    event, *token = (last_event_id or "").split(":")
    if event and not re.fullmatch(UUID_PATTERN, event):
        return StreamPosition()
    if not token:
        return StreamPosition(event)
    if len(token) == 2 and token[1].isdecimal() and len(token[1]) < 10:
        return StreamPosition(event, token[0], int(token[1]))
    return StreamPosition()


def read_events(tx: Tx, tenant: str, task_id: str, limit: int, after: str = "") -> TaskEvents:
    """Read a page of at most `limit` events after the event `after`. Raises CorruptRecord."""
    # One event more than needed shows whether more follow.
    earliest = latest = runlog.read_task_events(tx, tenant, task_id, MAX_EVENTS + 1)
    if len(earliest) > MAX_EVENTS:
        latest = runlog.read_latest_events(tx, tenant, task_id, MAX_EVENTS)
    page = runlog.read_task_events(tx, tenant, task_id, limit + 1, after) if after else earliest
    return TaskEvents(earliest, latest, page[:limit], len(page) > limit)
