"""What a task can wait for: a time, a signal, a person's answer, a child. The attempt ends, and another one goes on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

from stentor_worker.client import ServiceError
from stentor_worker.errors import ChildFailed, Suspended
from stentor_worker.journal import Journal, Scope

Duration = float | timedelta
"""Seconds, or a timedelta."""


def to_seconds(duration: Duration | None) -> float | None:
    """Return a duration in seconds. Raises ValueError for one that is negative or no number."""
    if duration is None:
        return None
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not seconds >= 0:
        raise ValueError(f"A task cannot wait {duration} s.")
    return seconds


def call(function: Callable[[], Any]) -> Any:
    """Call the function; in a coroutine return an awaitable that calls it in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    return asyncio.to_thread(function)


class Child:
    """A task that another one started. `id` is its id."""

    def __init__(self, journal: Journal, task_id: str, name: str, key: str) -> None:
        self._journal, self._name = journal, name
        self._scope = Scope(journal, key + "/")
        self.id = task_id

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the end of the child and return its result. In a coroutine, await it.

        Raises ChildFailed, and WaitTimeout after `timeout` (seconds or a timedelta).
        """
        return call(partial(self.wait, to_seconds(timeout)))

    def wait(self, seconds: float | None = None) -> Any:
        """Do the same, blocking."""
        entry = self._journal.enter("end", "child", self._scope)
        end = self._journal.wait(entry, {"child_task_id": self.id, "seconds": seconds})
        if end["status"] != "completed":
            raise ChildFailed(self._name, self.id, end["status"], end["error"])
        return end["result"]


def start_child(
    journal: Journal, parent_id: str, type_: str, input_: Any, capabilities: Iterable[str], fields: dict[str, Any]
) -> Callable[[], Child]:
    """Begin the step that submits a child, and return the function that does.

    The id of the child follows from the step, so a submission that is repeated gives the same child.
    """
    entry = journal.enter(f"start {type_}", "step")
    metadata = {**fields.pop("metadata", {}), "parent_task_id": parent_id}
    body = {"type": type_, "input": input_, "required_capabilities": list(capabilities), "metadata": metadata, **fields}

    def submit(key: str) -> str:
        task_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{parent_id} {key}"))
        try:
            journal.client.call("POST", "/tasks", {"id": task_id, **body})
        except ServiceError as error:
            # A child that no agent may do is stored as failed: its end says why.
            if not error.code.startswith("ROUTING_"):
                raise
        return task_id

    return lambda: Child(journal, journal.run_keyed(entry, submit), type_, entry.key)


def gather_children(children: Iterable[Child]) -> list[Any]:
    """Wait for all children, blocking."""
    results = [_wait_or_suspend(child) for child in children]
    if any(result is Suspended for result in results):
        raise Suspended
    return results


def _wait_or_suspend(child: Child) -> Any:
    try:
        return child.wait()
    except Suspended:
        return Suspended


async def gather(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """Run all at the same time, and wait for the others when one has to wait. The first error ends it."""
    running = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    results = await asyncio.gather(*running, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, Suspended)):
        raise error
    return results
