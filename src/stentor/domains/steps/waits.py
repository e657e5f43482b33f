"""What a task waits for: a time, a signal, the answer of a person, or a child. While it waits, no agent holds it.

A wait is a step that begins and is ended by somebody else: by the clock, by whoever sends the signal or answers, or by
the end of the child. That write also queues the task again, so a wait cannot end unnoticed. Writes that begin or end
waits of a task exclude each other, as does its suspension: each decides by what the others may just be changing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from stentor.auth.principal import IsActive, Principal, require_active
from stentor.core import runlog_queries
from stentor.core.db import NO_LOCKS, Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.errors import Conflict, InvalidRequest, StepUnknown
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.steps import model, queries, store
from stentor.domains.steps.model import Step, StepDraft, StepOutcome
from stentor.domains.steps.queries import Decision
from stentor.domains.steps.service import JournalEntry, begin_step, ended_event, require_step
from stentor.domains.steps.starts import AFTER, START
from stentor.domains.steps.wait_endings import Ending, WaitEndings, child_outcome, lock_waits
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.access import check_approver, require_held, require_visible_task
from stentor.domains.tasks.model import TERMINAL_STATUSES, Task
from stentor.domains.tasks.queues import waiting
from stentor.domains.tasks.reading.progress import MAX_WAITS, TaskWait
from stentor.domains.tasks.service import is_late

_BEGINS = {
    "sleep": "Sleeps: {name}.",
    "signal": "Waits for the signal {reference}.",
    "question": "Asks: {reference}",
    "child": "Waits for the child {reference}.",
}
_UNNAMED = {"question": "an answer", "sleep": "the end of its sleep"}
"""What a task waits for whose wait has the name of its kind, as it has without a name of its own."""
MAX_TEXT = 200
"""Characters of a question, or of the name of a signal, in the text of a wait."""


class WaitService:
    """Begins and ends the waits of tasks."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        agents: AgentCache,
        endings: WaitEndings,
        presence: Presence,
        is_active: IsActive,
        expect: Callable[[int], None],
    ) -> None:
        self._db, self._runlog, self._agents = db, runlog, agents
        self._endings, self._presence, self._is_active, self._expect = endings, presence, is_active, expect

    async def begin(
        self, principal: Principal, task_id: str, epoch: int, draft: StepDraft, handled: Collection[str] = ()
    ) -> JournalEntry:
        """Record that a task begins to wait, or return the wait that began before.

        It may have ended at once: a signal that arrived before, a child that has ended. Raises LeaseLost, StepMismatch,
        Conflict for an agent that is not a worker, and InvalidRequest for a child that is not one of this task.
        """

        def work(tx: Tx) -> JournalEntry:
            # Before anything is read: what ends the wait at this moment, such as a signal, either finds the step or was
            # found by it.
            lock_waits(tx, principal.tenant, task_id)
            task = require_held(tx, self._agents, principal, task_id, epoch)
            if task.runtime_kind != "worker":
                raise Conflict(
                    f"The agent's runtime is {task.runtime_kind}; only agents with the runtime worker can wait."
                )
            message = _BEGINS[draft.kind].format(name=draft.name, reference=draft.reference)
            message = "Sleeps." if draft.name == draft.kind == "sleep" else message
            last = store.find_last_event(tx, task.tenant, task_id)
            entry = begin_step(tx, self._runlog, task, draft, message, handled, last)
            if entry.step.state != "started":
                return entry
            outcome = self._find_outcome(tx, task, entry.step)
            if outcome is None:
                return entry
            self._endings.end(tx, Ending(task.tenant, task_id, entry.step, outcome, task.assigned_agent))
            step = require_step(tx, task, draft.key)
            return JournalEntry(step, is_new=entry.is_new, value=store.read_value(tx, task.tenant, step))

        entry = await self._db.write(work, NO_LOCKS)
        if entry.is_new and entry.step.state == "started" and entry.step.wake_at is not None:
            self._expect(entry.step.wake_at)
        return entry

    async def suspend(self, principal: Principal, task_id: str, epoch: int, keys: list[str]) -> Task:
        """End the attempt of a task until one of these waits has ended, with all that it waits for together.

        If one has ended in the meantime, the task is queued at once. Raises LeaseLost, StepUnknown.
        """

        def work(tx: Tx) -> Task:
            lock_waits(tx, principal.tenant, task_id)
            task = require_visible_task(tx, principal, task_id)
            if task.status in ("waiting", "queued") and task.epoch == epoch:
                return task  # a repeated request whose response was lost
            task = require_held(tx, self._agents, principal, task_id, epoch)
            open_steps = store.list_open(tx, task.tenant, task_id)
            open_waits = {step.key: step for step in open_steps if step.kind not in ("step", "effect")}
            waits = [open_waits.get(key) or _require_wait(tx, task, key) for key in keys]
            names = ", ".join(
                _UNNAMED.get(step.kind, step.name) if step.name == step.kind else step.name for step in waits[:20]
            )
            waiting.suspend(tx, self._runlog, task, f"Waits for {names[:200]}.", keys)
            still_open = {step.together for step in open_waits.values() if step.together is not None}
            ended = (step for step in waits if step.state != "started")
            # A wait that ended before this could not queue the task, which was still executing.
            if over := next((step for step in ended if step.error or step.together not in still_open), None):
                self._endings.resume(tx, task.tenant, task_id, over.name, over.event_id)
            agent_id = task.assigned_agent or ""
            # After the commit: until then the worker holds the task.
            tx.after_commit(lambda: self._presence.remove_lease(agent_id, task_id))
            return tasks.find(tx, task.tenant, task_id) or task

        return await self._db.write(work, NO_LOCKS)

    async def signal(
        self, principal: Principal, task_id: str, name: str, value: Any, key: IdempotencyKey | None = None
    ) -> bool:
        """Send a signal to a task; it is kept until the task waits for it. Return whether the task waited for it.

        Raises NotFound, Conflict for a task that cannot continue or has too many signals, and Forbidden for the key of
        stopped agents.
        """
        require_active(principal, self._is_active, "send signals")

        def send(tx: Tx, task: Task) -> bool:
            _require_continuable(tx, task, "it gets no signals")
            if store.count_signals(tx, task.tenant, task_id) >= model.MAX_SIGNALS:
                raise Conflict(f"{model.MAX_SIGNALS} signals already wait for this task.")
            event = EventDraft(
                "signal_received",
                "steps",
                f"Signal {name} from {principal.name}.",
                {"name": name, "by": principal.name},
            )
            self._runlog.append(tx, task.tenant, [event], task_id=task_id, parent=task.head_id)
            for step in store.list_open(tx, task.tenant, task_id):
                # Only the oldest wait: one signal ends one wait.
                if step.kind == "signal" and step.reference == name:
                    outcome, agent_id = StepOutcome.of_value(value), task.assigned_agent
                    ending = Ending(task.tenant, task_id, step, outcome, agent_id, event.event_id)
                    return self._endings.end(tx, ending)
            store.insert_signal(tx, task.tenant, task_id, event.event_id, name, value)
            return False

        def work(tx: Tx) -> bool:
            lock_waits(tx, principal.tenant, task_id)
            task = require_visible_task(tx, principal, task_id)
            return idempotency.run_once(tx, key, bool, lambda: send(tx, task))

        return await self._db.write(work, NO_LOCKS)

    async def answer(self, principal: Principal, task_id: str, key: str, value: Any) -> JournalEntry:
        """Answer the question of a task.

        Raises NotFound, Forbidden for a key of the task's agent or submitter, InvalidRequest for an answer that is not
        one of the options, and Conflict if it was answered before, the task is completed or cancelled, or its deadline
        has passed. Idempotent for the same answer by the same key.
        """
        outcome, said = StepOutcome.of_value(value), {"by": principal.name}

        def work(tx: Tx) -> JournalEntry:
            task, step = _require_step(tx, principal, task_id, key)
            if step.kind != "question":
                raise Conflict(f"The step {step.name!r} is not a question.")
            if step.state != "started":
                return _said_before(tx, task, step, outcome, said)
            _require_continuable(tx, task, "its question needs no answer")
            if step.options is not None and value not in step.options:
                raise InvalidRequest(f"value: must be one of {', '.join(map(str, step.options))}.")
            return self._end_by_person(tx, task, step, outcome, said)

        return await self._db.write(work, NO_LOCKS)

    async def resolve(
        self, principal: Principal, task_id: str, key: str, value: Any, reason: str, *, happened: bool
    ) -> JournalEntry:
        """Record what a person found out about an effect that was sent and has no outcome.

        An effect that did not happen is sent again when the task is retried. Raises NotFound, Forbidden for a key of
        the task's agent or submitter, and Conflict for an effect with an outcome and for a task in execution.
        Idempotent for the same key, outcome and reason.
        """
        text = reason or f"{principal.name} says that it did not happen."
        error = {"type": model.NOT_SENT, "message": text, "resolved_by": principal.name}
        outcome = StepOutcome.of_value(value) if happened else StepOutcome(error=error)
        said = {"resolved_by": principal.name, "reason": reason}

        def work(tx: Tx) -> JournalEntry:
            task, step = _require_step(tx, principal, task_id, key)
            if step.kind != "effect":
                raise Conflict(f"The step {step.name!r} is not an effect.")
            if step.state != "started":
                return _said_before(tx, task, step, outcome, said)
            if task.status == "executing":
                raise Conflict("The task is being executed; wait until its attempt has ended.")
            return self._end_by_person(tx, task, step, outcome, said)

        return await self._db.write(work, NO_LOCKS)

    async def list_for_people(
        self, principal: Principal, after: str, limit: int
    ) -> list[tuple[Decision, Agent | None]]:
        """List what people have to do, oldest first: questions to answer, and effects to find out about.

        Those that began after an event id, each with the agent of its task, None if it was deleted.
        """
        key = None if principal.is_person else principal.name
        found = await self._db.read(lambda tx: queries.list_for_people(tx, principal.tenant, key, after, limit))
        return [(decision, self._agents.get(principal.tenant, decision[2] or "")) for decision in found]

    @staticmethod
    def _find_outcome(tx: Tx, task: Task, step: Step) -> StepOutcome | None:
        """Return how a wait ends that has just begun, None if it waits."""
        if step.kind == "signal":
            signal = store.take_signal(tx, task.tenant, task.task_id, step.reference or "")
            return StepOutcome.of_value(signal[1]) if signal else None
        if step.kind == "child":
            child = tasks.find(tx, task.tenant, step.reference or "")
            if child is None or not _is_child(tx, child, task):
                raise InvalidRequest("child_task_id: no child of this task has this id.")
            after = store.find(tx, task.tenant, child.task_id, AFTER + task.task_id)
            if after is not None and after.state == "started":
                text = "the child begins only after this task, which cannot wait for it: submit it without `after`."
                raise InvalidRequest(f"child_task_id: {text}")
            return child_outcome(tx, task.tenant, step) if child.status in TERMINAL_STATUSES else None
        return None

    def _end_by_person(
        self, tx: Tx, task: Task, step: Step, outcome: StepOutcome, meta: dict[str, Any]
    ) -> JournalEntry:
        ending = Ending(task.tenant, task.task_id, step, outcome, task.assigned_agent, meta=meta)
        if not self._endings.end(tx, ending):
            raise _has_ended(require_step(tx, task, step.key))
        return JournalEntry(require_step(tx, task, step.key), is_new=True)


def _require_step(tx: Tx, principal: Principal, task_id: str, key: str) -> tuple[Task, Step]:
    """Return a task and its step for a person's decision. Raises NotFound and Forbidden."""
    lock_waits(tx, principal.tenant, task_id)
    task = require_visible_task(tx, principal, task_id)
    check_approver(tx, principal, task)
    return task, require_step(tx, task, key)


def _require_continuable(tx: Tx, task: Task, consequence: str) -> None:
    """Raise Conflict for a task that never continues. A failed one may be retried, and then uses what it was sent."""
    if task.status in ("completed", "cancelled"):
        raise Conflict(f"The task is {task.status}; {consequence}.")
    if is_late(tx, task):
        raise Conflict(f"The deadline of the task has passed; {consequence}.")


def _is_child(tx: Tx, child: Task, task: Task) -> bool:
    """Return whether a task was started by another one, or by one whose steps that one took over."""
    parent: Task | None = task
    while parent is not None and parent.task_id != child.parent_task_id:
        meta = parent.metadata
        parent = None if meta.rerun_from is None else tasks.find(tx, task.tenant, meta.rerun_of or "")
    return parent is not None


def _said_before(tx: Tx, task: Task, step: Step, outcome: StepOutcome, said: dict[str, Any]) -> JournalEntry:
    """Return a step that ended as the caller says, and because it said so before. Raises Conflict for another one."""
    ended = ended_event(step, outcome, "", task.assigned_agent).metadata | said
    del ended["epoch"]  # that of the attempt which began it, or of the one in which it ended
    for event in runlog_queries.list_led_to(tx, task.tenant, task.task_id, step.event_id):
        if event.metadata | ended == event.metadata and step.error == outcome.error:
            return JournalEntry(step, value=store.read_value(tx, task.tenant, step))
    raise _has_ended(step)


def _has_ended(step: Step) -> Conflict:
    return Conflict(f"The {step.kind} {step.name!r} has {step.state} already.")


def _require_wait(tx: Tx, task: Task, key: str) -> Step:
    step = store.find(tx, task.tenant, task.task_id, key)
    if step is None or step.kind in ("step", "effect"):
        raise StepUnknown(f"No wait has the key {key!r}: begin it before you suspend the task.")
    return step


def read_waits(tx: Tx, task: Task) -> list[TaskWait]:
    """Return what a task waits for, the oldest first."""
    return [describe_wait(step) for step in store.list_open_waits(tx, task.tenant, task.task_id, MAX_WAITS)]


def describe_wait(step: Step) -> TaskWait:
    """Return an open wait in words."""
    reference = (step.reference or "")[:MAX_TEXT]
    if step.key == START:
        return TaskWait("start", "Waits for its start", step.wake_at, step.key)
    if step.key.startswith(AFTER):
        title = step.name.removeprefix("after ")
        return TaskWait("task", f"Waits for another task to complete: {title}", None, step.key, step.reference)
    if step.kind == "sleep":
        return TaskWait("sleep", "Sleeps", step.wake_at, step.key)
    if step.kind == "signal":
        return TaskWait("signal", f"Waits for the signal {reference!r}", step.wake_at, step.key)
    if step.kind == "question":
        options = f" ({', '.join(map(str, step.options))[:MAX_TEXT]})" if step.options else ""
        return TaskWait("question", f"Waits for an answer to {reference!r}{options}", step.wake_at, step.key)
    return TaskWait("child", f"Waits for its child {step.name!r}", step.wake_at, step.key, step.reference)
