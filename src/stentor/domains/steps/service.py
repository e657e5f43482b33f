"""Reads and writes the journal of a task, for the worker that holds it. What tasks wait for is in `waits`.

Each write inserts or changes the row together with its event: what the journal has is also in the run log, with the
SHA-256 of the value. The first outcome of a step is final; a caller that records another one gets the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.errors import NotFound, StepUnknown
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, EventType, RunLog, RunLogEvent, read_task_events
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.steps import model, store
from stentor.domains.steps.model import Step, StepDraft, StepOutcome, describe_question
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.access import check_held, require_task_id, require_visible_task
from stentor.domains.tasks.model import Task


class JournalEntry(msgspec.Struct, frozen=True):
    """A step as a caller gets it. `value` may be long; `is_new` is whether this call recorded it.

    `question` is what a person is asked about a step in a list.
    """

    step: Step
    is_superseded: bool = False
    is_new: bool = False
    value: Any = None
    question: str | None = None


class StepService:
    """The journal of each task."""

    def __init__(self, db: Database, runlog: RunLog, agents: AgentCache) -> None:
        self._db, self._runlog, self._agents = db, runlog, agents

    async def list_page(self, principal: Principal, task_id: str, after: str, limit: int) -> list[JournalEntry]:
        """Return up to `limit` steps that began after an event id, oldest first. Raises NotFound."""

        def read(tx: Tx) -> list[JournalEntry]:
            task = require_visible_task(tx, principal, task_id)
            steps = store.list_steps(tx, task.tenant, task_id, after, limit)
            agent = self._agents.get(task.tenant, task.assigned_agent or "")
            return [
                JournalEntry(
                    step,
                    model.is_superseded(step, task),
                    value=step.value,
                    question=describe_question(step, agent),
                )
                for step in steps
            ]

        return await self._db.read(read)

    async def get(self, principal: Principal, task_id: str, key: str) -> JournalEntry:
        """Return a step with its value, however long. Raises NotFound."""

        def read(tx: Tx) -> JournalEntry:
            task = require_visible_task(tx, principal, task_id)
            step = require_step(tx, task, key)
            return JournalEntry(step, model.is_superseded(step, task), value=store.read_value(tx, task.tenant, step))

        return await self._db.read(read)

    async def list_requests(self, principal: Principal, task_id: str) -> dict[str, JsonObject]:
        """Return what was recorded of the requests of steps, by the `event_id` of the step. Raises NotFound."""

        def read(tx: Tx, after: str) -> list[RunLogEvent]:
            task = require_visible_task(tx, principal, task_id)
            return read_task_events(tx, task.tenant, task_id, model.MAX_PAGE, after)

        requests: dict[str, JsonObject] = {}
        after = ""
        while True:
            events = await self._db.read(partial(read, after=after))
            requests |= {event.event_id: event.metadata["request"] for event in events if _has_request(event)}
            if len(events) < model.MAX_PAGE:
                return requests
            after = events[-1].event_id

    async def find_first_run(self, tenant: str, task_id: str) -> str:
        """Return the task that began the run of a task: it itself, unless it continues from a step of another one."""

        def read(tx: Tx) -> str:
            first, task = task_id, tasks.find(tx, tenant, task_id)
            while task is not None and task.metadata.rerun_from is not None and task.metadata.rerun_of is not None:
                first = task.metadata.rerun_of
                task = tasks.find(tx, tenant, first)
            return first

        return await self._db.read(read)

    async def record(
        self,
        principal: Principal,
        task_id: str,
        epoch: int,
        draft: StepDraft,
        outcome: StepOutcome,
        duration_ms: int,
        handled: Collection[str] = (),
    ) -> JournalEntry:
        """Record how a step ended. If it has an outcome already, that one is returned and stays.

        `handled` are keys of failed steps after which the program continued.
        Raises LeaseLost, StepMismatch, and StepUnknown for an effect that has not begun.
        """

        ref = (principal.tenant, require_task_id(task_id), draft.key)

        def work(tx: Tx) -> JournalEntry:
            found, is_recorded, last = store.find_task(tx, ref)
            task = check_held(tx, self._agents, principal, found, task_id, epoch)
            mark_handled(tx, task, handled)
            event_id, started = _new_id_after(last), tx.now - duration_ms * 1000
            # An effect has had its row since it began; any other step is inserted with its outcome.
            if draft.kind == "effect":
                is_new = store.end(tx, task.tenant, task_id, draft.key, outcome)
                step, replaces = find_same(tx, task, draft), JsonObject()
            else:
                insert = partial(store.insert_ended, tx, task, draft, event_id, outcome, started)
                step, is_new, replaces = _insert_or_find(tx, task, draft, insert, is_recorded=is_recorded)
            if not is_new:
                return JournalEntry(step, value=store.read_value(tx, task.tenant, step))
            note_progress(tx, task)
            parent = step.event_id if draft.kind == "effect" else task.head_id
            event = ended_event(step, outcome, event_id, task.assigned_agent, duration_ms, draft)
            event.metadata.update(replaces)
            self._runlog.append(tx, task.tenant, [event], task_id=task_id, parent=parent)
            return JournalEntry(step, is_new=True)

        return await self._db.write(work, NO_LOCKS, [store.prefetch_task(ref)])

    async def begin(
        self, principal: Principal, task_id: str, epoch: int, draft: StepDraft, handled: Collection[str] = ()
    ) -> JournalEntry:
        """Record that an effect begins, before it is sent. Raises LeaseLost and StepMismatch.

        If it began before, that is returned: without an outcome, nobody knows whether the effect happened.
        """

        ref = (principal.tenant, require_task_id(task_id), draft.key)

        def work(tx: Tx) -> JournalEntry:
            found, is_recorded, last = store.find_task(tx, ref)
            task = check_held(tx, self._agents, principal, found, task_id, epoch)
            message = f"Effect {draft.name} begins."
            return begin_step(tx, self._runlog, task, draft, message, handled, last, is_recorded=is_recorded)

        return await self._db.write(work, NO_LOCKS, [store.prefetch_task(ref)])


def begin_step(
    tx: Tx,
    runlog: RunLog,
    task: Task,
    draft: StepDraft,
    message: str,
    handled: Collection[str],
    last: str,
    *,
    is_recorded: bool | None = None,
) -> JournalEntry:
    """Record that a step begins, with its event; return the recorded one if it began before. Raises StepMismatch.

    `last` is the event of the task's last step, "" without steps.
    """
    mark_handled(tx, task, handled)
    event_id = _new_id_after(last)
    insert = partial(store.insert_started, tx, task, draft, event_id)
    step, is_new, replaces = _insert_or_find(tx, task, draft, insert, is_recorded=is_recorded)
    if not is_new:
        return JournalEntry(step, value=store.read_value(tx, task.tenant, step))
    note_progress(tx, task)
    event = started_event(task, draft, message, event_id)
    event.metadata.update(replaces)
    runlog.append(tx, task.tenant, [event], task_id=task.task_id, parent=task.head_id)
    return JournalEntry(step, is_new=True)


def _insert_or_find(
    tx: Tx, task: Task, draft: StepDraft, insert: Callable[..., Step | None], *, is_recorded: bool | None
) -> tuple[Step, bool, JsonObject]:
    """Insert a step, in the place of a failed one that runs again; return the recorded step and whether it is new.

    The third value is metadata for the event of a step that replaces another: `reruns` uses it to find the place of the
    step in the program.
    `is_recorded` is whether the journal had the step when it was read, None if that is not known.
    """
    if is_recorded is None:
        is_recorded = store.find(tx, task.tenant, task.task_id, draft.key) is not None
    # The primary key decides: of two requests that record the same step only one inserts it.
    step, replaces = None if is_recorded else insert(), JsonObject()
    if step is None and model.is_superseded(recorded := find_same(tx, task, draft), task):
        step, replaces = insert(replaced=recorded), {"replaces": recorded.event_id}
    return (find_same(tx, task, draft), False, {}) if step is None else (step, True, replaces)


def started_event(task: Task, draft: StepDraft, message: str, event_id: str) -> EventDraft:
    """Return the event of a step that begins."""
    meta: JsonObject = {"key": draft.key, "kind": draft.kind, "epoch": task.epoch}
    if draft.reference is not None:
        meta["waits_for"] = draft.reference
    return EventDraft("step_started", "steps", message, meta, task.assigned_agent, event_id=event_id)


def mark_handled(tx: Tx, task: Task, keys: Collection[str]) -> None:
    """Record that the program continued after these steps had failed."""
    for key in keys:
        store.mark_handled(tx, task, key)


def _new_id_after(last: str) -> str:
    """Return an id for a step of a task that sorts after that of its last one.

    The order decides what a task takes over that is run again from a step. Since the last step the service may have
    been started again with its clock set back, and the clocks of its processes differ.
    """
    if last:
        ids.advance_past(last)
    return ids.new_id()


def note_progress(tx: Tx, task: Task) -> None:
    """Note that an attempt recorded something new.

    From its first step on a task stays with its agent, whose program has these steps. Only attempts that are lost
    without anything new count.
    """
    if task.pinned_agent is None or task.attempt_epoch < task.epoch:
        tasks.record_progress(tx, task)


def find_same(tx: Tx, task: Task, draft: StepDraft) -> Step:
    """Return the recorded step of a draft. Raises StepMismatch, and StepUnknown if there is none."""
    step = store.find(tx, task.tenant, task.task_id, draft.key)
    if step is None:
        raise StepUnknown(f"The {draft.kind} {draft.name!r} has not begun: begin it before you send it.")
    model.require_same_step(step, draft)
    return step


def require_step(tx: Tx, task: Task, key: str) -> Step:
    """Return a step of a task. Raises NotFound."""
    step = store.find(tx, task.tenant, task.task_id, key)
    if step is None:
        raise NotFound(f"The journal of this task has no step {key!r}; `stentor task steps TASK` lists them.")
    return step


def ended_event(
    step: Step,
    outcome: StepOutcome,
    event_id: str,
    agent_id: str | None,
    duration_ms: int | None = None,
    draft: StepDraft | None = None,
) -> EventDraft:
    """Return the event of a step that ended."""
    meta: JsonObject = {"key": step.key, "kind": step.kind, "epoch": step.epoch}
    # Most keys end with the name, and the event is shorter without it; `read_ended_step` takes it from the message.
    if not step.key.endswith(step.name):
        meta["name"] = step.name
    meta |= {"error": outcome.error} if outcome.error else {"size": len(outcome.content), "sha256": outcome.sha256}
    if draft is not None:
        meta |= {name: value for name, value in (("request", draft.request), ("tool", draft.tool)) if value}
    event_type: EventType = "step_failed" if outcome.error else "step_completed"
    # Without a name of its own a wait has that of its kind.
    label = step.kind if step.name == step.kind else f"{step.kind} {step.name}"
    message = f"{label[0].upper()}{label[1:]} {outcome.state}."
    return EventDraft(event_type, "steps", message, meta, agent_id, duration_ms, event_id)


def read_ended_step(event: RunLogEvent) -> Step:
    """Return the step of kind `step` whose end an event of `ended_event` is, as far as the event has it."""
    meta, duration_us = event.metadata, (event.duration_ms or 0) * 1000
    return Step(
        key=meta["key"],
        event_id=event.event_id,
        name=meta.get("name") or event.message.partition(" ")[2].rpartition(" ")[0] or meta["kind"],
        kind=meta["kind"],
        state="completed" if event.event_type == "step_completed" else "failed",
        position=None,
        epoch=meta["epoch"],
        encoding="json",
        value=None,
        value_hash=meta.get("sha256"),
        size=meta.get("size", 0),
        error=meta.get("error"),
        started_at=event.happened_at - duration_us,
        ended_at=event.happened_at,
    )


def _has_request(event: RunLogEvent) -> bool:
    return event.event_type == "step_completed" and isinstance(event.metadata.get("request"), dict)
