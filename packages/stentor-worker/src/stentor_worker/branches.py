"""Concurrent branches in a `gather`: of several errors, each attempt raises the one that came first.

An attempt continues from an error while others still wait, and those may fail later. A timeout cancels none between
the end of its last step and its own end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from stentor_worker.errors import FIRST, AttemptEnded, Failed, Moment, ServiceGone, Suspended, most_urgent, urgency


@dataclass(eq=False)
class Branch:
    """A part of a program that runs in parallel with others in a `gather`, or the function of a step, or a handler.

    A gather's branch has an `outer` one, and `moments`: those of the outcomes that it got. `is_ending` says that the
    attempt ends here, as at a wait, while the other branches continue. `cut` is the exception that ends it although its
    steps have not ended.
    """

    outer: Branch | None = None
    moments: list[Moment] | None = None
    is_ending: bool = False
    cut: BaseException | None = None


MAX_PASSES = 100
"""How many passes of the event loop a timer is held at most: a program may wait by `asyncio.sleep(0)` in a loop."""
_branch: ContextVar[Branch | None] = ContextVar("stentor_branch", default=None)
"""The one that runs here."""


def begin() -> Branch:
    """Return a branch of the `gather` that begins here."""
    return Branch(_branch.get(), [])


def note(step: dict[str, Any]) -> Moment:
    """Return the moment of a step's outcome, and record it for the branch of a `gather` that runs here, if any."""
    # The attempt that began a wait knows its end only if both happened at the same moment: it reads the journal once.
    is_later = step["kind"] not in ("step", "effect") and step["ended_at"] != step["started_at"]
    moment = (step["epoch"] + is_later, step["ended_at"])
    _note_moment(moment)
    return moment


def note_end(error: BaseException) -> None:
    """Note that the attempt ends in the branch that runs here, if that is what the error says."""
    branch, error = _branch.get(), most_urgent([error])
    if branch is not None and isinstance(error, (Suspended, AttemptEnded)):
        branch.is_ending = True
        # A failure does not wait for concurrent steps. If the worker dies before it reports the failure, another
        # attempt continues without a retry.
        if branch.cut is None and not isinstance(error, (Suspended, ServiceGone)):
            branch.cut = error


@contextmanager
def noting_end() -> Iterator[None]:
    """Mark the branch in which the attempt ends, before a TaskGroup cancels its siblings."""
    try:
        yield
    except BaseException as error:
        note_end(error)
        raise


def is_ending() -> bool:
    """Return whether the attempt ends in the branch that runs here, or in one around it."""
    return any(branch.is_ending for branch in _around())


def cut() -> BaseException | None:
    """Return what cuts the branch that runs here, or one around it, if anything does."""
    return next((branch.cut for branch in _around() if branch.cut is not None), None)


def _around() -> Iterator[Branch]:
    # Does not look past a step: cancelling a step does not cancel what runs in it, unless the step is cut off.
    branch = _branch.get()
    while branch is not None:
        yield branch
        branch = branch.outer


@contextmanager
def running_in(branch: Branch) -> Iterator[None]:
    """Treat the code in the block as a branch."""
    token = _branch.set(branch)
    try:
        yield
    finally:
        _branch.reset(token)


def to_results(ends: Iterable[tuple[Branch, Any]]) -> list[Any]:
    """Return what the branches returned. Raises the most urgent of their errors, and of several the first one."""
    ended = [(max(branch.moments or (), default=_moment_of(outcome)), outcome) for branch, outcome in ends]
    errors = [(moment, outcome) for moment, outcome in ended if isinstance(outcome, BaseException)]
    last = max(map(itemgetter(0), ended), default=FIRST)
    moment, error = min(errors, key=lambda branch: (urgency(branch[1]), branch[0]), default=(last, None))
    _note_moment(moment)
    if error is None:
        return [outcome for _, outcome in ended]
    note_end(error)
    raise most_urgent([error])


def fire_timers_when_idle(loop: asyncio.AbstractEventLoop) -> None:
    """Let the timers of an event loop fire only when the program waits, not between two parts of it that may run.

    Otherwise a timeout around a TaskGroup or an `asyncio.gather` could end it after its last step, where no step runs
    that could record it, and the next attempt would take another path. Timers fire in their order, one at a time: what
    the first one wakes runs before the next.
    """
    ready = getattr(loop, "_ready", None)
    if ready is not None:  # a loop of asyncio
        loop.call_at = _IdleTimers(loop, ready).call_at  # type: ignore[method-assign]


class _IdleTimers:
    def __init__(self, loop: asyncio.AbstractEventLoop, ready: Sized) -> None:
        self._loop, self._ready, self._call_at = loop, ready, loop.call_at
        self._passes = 0
        self._held = deque[tuple[int, Callable[[], object], Context]]()
        """Timers that are due: until which pass they are held at most, what fires them, and in which context."""

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        within = copy_context() if context is None else context

        def fire_when_idle() -> None:
            if not self._ready and not self._held:
                callback(*args)
            else:
                self._hold(fire, within)

        def fire() -> None:
            if not handle.cancelled():
                callback(*args)

        handle = self._call_at(when, fire_when_idle, context=within)
        return handle

    def _hold(self, fire: Callable[[], object], within: Context) -> None:
        if not self._held:
            self._loop.call_soon(self._fire_next)
        self._held.append((self._passes + MAX_PASSES, fire, within))

    def _fire_next(self) -> None:
        self._passes += 1
        is_idle = not self._ready
        while self._held and (is_idle or self._held[0][0] <= self._passes):
            _, fire, within = self._held.popleft()
            self._loop.call_soon(fire, context=within)
            is_idle = False
        if self._held:
            self._loop.call_soon(self._fire_next)


def _note_moment(moment: Moment) -> None:
    branch = _branch.get()
    if branch is not None and branch.moments is not None:
        branch.moments.append(moment)


def _moment_of(outcome: Any) -> Moment:
    """Return the moment of an error from an asyncio task that was created before the `gather`."""
    return outcome.moment if isinstance(outcome, Failed) else FIRST
