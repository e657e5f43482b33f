"""Flaws that a test plants in a worker, to show that the checker finds them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from stentor_worker import Task, steps
from stentor_worker.journal import Journal, Recorded
from stentor_worker.scope import Entry
from tests.faults.kills.plain import Attempt, Json


def _run_again() -> None:
    """Forget that steps are recorded."""
    find = Journal.find

    def forgetful(journal: Journal, entry: Entry) -> Recorded | None:
        found = find(journal, entry)
        is_forgotten = found is not None and (found["kind"], found["state"]) == ("step", "completed")
        return None if is_forgotten and random.random() < 0.5 else found

    Journal.find = forgetful  # type: ignore[method-assign]


def _change_keys() -> None:
    """Give an effect another key in each attempt."""
    post = Journal.post

    def other(journal: Journal, entry: Entry, subpath: str, fields: dict[str, Any]) -> Recorded:
        answer = post(journal, entry, subpath, fields)
        if "idempotency_key" in answer:
            answer["idempotency_key"] += f" {journal.epoch}"
        return answer

    Journal.post = other  # type: ignore[method-assign]


def _repeat_held() -> None:
    """Send an effect again of which it is not known whether it happened."""
    effect = Task.effect

    def careless(task: Task, *args: Any, **options: Any) -> Any:
        return effect(task, *args, **options | {"idempotent": True, "check": None})

    Task.effect = careless  # type: ignore[method-assign]


def _forget_cancellations() -> None:
    """Record of no step that the program cancelled it, so that the next attempt may take another way."""

    async def nothing(*_: Any, **__: Any) -> None: ...

    steps._record_cancelled = nothing


def _repeat_held_plainly() -> None:
    """Send an effect again, in a worker without the SDK, without a look at the attempt that began it."""
    post = Attempt._post

    def careless(attempt: Attempt, verb: str, **fields: Any) -> Json:
        answer = post(attempt, verb, **fields)
        return answer | {"epoch": attempt._epoch} if verb == "effects" else answer

    Attempt._post = careless  # type: ignore[method-assign]


def _run_again_plainly() -> None:
    """Begin, in a worker without the SDK, without what the journal says of some steps."""
    read = Attempt._read_journal

    def forgetful(attempt: Attempt) -> None:
        read(attempt)
        attempt._journal = {key: step for key, step in attempt._journal.items() if random.random() < 0.5}

    Attempt._read_journal = forgetful  # type: ignore[method-assign]


PLANTS: dict[str, tuple[Callable[[], None], str]] = {
    "run again": (_run_again, "ran in attempt"),
    "other keys": (_change_keys, r"happened (?!0 )"),
    "held repeated": (_repeat_held, r"\(blind\) happened (?!0 )"),
    "plain held repeated": (_repeat_held_plainly, r"\(blind\) happened (?!0 )"),
    "plain run again": (_run_again_plainly, "ran in attempt"),
    "cancellation forgotten": (_forget_cancellations, "went on with its outcome"),
}
"""How to plant a flaw, and what the checker says of it, as a regular expression."""
