"""What a task takes over that is run again from a step of another one: what comes before that step in the program.

Steps come in the order in which they began. One that failed and ran again has the event of its last run, and its place
in the program is where it began first: the run log says when. A step that is taken over has the event of its place, and
keeps that of its last run beside it, so that the new task can be run again from a step too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import Conflict, Forbidden, NotFound
from stentor.core.runlog import read_task_events
from stentor.domains.steps import rerun_store as store
from stentor.domains.steps.model import MAX_PAGE
from stentor.domains.steps.rerun_store import OrderedStep
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.model import Task

_EVENTS = ("step_started", "step_completed", "step_failed")


class Place(NamedTuple):
    """Where a step is in the program, as seen from the step from which a task continues.

    `at` is where the outermost step around it began that is not around both, `before` the same of that other step, and
    `first` where it began itself.
    """

    at: str
    before: str
    first: str


def take_over(tx: Tx, principal: Principal, task: Task) -> None:
    """Copy into a new task what is recorded before the step from which it continues.

    Raises NotFound for an unknown step, Forbidden if an agent's key would take over a person's answer, and Conflict
    while it is not known whether an effect before it happened, or whether an effect came before it: the new task would
    send it again, with another key. The same holds for an effect of a reply that is asked for again.
    """
    key = task.metadata.rerun_from or ""
    source = tasks.find(tx, task.tenant, task.metadata.rerun_of or "")
    steps = [] if source is None else store.list_ordered(tx, source.tenant, source.task_id)
    target = next((step for step in steps if step.key == key), None)
    if source is None or target is None:
        raise NotFound(f"The journal of the task has no step {key!r}; `stentor task steps TASK` lists them.")
    has_run_again = source.retry_epoch > 0 or source.metadata.rerun_from is not None
    events = _read_first_events(tx, source) if has_run_again else {}
    has_program = _has_program(tx, source)
    if has_program:
        places = find_places(steps, events, target)
        taken = [step for step in steps if _is_before(step, places, target)]
    else:
        # The calls of a model's reply come after it, not within it: another reply has others.
        places = _list_places(steps, events, target)
        taken = [step for step in steps if places[step.key].at < places[step.key].before]
    if not principal.is_person:
        _require_no_answer(step for step in taken if not is_inside(step.key, key))
    for step in steps:
        if step.kind == "effect" and step.state == "started" and (step in taken or is_inside(step.key, key)):
            raise Conflict(
                f"It is not known whether the effect {step.name!r} happened. Find out, record it with `stentor task "
                "resolve`, then run the task again."
            )
    if has_program:
        earlier = [step for step in taken if not is_inside(step.key, key)]
        _require_known_order(steps, places, target, earlier)
        _require_known_order_within(tx, source, steps, places, target)
    else:
        _require_no_effect(steps, target)
    before = min(place.before for place in places.values())
    store.copy_before(tx, task, source.task_id, before, f"{key}/")
    moved = [s for s in taken if s.event_id >= before or places[s.key].first != s.event_id]
    moved = [s for s in moved if s.kind == "effect" or not is_inside(s.key, key)]
    to_repeat = _list_to_repeat(steps, target, {step.key for step in taken})
    store.copy(tx, task, source.task_id, [(s.key, places[s.key].first, s.last) for s in moved + to_repeat])
    for step in to_repeat:
        store.run_again(tx, task, step.key)
    if any(is_inside(step.key, key) or places[step.key].first != step.last for step in taken):
        # If a step ran again, or the steps around an effect do, the program may take another path after it.
        store.forget_positions(tx, task)


def find_places(steps: list[OrderedStep], events: dict[str, str], target: OrderedStep) -> dict[str, Place]:
    """Return the places of steps by their keys, as seen from the step `target`.

    `events` has the first events of those that may have run again.
    """
    first = {step.key: events.get(step.key, step.event_id) for step in steps}
    # The place of the target among the steps in each one around it, and in the program.
    before, at = dict[str, str](), first[target.key]
    for outer in sorted((step.key for step in steps if _is_around(step, target)), key=len, reverse=True):
        before[outer], at = at, min(at, first[outer])
    before[""] = at
    places, around = dict[str, Place](), [""]
    # This order puts the steps inside a step right after it: keys have no control characters.
    for step in sorted(steps, key=lambda s: s.key.replace("/", "\0")):
        while around[-1] and not is_inside(step.key, around[-1]):
            around.pop()
        outer, began = around[-1], first[step.key]
        if outer in before:
            places[step.key] = Place(began, before[outer], began)
        else:
            at = began if step.kind == "child" else min(began, places[outer].at)
            places[step.key] = Place(at, places[outer].before, began)
        around.append(step.key)
    return places


def _list_places(steps: list[OrderedStep], events: dict[str, str], target: OrderedStep) -> dict[str, Place]:
    """Return the same for steps of which none ran in another one."""
    first = {step.key: events.get(step.key, step.event_id) for step in steps}
    return {key: Place(began, first[target.key], began) for key, began in first.items()}


def is_inside(key: str, outer: str) -> bool:
    """Return whether a step ran in another one, which is not complete before it is."""
    return key.startswith(f"{outer}/")


def _is_around(step: OrderedStep, inner: OrderedStep) -> bool:
    """Return whether a step is one in which another one ran.

    A child's wait is named after the step that started the child, which ended before.
    """
    return is_inside(inner.key.rpartition("/")[0] if inner.kind == "child" else inner.key, step.key)


def _is_before(step: OrderedStep, places: dict[str, Place], target: OrderedStep) -> bool:
    """Return whether a step came before another one, or is inside it.

    So does an effect that began before that one did, although a step around that one had begun and failed earlier.
    """
    if _is_around(step, target):
        return False
    place = places[step.key]
    was_sent = step.kind == "effect" and place.first < places[target.key].first
    return place.at < place.before or was_sent or is_inside(step.key, target.key)


def _list_to_repeat(steps: list[OrderedStep], target: OrderedStep, taken: set[str]) -> list[OrderedStep]:
    """List what failed at or after a step, and runs again as after a retry.

    A child that was started before it is retried then, and an effect of which a person said that it did not happen
    keeps its idempotency key.
    """
    failed = [step for step in steps if step.state == "failed" and step.key not in taken]
    return [s for s in failed if s == target or (s.kind == "child" and s.key.rpartition("/")[0] in taken)]


def _has_program(tx: Tx, task: Task | None) -> bool:
    """Return whether a worker ran a task or one from which it continued; True if that is not known any more.

    Its program may take another path when a step ends differently. The steps of other agents come in one order.
    """
    while task is not None and task.runtime_kind != "worker":
        if task.metadata.rerun_from is None:
            return False
        task = tasks.find(tx, task.tenant, task.metadata.rerun_of or "")
    return True


def _require_no_answer(taken: Iterable[OrderedStep]) -> None:
    """Raise Forbidden if a person answered one of these questions: what the answer allowed was done once."""
    for step in taken:
        if step.kind == "question" and step.state == "completed":
            raise Forbidden(
                f"The answer to the question {step.name!r} was given for the first run, and a key with the role agent "
                f"may not use it again. Run the task again from {step.key!r}, which asks again, or use a person's key."
            )


def _require_no_effect(steps: list[OrderedStep], reply: OrderedStep) -> None:
    """Raise Conflict if a call of a model's reply may have had its effect."""
    effects = [step for step in steps if step.kind == "effect" and is_inside(step.key, reply.key)]
    for step in reversed(effects):
        if step.state != "failed":
            raise Conflict(
                f"The call {step.name!r} of {reply.key!r} may have had its effect, and another reply would not know of "
                f"it. Run the task again from {step.key!r}, which sends it again, from a step after that, or from the "
                "start."
            )


def _require_known_order(
    steps: list[OrderedStep], places: dict[str, Place], target: OrderedStep, earlier: list[OrderedStep]
) -> None:
    """Raise Conflict if an effect may have come before a step although it began after it.

    So it may be when one of the `earlier` steps ran again, and the program took another path then.
    """
    again = [s for s in earlier if places[s.key].first != s.last and s.last > places[target.key].first]
    if not again:
        return
    since = min(step.last for step in again)
    for step in steps:
        if step.kind in ("effect", "child") and places[step.key].at > since:
            raise _unknown_order(step, target, min(again, key=lambda s: places[s.key].first))


def _require_known_order_within(
    tx: Tx, task: Task | None, steps: list[OrderedStep], places: dict[str, Place], target: OrderedStep
) -> None:
    """Raise Conflict if an effect may have come before one that was taken over from within a step that ran again."""
    while task is not None and (outer := task.metadata.rerun_from) is not None:
        since = task.task_id
        if is_inside(target.key, outer) and target.last < since:
            again = [s for s in steps if is_inside(s.key, outer) and s.last > since and not _is_around(s, target)]
            new = (s for s in again if s.kind in ("effect", "child") and places[s.key].first > since)
            if unsure := next(new, None):
                raise _unknown_order(unsure, target, min(again, key=lambda s: s.last))
        task = tasks.find(tx, task.tenant, task.metadata.rerun_of or "")


def _unknown_order(step: OrderedStep, target: OrderedStep, earliest: OrderedStep) -> Conflict:
    return Conflict(
        f"It is not known whether the {step.kind} {step.name!r} came before the step {target.name!r}: since then "
        f"{earliest.name!r} ran again. Run the task again from {earliest.key!r}, or from a step that was "
        "recorded after that."
    )


def _read_first_events(tx: Tx, task: Task) -> dict[str, str]:
    """Return the events with which the steps of a task began first, by their keys; those of the other task if there."""
    first: dict[str, str] = {}
    after: str | None = ""
    while after is not None:
        events = read_task_events(tx, task.tenant, task.task_id, MAX_PAGE, after)
        for event in events:
            if event.event_type in _EVENTS:
                meta = event.metadata
                first.setdefault(meta["key"], meta.get("replaces", event.event_id))
        after = events[-1].event_id if len(events) == MAX_PAGE else None
    return first
