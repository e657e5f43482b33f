"""What a task takes over that is run again from a step of another one: what comes before that step in the program.

Steps come in the order in which they began. One that failed and ran again after a retry has the event of its last run,
and its place in the program is where it began first: the run log says when.
"""

from __future__ import annotations

from stentor.core.db import Tx
from stentor.core.errors import Conflict, NotFound
from stentor.core.runlog import read_task_events
from stentor.domains.steps import rerun_store as store
from stentor.domains.steps.model import MAX_PAGE
from stentor.domains.steps.rerun_store import OrderedStep
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.model import Task

_EVENTS = ("step_started", "step_completed", "step_failed")


def take_over(tx: Tx, task: Task) -> None:
    """Copy into a new task what is recorded before the step from which it goes on.

    Raises NotFound for an unknown step, and Conflict while it is not known whether an effect before it happened, or
    whether an effect came before it: the new task would send it again, with another key.
    """
    key = task.metadata.rerun_from or ""
    source = tasks.find(tx, task.tenant, task.metadata.rerun_of or "")
    steps = [] if source is None else store.list_ordered(tx, source.tenant, source.task_id)
    target = next((step for step in steps if step.key == key), None)
    if source is None or target is None:
        raise NotFound(f"The journal of the task has no step {key!r}.")
    first = _read_first_events(tx, source) if source.retry_epoch else {}
    first = {step.key: first.get(step.key, step.event_id) for step in steps}
    places = {step.key: min(first[key] for key in _list_around(step) if key in first) for step in steps}
    before, inside = places[key], f"{key}/"
    taken = [step for step in steps if places[step.key] < before or step.key.startswith(inside)]
    for step in taken:
        if step.kind == "effect" and step.state == "started":
            raise Conflict(
                f"It is not known whether the effect {step.name!r} happened. Find out, record it with `stentor task "
                "resolve`, then run the task again."
            )
    if source.runtime_kind == "worker":
        _require_known_order(steps, first, places, target)
    store.copy_before(tx, task, source.task_id, before, inside)
    for step in taken:
        is_elsewhere = step.event_id >= before or first[step.key] != step.event_id
        if is_elsewhere and (step.kind == "effect" or not step.key.startswith(inside)):
            store.copy(tx, task, source.task_id, step.key, first[step.key])
    for step in _list_to_repeat(steps, target, {step.key for step in taken}):
        store.copy(tx, task, source.task_id, step.key, first[step.key])
        store.run_again(tx, task, step.key)
    if any(first[step.key] != step.event_id for step in taken):
        # When a step ran again, the program may have taken another path after it.
        store.forget_positions(tx, task)


def _list_to_repeat(steps: list[OrderedStep], target: OrderedStep, taken: set[str]) -> list[OrderedStep]:
    """List what failed at or after a step, and runs again as after a retry.

    A child that was started before it is retried then, and an effect of which a person said that it did not happen
    keeps its idempotency key.
    """
    failed = [step for step in steps if step.state == "failed" and step.key not in taken]
    return [s for s in failed if s == target or (s.kind == "child" and s.key.rpartition("/")[0] in taken)]


def _require_known_order(
    steps: list[OrderedStep], first: dict[str, str], places: dict[str, str], target: OrderedStep
) -> None:
    """Raise Conflict if an effect may have come before a step although it began after it.

    So it may be when a step before it ran again after a retry, and the program took another path then.
    """
    before = places[target.key]
    again = [s for s in steps if places[s.key] < before < s.event_id and first[s.key] != s.event_id]
    if not again:
        return
    since = min(step.event_id for step in again)
    for step in steps:
        if step.kind in ("effect", "child") and places[step.key] > since:
            earliest = min(again, key=lambda s: places[s.key])
            raise Conflict(
                f"It is not known whether the {step.kind} {step.name!r} came before the step {target.name!r}: since "
                f"then the task was retried, and {earliest.name!r} ran again. Run the task again from "
                f"{earliest.key!r}, or from a step that was recorded after the retry."
            )


def _read_first_events(tx: Tx, task: Task) -> dict[str, str]:
    """Return the events with which the steps of a task began first, by their keys."""
    first: dict[str, str] = {}
    after: str | None = ""
    while after is not None:
        events = read_task_events(tx, task.tenant, task.task_id, MAX_PAGE, after)
        for event in events:
            if event.event_type in _EVENTS:
                first.setdefault(event.metadata["key"], event.event_id)
        after = events[-1].event_id if len(events) == MAX_PAGE else None
    return first


def _list_around(step: OrderedStep) -> list[str]:
    """Return the keys of a step and of those that it ran in, none of which is complete before it is."""
    if step.kind == "child":
        return [step.key]  # named after the step that started the child, which ended before
    parts = step.key.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
