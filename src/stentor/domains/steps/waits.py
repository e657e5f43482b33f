"""What a task waits for: a time, a signal, the answer of a person, or a child. While it waits, no agent holds it.

A wait is a step that begins and is ended by somebody else: by the clock, by whoever sends the signal or answers, or by
the end of the child. That write also queues the task again, so a wait cannot end unnoticed.
"""

from __future__ import annotations

from typing import Any

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.errors import Conflict, InvalidRequest, NotFound, StepUnknown
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.presence import Presence
from stentor.domains.steps import model, store
from stentor.domains.steps.model import Step, StepDraft, StepOutcome
from stentor.domains.steps.service import JournalEntry, begin_step, ended_event, require_step
from stentor.domains.steps.store import Decision
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks import waiting
from stentor.domains.tasks.leases import require_held
from stentor.domains.tasks.model import TERMINAL_STATUSES, Task
from stentor.domains.tasks.placement import TaskQueue
from stentor.domains.tasks.service import TaskService, check_approver, require_visible_task

BATCH_SIZE = 200
"""Waits that one transaction ends."""
NOT_SENT = "NotSent"
"""The error of an effect of which a person said that it did not happen."""
_BEGINS = {
    "sleep": "Sleeps: {name}.",
    "signal": "Waits for the signal {reference}.",
    "question": "Asks: {reference}",
    "child": "Waits for the child {reference}.",
}


class WaitService:
    """Begins and ends the waits of tasks."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        agents: AgentCache,
        task_service: TaskService,
        dispatch: TaskQueue,
        presence: Presence,
    ) -> None:
        self._db, self._runlog, self._agents = db, runlog, agents
        self._tasks, self._dispatch, self._presence = task_service, dispatch, presence

    async def begin(self, principal: Principal, task_id: str, epoch: int, draft: StepDraft) -> JournalEntry:
        """Record that a task begins to wait, or return the wait that began before.

        It may have ended at once: a signal that arrived before, a child that has ended. Raises LeaseLost, StepMismatch,
        Conflict for an agent that is not a worker, and NotFound for a child that is not one of this task.
        """

        def work(tx: Tx) -> JournalEntry:
            task = require_held(tx, self._agents, principal, task_id, epoch)
            if task.runtime_kind != "worker":
                raise Conflict(f"The agent's runtime is {task.runtime_kind}; only agents of runtime worker can wait.")
            message = _BEGINS[draft.kind].format(name=draft.name, reference=draft.reference)
            entry = begin_step(tx, self._runlog, task, draft, message)
            if entry.step.state != "started":
                return entry
            outcome = self._find_outcome(tx, task, entry.step)
            if outcome is None:
                return entry
            self._end(tx, task.tenant, task_id, entry.step, outcome, task.assigned_agent)
            step = require_step(tx, task, draft.key)
            return JournalEntry(step, is_new=entry.is_new, value=store.read_value(tx, task.tenant, step))

        return await self._db.write(work, NO_LOCKS)

    async def suspend(self, principal: Principal, task_id: str, epoch: int, keys: list[str]) -> Task:
        """End the attempt of a task until one of these waits has ended. Raises LeaseLost, StepUnknown.

        If one has ended meanwhile, the task is queued at once.
        """

        def work(tx: Tx) -> Task:
            task = require_visible_task(tx, principal, task_id)
            if task.status in ("waiting", "queued") and task.epoch == epoch:
                return task  # a repeated request whose response was lost
            task = require_held(tx, self._agents, principal, task_id, epoch)
            waits = [_require_wait(tx, task, key) for key in keys]
            names = ", ".join(step.name for step in waits)
            waiting.suspend(tx, self._runlog, task, f"Waits for {names[:200]}.", keys)
            if ended := next((step for step in waits if step.state != "started"), None):
                self._resume(tx, task.tenant, task_id, ended.name, ended.event_id)
            agent_id = task.assigned_agent or ""
            tx.after_commit(lambda: self._presence.remove_lease(agent_id, task_id))
            return tasks.find(tx, task.tenant, task_id) or task

        return await self._db.write(work, NO_LOCKS)

    async def signal(self, principal: Principal, task_id: str, name: str, value: Any) -> bool:
        """Send a signal to a task; it is kept until the task waits for it. Return whether the task waited for it.

        Raises NotFound, and Conflict for a task that has ended or has too many signals.
        """

        def work(tx: Tx) -> bool:
            task = require_visible_task(tx, principal, task_id)
            if task.status in TERMINAL_STATUSES:
                raise Conflict(f"The task is {task.status}; it gets no signals.")
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
                if step.kind == "signal" and step.reference == name:
                    outcome = StepOutcome.of_value(value)
                    return self._end(tx, task.tenant, task_id, step, outcome, task.assigned_agent, event.event_id)
            store.insert_signal(tx, task.tenant, task_id, event.event_id, name, value)
            return False

        return await self._db.write(work, NO_LOCKS)

    async def answer(self, principal: Principal, task_id: str, key: str, value: Any) -> JournalEntry:
        """Answer the question of a task.

        Raises NotFound, Forbidden for a key of the task's agent or submitter, InvalidRequest for an answer that is not
        one of the options, and Conflict if it was answered before.
        """

        def work(tx: Tx) -> JournalEntry:
            task, step = self._require_open(tx, principal, task_id, key)
            if step.kind != "question":
                raise Conflict(f"The step {step.name!r} is no question.")
            if step.options is not None and value not in step.options:
                raise InvalidRequest(f"value: must be one of {', '.join(map(str, step.options))}.")
            return self._end_by_person(tx, task, step, StepOutcome.of_value(value), {"by": principal.name})

        return await self._db.write(work, NO_LOCKS)

    async def resolve(
        self, principal: Principal, task_id: str, key: str, value: Any, reason: str, *, happened: bool
    ) -> JournalEntry:
        """Record what a person found out about an effect that was sent and has no outcome.

        An effect that did not happen is sent again when the task is retried. Raises NotFound, Forbidden for a key of
        the task's agent or submitter, and Conflict for an effect with an outcome and for a task in execution.
        """

        def work(tx: Tx) -> JournalEntry:
            task, step = self._require_open(tx, principal, task_id, key)
            if step.kind != "effect":
                raise Conflict(f"The step {step.name!r} is no effect.")
            if task.status == "executing":
                raise Conflict("The task is being executed; wait until its attempt has ended.")
            error = {"type": NOT_SENT, "message": reason or f"{principal.name} says that it did not happen."}
            outcome = StepOutcome.of_value(value) if happened else StepOutcome(error=error)
            return self._end_by_person(tx, task, step, outcome, {"resolved_by": principal.name, "reason": reason})

        return await self._db.write(work, NO_LOCKS)

    async def list_for_people(self, principal: Principal, limit: int) -> list[Decision]:
        """List what people have to do, oldest first: questions to answer, and effects to find out about."""
        key = None if principal.is_person else principal.name
        return await self._db.read(lambda tx: store.list_for_people(tx, principal.tenant, key, limit))

    def end_due(self, tx: Tx) -> int:
        """End waits whose time is over, within the caller's transaction; return how many."""
        due = store.list_due(tx, BATCH_SIZE)
        for tenant, task_id, step in due:
            self._end(tx, tenant, task_id, step, model.timeout_outcome(step), None)
        return len(due)

    def end_children(self, tx: Tx) -> int:
        """End waits for children that have ended, within the caller's transaction; return how many."""
        ended = store.list_ended_children(tx, BATCH_SIZE)
        for tenant, task_id, step in ended:
            self._end(tx, tenant, task_id, step, _child_outcome(tx, tenant, step), None)
        return len(ended)

    def cancel_children(self, tx: Tx) -> int:
        """Cancel the children of cancelled tasks, within the caller's transaction; return how many."""
        orphans = store.list_orphans(tx, BATCH_SIZE)
        for tenant, task_id, step in orphans:
            self._tasks.cancel_child_in_tx(tx, tenant, step.reference or "", task_id)
            error = {"type": "ParentCancelled", "message": "The task was cancelled, and its child with it."}
            self._end(tx, tenant, task_id, step, StepOutcome(error=error), None)
        return len(orphans)

    @staticmethod
    def _find_outcome(tx: Tx, task: Task, step: Step) -> StepOutcome | None:
        """Return how a wait ends that has just begun, None if it waits."""
        if step.kind == "signal":
            signal = store.take_signal(tx, task.tenant, task.task_id, step.reference or "")
            return StepOutcome.of_value(signal[1]) if signal else None
        if step.kind == "child":
            child = tasks.find(tx, task.tenant, step.reference or "")
            if child is None or child.parent_task_id != task.task_id:
                raise NotFound("No child of this task has this id.")
            return _child_outcome(tx, task.tenant, step) if child.status in TERMINAL_STATUSES else None
        return None

    def _end_by_person(
        self, tx: Tx, task: Task, step: Step, outcome: StepOutcome, meta: dict[str, Any]
    ) -> JournalEntry:
        self._end(tx, task.tenant, task.task_id, step, outcome, task.assigned_agent, meta=meta)
        return JournalEntry(require_step(tx, task, step.key), is_new=True)

    def _end(
        self,
        tx: Tx,
        tenant: str,
        task_id: str,
        step: Step,
        outcome: StepOutcome,
        agent_id: str | None,
        cause: str | None = None,
        meta: dict[str, Any] | None = None,
    ) -> bool:
        """End a step with its event, and queue its task if it waits; False if the step has an outcome already."""
        if not store.end(tx, tenant, task_id, step.key, outcome):
            return False
        event = ended_event(step, outcome, ids.new_id(), agent_id)
        event.metadata.update(meta or {})
        self._runlog.append(tx, tenant, [event], task_id=task_id, parent=cause or step.event_id)
        if step.kind != "effect":
            self._resume(tx, tenant, task_id, step.name, event.event_id)
        return True

    def _resume(self, tx: Tx, tenant: str, task_id: str, name: str, cause: str) -> None:
        waiting.resume(tx, self._runlog, self._dispatch, tenant, task_id, f"Goes on: {name} has ended.", cause)

    @staticmethod
    def _require_open(tx: Tx, principal: Principal, task_id: str, key: str) -> tuple[Task, Step]:
        """Return a task and its step for a person's decision. Raises NotFound, Forbidden, and Conflict if it ended."""
        task = require_visible_task(tx, principal, task_id)
        check_approver(tx, principal, task)
        step = require_step(tx, task, key)
        if step.state != "started":
            raise Conflict(f"The {step.kind} {step.name!r} has {step.state} already.")
        return task, step


def _require_wait(tx: Tx, task: Task, key: str) -> Step:
    step = store.find(tx, task.tenant, task.task_id, key)
    if step is None or step.kind in ("step", "effect"):
        raise StepUnknown(f"No wait has the key {key!r}: begin it before you suspend the task.")
    return step


def _child_outcome(tx: Tx, tenant: str, step: Step) -> StepOutcome:
    """Return the end of a child: its status, and its result or its error."""
    child = tasks.find(tx, tenant, step.reference or "")
    if child is None:
        return StepOutcome(error={"type": "ChildGone", "message": "The child was deleted."})
    return StepOutcome.of_value({"status": child.status, "result": child.result, "error": child.error})
