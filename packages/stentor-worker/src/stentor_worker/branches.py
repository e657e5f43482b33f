"""What runs side by side in a `gather`: of several errors, each attempt raises the one that came first.

An attempt goes on from an error while others still wait, and those may fail later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import itemgetter
from typing import Any

from stentor_worker.errors import FIRST, Failed, Moment, most_urgent, urgency

_moments: ContextVar[list[Moment] | None] = ContextVar("stentor_moments", default=None)
"""Of the outcomes that the branch which runs here got."""


def note(step: dict[str, Any]) -> Moment:
    """Return the moment of a step's outcome, and record it for the branch of a `gather` that runs here, if any."""
    # The attempt that began a wait knows its end only if that was at the same moment: it reads the journal once.
    is_later = step["kind"] not in ("step", "effect") and step["ended_at"] != step["started_at"]
    moment = (step["epoch"] + is_later, step["ended_at"])
    moments = _moments.get()
    if moments is not None:
        moments.append(moment)
    return moment


@contextmanager
def noting(moments: list[Moment]) -> Iterator[None]:
    """Treat what runs within as a branch, and list the moments of the outcomes that it gets."""
    token = _moments.set(moments)
    try:
        yield
    finally:
        _moments.reset(token)


def to_results(branches: Iterable[tuple[list[Moment], Any]]) -> list[Any]:
    """Return what the branches returned. Raises the most urgent of their errors, and of several the first one."""
    ended = [(max(moments, default=_moment_of(outcome)), outcome) for moments, outcome in branches]
    errors = [(moment, outcome) for moment, outcome in ended if isinstance(outcome, BaseException)]
    last = max(map(itemgetter(0), ended), default=FIRST)
    moment, error = min(errors, key=lambda branch: (urgency(branch[1]), branch[0]), default=(last, None))
    outer = _moments.get()
    if outer is not None:
        outer.append(moment)
    if error is not None:
        raise most_urgent([error])
    return [outcome for _, outcome in ended]


def _moment_of(outcome: Any) -> Moment:
    """Return the moment of an error from an asyncio task that was created before the `gather`."""
    return outcome.moment if isinstance(outcome, Failed) else FIRST
