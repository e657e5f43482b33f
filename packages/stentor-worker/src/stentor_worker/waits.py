"""What a task can wait for: a time, a signal, a person's answer, a child. The attempt ends, another one continues."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from stentor_worker.branches import Branch, begin, running_in, to_results
from stentor_worker.errors import AttemptEnded, ChildFailed, Failed, ServiceGone, StepMismatch, Suspended
from stentor_worker.http.client import ServiceError, segment
from stentor_worker.journal import Journal, Recorded, ValueRejected
from stentor_worker.scope import MAX_NAME, Entry, Scope
from stentor_worker.steps import count_cancellations, finish, here, in_thread, note_late, run_step

Duration = float | timedelta
"""Seconds, or a timedelta."""
_REFERENCES = ("signal", "question", "child_task_id")


def to_seconds(duration: Duration | None) -> float | None:
    """Return a duration in seconds. Raises ValueError for one that is negative, endless or no number."""
    if duration is None:
        return None
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"A task cannot wait {duration} s.")
    return seconds


def to_list(name: str, texts: Iterable[str]) -> list[str]:
    """Return the texts as a list. Raises TypeError for a single text, which would become a list of its characters."""
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a list such as [{texts!r}], not a single text.")
    return list(texts)


def call(function: Callable[[], Any]) -> Any:
    """Call the function; in a coroutine return an awaitable that calls it in a thread."""
    return in_thread(function) if is_in_loop() else function()


def is_in_loop() -> bool:
    """Return whether a coroutine runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Wait:
    """A wait in the order of the program: created where it begins, and run here or in a thread."""

    def __init__(self, journal: Journal, name: str, kind: str, fields: dict[str, Any], scope: Scope | None = None):
        self._journal, self._entry = journal, journal.enter(name, kind, scope)
        self._fields = {key: value for key, value in fields.items() if value is not None}

    def run(self, together: str | None = None) -> Any:
        """Return what the task waited for. Raises Suspended while it waits, and the error with which the wait ended.

        Waits that are named `together` wake the task when the last of them has ended.
        """
        entry = self._entry
        step = self._journal.find(entry)
        if step is None:
            self._retry_child()
            fields = self._fields | {"kind": entry.kind} | ({"together": together} if together else {})
            try:
                step = self._journal.post(entry, "/waits", fields)
            except ValueRejected as error:
                raise AttemptEnded(f"The wait {entry.name!r} was rejected: {error}", "STEP_REJECTED") from None
        else:
            self._require_same(step)
            self._journal.note_replayed_wait(entry)
        if step["state"] == "started":
            self._journal.waits.append(entry.key)
            raise Suspended
        return self._journal.replay(entry, step)

    @property
    def is_recorded(self) -> bool:
        return self._journal.is_recorded(self._entry)

    @property
    def key(self) -> str:
        return self._entry.key

    def _retry_child(self) -> None:
        """Retry a child that failed, when the task was retried after that: both continue from where they failed."""
        failed = self._journal.superseded(self._entry)
        if failed is not None and failed["error"]["type"] == ChildFailed.__name__:
            # It may be running again, or may not be retryable: its end says so.
            with suppress(ServiceError):
                self._journal.client.call("POST", f"/tasks/{segment(self._fields['child_task_id'])}/retry")

    def _require_same(self, step: Recorded) -> None:
        """Raise StepMismatch for a recorded wait for something else, such as the answer to another question."""
        reference = next((self._fields[name] for name in _REFERENCES if name in self._fields), None)
        recorded = _label(step["name"], step["waits_for"], step["options"])
        received = _label(self._entry.name, reference, self._fields.get("options"))
        if recorded != received:
            raise StepMismatch(recorded, received)


class Child:
    """A task that another one started. `id` is its id."""

    def __init__(self, journal: Journal, started: Entry, task_id: str, type_: str) -> None:
        self._journal, self._type = journal, type_
        # Where the child was started, waits for it happen in order.
        self._scope = Scope(started.key + "/", outer=started.scope, home=started.place)
        self.id = task_id

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the end of the child and return its result. In a coroutine, await it.

        Raises ChildFailed, and WaitTimeout after `timeout` (seconds or a timedelta).
        """
        wait = self.begin(timeout)
        return call(lambda: wait.run()["result"])

    def begin(self, timeout: Duration | None = None) -> Wait:
        """Begin to wait for the end of the child."""
        fields = {"child_task_id": self.id, "seconds": to_seconds(timeout)}
        return Wait(self._journal, self._type[:MAX_NAME], "child", fields, self._scope)


def start_child(
    journal: Journal,
    parent_id: str,
    traceparent: str | None,
    type_: str,
    input_: Any,
    capabilities: list[str],
    fields: dict[str, Any],
) -> Callable[[], Child]:
    """Begin the step that submits a child, and return the function that does.

    Unless it is given, the id of the child follows from the step, so a repeated submission gives the same child. Its
    spans are in the trace of the parent's attempt, whose `traceparent` is given.
    """
    entry = journal.enter(f"start {type_}"[:MAX_NAME], "step", is_irreversible=True)
    metadata = {**fields.pop("metadata", {}), "parent_task_id": parent_id}
    task_id = fields.pop("id", None) or str(uuid.uuid5(uuid.NAMESPACE_OID, f"{parent_id} {entry.key}"))
    body = {
        "id": task_id,
        "type": type_,
        "input": input_,
        "required_capabilities": capabilities,
        "metadata": metadata,
        **fields,
    }

    def submit() -> str:
        try:
            journal.client.call("POST", "/tasks", body, traceparent=traceparent)
        except ServiceError as error:
            if error.is_outage:
                # Recorded as the failure of the step, it would stand in every attempt.
                raise ServiceGone(str(error), error.code) from None
            # A child that no agent may do is stored as failed: its end says why.
            if not error.code.startswith("ROUTING_"):
                raise
        return task_id

    return lambda: Child(journal, entry, finish(run_step(journal, entry, submit, here)), type_)


def gather_children(children: Iterable[Child]) -> Callable[[], list[Any]]:
    """Begin to wait for all children, and return the function that does, blocking. The first error ends it."""
    waits = [child.begin() for child in children]
    together = waits[0].key if len(waits) > 1 else None

    def run() -> list[Any]:
        branches: list[tuple[Branch, Any]] = []
        has_failed = False
        for wait in waits:
            # After an error no further wait begins.
            if not has_failed or wait.is_recorded:
                branch = begin()
                with running_in(branch):
                    end = _end_of(wait, together)
                branches.append((branch, end))
                has_failed |= isinstance(end, Failed)
        return [end["result"] for end in to_results(branches)]

    return run


def _label(name: str, reference: str | None, options: list[str] | None) -> str:
    """Return what a wait is for. Different options, or none, make it another question."""
    return f"{name}: {reference}" + ("" if options is None else f" {options}")


def _end_of(wait: Wait, together: str | None) -> Any:
    """Return the value of a wait, or its error, or Suspended while it waits."""
    try:
        return wait.run(together)
    except (Failed, Suspended) as end:
        return end


async def gather(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """Run all at the same time, and wait for the others when one has to wait. The first error ends it."""
    branches = [(begin(), awaitable) for awaitable in awaitables]
    running = [asyncio.ensure_future(_run_branch(*branch)) for branch in branches]
    before, ends = count_cancellations(), list[Any]()
    cancelled: asyncio.CancelledError | None = None
    try:
        # Without its first step a branch would leave no trace of a timeout that has already passed, and the next
        # attempt would take another path.
        await asyncio.sleep(0)
    except asyncio.CancelledError as error:
        cancelled = error
        for one in running:
            one.cancel()
    try:
        ends = await asyncio.gather(*running, return_exceptions=True)
    except asyncio.CancelledError as error:
        cancelled = error
    if cancelled is not None:
        # Effects are not cancelled: like a single effect, they return their result if a timeout comes too late.
        if not all(one.done() and not one.cancelled() for one in running):
            raise cancelled
        note_late(before)
        ends = await asyncio.gather(*running, return_exceptions=True)
    return to_results((branch, end) for (branch, _), end in zip(branches, ends, strict=True))


async def _run_branch(branch: Branch, awaitable: Awaitable[Any]) -> Any:
    with running_in(branch):
        return await awaitable
