"""Runs steps and effects: each once, and the next attempt gets its outcome from the journal.

One piece of code serves both kinds of handlers. An ordinary one passes `here`, with which nothing is awaited, and
`finish` runs the coroutine to its end at once. For a coroutine handler the requests run in threads (`in_thread`), so
that steps side by side do not wait for each other.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from stentor_worker.branches import Branch, cut, is_ending, noting_end, running_in
from stentor_worker.errors import AttemptEnded, EffectFailed, EffectUnknown, StepFailed, Suspended, TaskCancelled
from stentor_worker.journal import (
    CANCELLED,
    Journal,
    Recorded,
    ValueRejected,
    count_cancelled,
    was_cancelled,
)
from stentor_worker.scope import Entry, Scope, current_scope

Send = Callable[[str], Any]
"""Sends an effect with an idempotency key, or asks about it."""
_ENDS = (TaskCancelled, AttemptEnded, Suspended, GeneratorExit)
"""What ends an attempt, and no error of the function that raises it."""
_late: WeakKeyDictionary[asyncio.Task[Any], tuple[int, int]] = WeakKeyDictionary()
"""Asyncio tasks that were cancelled during an effect and began no step since: how often before it, and by then."""
REQUESTS_AT_ONCE = 32
"""Requests that the steps of an attempt send at the same time."""
_request_threads: ContextVar[ThreadPoolExecutor | None] = ContextVar("stentor_request_threads", default=None)
LOST_EVERY = 1.0
"""Seconds between two looks whether the task is still this worker's, while a step waits for its cancellation."""


CUT_EVERY = 0.25
"""Seconds between two checks whether a timeout around a TaskGroup cancels a step that ends with the attempt."""
_COUNTS_CANCELLATIONS = sys.version_info >= (3, 11)


class NotAwaited(TypeError):
    """A function was taken for one that is no coroutine function, and returned an awaitable. It did not run."""


class Caller(Protocol):
    """Calls a function that blocks."""

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]: ...


async def here(function: Callable[..., Any], /, *args: Any) -> Any:
    """Call the function here: the Caller for a handler that is no coroutine."""
    return function(*args)


async def in_thread(function: Callable[..., Any], /, *args: Any) -> Any:
    """Call the function in a thread of `request_threads`: the Caller for a coroutine handler."""
    with noting_end():
        run = partial(copy_context().run, function, *args)
        return await asyncio.get_running_loop().run_in_executor(_request_threads.get(), run)


@contextmanager
def request_threads() -> Iterator[None]:
    """Give the attempt in the block threads of its own for its requests; wait for them at the end.

    Not those of asyncio.to_thread, of which there are few: a step of which the program has the value would be recorded
    only after all the calls that wait there already, and be lost with the worker.
    """
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "stentor-requests") as threads:
        token = _request_threads.set(threads)
        try:
            yield
        finally:
            _request_threads.reset(token)


def find_request_threads() -> ThreadPoolExecutor | None:
    """Return the request threads of the current attempt; None outside it, such as in a thread that the program made."""
    return _request_threads.get()


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in which nothing waits, and return its value."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("A step outside of a coroutine waited for one.")


async def run_step(journal: Journal, entry: Entry, function: Callable[[], Any], call: Caller) -> Any:
    """Run a step, or return its recorded value. Raises StepFailed, also for a recorded error.

    One that a coroutine handler cancels, by a timeout for instance, is recorded as failed: otherwise the next attempt
    could take another path than this one. Where the attempt ends, as beside a wait in a TaskGroup, the cancellation may
    come from that, so the step ends first; cancelled once more, it ends the attempt here too, and the next one runs it.
    """
    if call is here:
        return await _run_step(journal, entry, function, call)
    with noting_end():
        known = journal.find(entry) if journal.is_loaded else None
        if known is not None and not was_cancelled(known):
            # Without waiting, even if it reads a long value: no timeout of the program may fire first, because none did
            # when this was recorded.
            return journal.replay(entry, known)
        return await _run_cancellable(journal, entry, function, call)


async def _run_cancellable(journal: Journal, entry: Entry, function: Callable[[], Any], call: Caller) -> Any:
    within, late = Branch(), _take_late()
    before = count_cancellations() - late
    running = asyncio.ensure_future(_hold_exit(_run_step(journal, entry, function, call, within)))
    running.add_done_callback(_retrieve)
    try:
        if late:
            raise asyncio.CancelledError
        await asyncio.wait([running])
    except asyncio.CancelledError as error:
        around = {one: one.cancelling() for one in entry.list_waiting_tasks()} if _COUNTS_CANCELLATIONS else {}
        if journal.has_ended:
            raise  # the end of the event loop, which cancels what still runs: the next attempt runs it
        recorded = await finish_first(_find(journal, entry, call), set())
        if is_ending() and not was_cancelled(recorded):
            await _end_first(running, within, around)
        else:
            running.cancel()
            await _settle(running)
            if recorded is None and _goes_on_after(running):
                await _record_cancelled(journal, entry, call, error, before, is_late=not running.cancelled())
                raise
            if was_cancelled(recorded):
                await _is_end_cancelled(call(journal.replay, entry, recorded))
                await _wait_for_cancellations(journal, entry, before + count_cancelled(recorded))
                raise
            if running.cancelled():
                return await finish_first(call(journal.replay, entry, recorded), set())
    value, exit_ = running.result()
    if exit_ is not None:
        raise exit_
    return value


async def _end_first(running: asyncio.Future[Any], within: Branch, around: dict[asyncio.Task[Any], int]) -> None:
    """Wait for the end of a step that the end of the attempt has cancelled. Raises what ends the attempt.

    That is Suspended at another cancellation, and at once a failure beside the step that ends the attempt. Not
    CancelledError: after a timeout the program would continue on a path that the next attempt would not repeat.
    `around` has the asyncio tasks of the program around the step, and how often they were cancelled before.
    """
    if (end := cut()) is None:
        end = Suspended()
        with suppress(asyncio.CancelledError):
            # A TaskGroup that ends does not pass on the cancellation by a timeout around it.
            while not running.done() and not any(one.cancelling() > before for one, before in around.items()):
                await asyncio.wait([running], timeout=CUT_EVERY if around else None)
            if running.done():
                return
    within.is_ending, within.cut = True, end
    running.cancel()
    await _settle(running)
    raise end


def _goes_on_after(running: asyncio.Future[Any]) -> bool:
    """Return whether a program may continue after this outcome of a step."""
    if running.cancelled() or isinstance(running.exception(), StepFailed):
        return True
    return running.exception() is None and running.result()[1] is None


async def _record_cancelled(
    journal: Journal, entry: Entry, call: Caller, error: asyncio.CancelledError, before: int, *, is_late: bool
) -> None:
    """Record that a step was cancelled; if its value or its error is recorded already, with an entry of its own.

    The program may assume that all it had begun was cancelled, as at a timeout around a TaskGroup. `before` is how many
    cancellations the caller had before the step.
    """
    if is_late or not await _is_end_cancelled(call(journal.fail, entry, error)):
        await _is_end_cancelled(call(journal.fail, entry.as_cancelled(), error))
    if (times := count_cancellations() - before) > 1:
        if journal.has_ended or is_ending():
            # Perhaps cancelled by the end of the attempt, for which the next attempt would wait in vain. If it was a
            # timeout around another one, the program must not continue after it.
            raise cut() or Suspended
        # Also cancelled by a timeout around another one: the program follows the outer one.
        await _is_end_cancelled(call(journal.fail, entry.as_cancelled(times), error))


async def _is_end_cancelled(outcome: Awaitable[Any]) -> bool:
    """Wait for the outcome of a step that was cancelled, and return whether that is what it says."""
    try:
        await finish_first(outcome, set())
    except StepFailed as failed:
        return failed.code == CANCELLED
    except TaskCancelled:
        return True
    return False


def _retrieve(running: asyncio.Future[Any]) -> None:
    """Retrieve its error, which nobody reads where the attempt has ended: else asyncio logs it as never retrieved."""
    if not running.cancelled():
        running.exception()


async def _hold_exit(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Return the value of a coroutine, or what it exits with, which an asyncio task must not raise.

    It would end the event loop at once, and with it the effects that run in parallel.
    """
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


async def _run_step(
    journal: Journal, entry: Entry, function: Callable[[], Any], call: Caller, within: Branch | None = None
) -> Any:
    recorded = await _find(journal, entry, call)
    if recorded is not None:
        if call is not here and was_cancelled(recorded):
            # Waits until the program cancels it again, so that it takes the same path.
            await _wait_for_cancellation(journal, entry)
        return await call(journal.replay, entry, recorded)
    with _nested(entry, within):
        try:
            value = await _value(entry, function(), call)
        except Exception as error:
            if journal.has_ended or (within is not None and within.cut is not None):
                raise  # perhaps because the handler has closed a resource; the next attempt runs the step
            await call(journal.fail, entry, error)
            raise
    try:
        return await call(journal.complete, entry, value)
    except ValueRejected as error:
        await call(journal.fail, entry, _not_recorded(error))
        raise


async def _wait_for_cancellations(journal: Journal, entry: Entry, count: int) -> None:
    """Wait until the program has cancelled the caller `count` times; not where the attempt ends."""
    while _COUNTS_CANCELLATIONS and count_cancellations() < count and not is_ending():
        with suppress(asyncio.CancelledError):
            await _wait_for_cancellation(journal, entry)


async def _wait_for_cancellation(journal: Journal, entry: Entry) -> None:
    """Wait until the program cancels this; raise TaskCancelled when the task is no longer this worker's."""
    while True:
        journal.require_cancellation(entry)
        await asyncio.sleep(LOST_EVERY)


async def run_effect(
    journal: Journal, entry: Entry, function: Send, check: Send | None, call: Caller, *, idempotent: bool
) -> Any:
    """Send an effect once, or return its recorded value. `function` and `check` get its idempotency key.

    Raises StepFailed if it failed, and EffectUnknown.
    """
    with _nested(entry):
        begun = await _find(journal, entry, call)
        if begun is None or begun["state"] == "started":
            begun = await call(journal.post, entry, "/effects", {})
        if begun["state"] != "started":
            return await call(journal.replay, entry, begun)
        key: str = begun["idempotency_key"]
        is_safe = idempotent or check is not None
        if begun["epoch"] != journal.epoch:
            # An earlier attempt sent it, and ended before it recorded an outcome.
            if check is not None and (value := await _ask(entry, key, check, call)) is not None:
                return await _complete(journal, entry, key, value, call, is_safe=is_safe)
            if not is_safe:
                raise EffectUnknown(entry.name, key)
        try:
            value = await _value(entry, function(key), call)
        except (EffectFailed, NotAwaited) as error:
            await call(journal.fail, entry, error)
            raise
        except _ENDS:
            raise
        except BaseException as error:
            # It may have been sent: a timeout says nothing about the other side. Those of some libraries, and what
            # cancels a coroutine, are no Exceptions.
            value = None if check is None else await _ask(entry, key, check, call)
            if value is None:
                has_raised = isinstance(error, Exception)
                raise EffectUnknown(entry.name, key, error, is_safe=is_safe, has_raised=has_raised) from error
        return await _complete(journal, entry, key, value, call, is_safe=is_safe)


async def finish_first(coroutine: Awaitable[Any], running_effects: set[asyncio.Future[Any]]) -> Any:
    """Run an effect to its end although it is cancelled meanwhile, by a timeout for instance.

    The program would continue without knowing whether the effect happened. It is in `running_effects` until its end.
    """
    before = count_cancellations()
    running = asyncio.ensure_future(coroutine)
    running_effects.add(running)
    running.add_done_callback(running_effects.discard)
    await _settle(running)
    note_late(before)
    with noting_end():
        return running.result()


def note_late(before: int) -> None:
    """Remember for the next step that the caller was cancelled, if it has more than `before` cancellations."""
    caller, cancellations = asyncio.current_task(), count_cancellations()
    if caller is not None and cancellations > before:
        first = min(before, _late[caller][0]) if caller in _late else before
        _late[caller] = first, cancellations


def count_cancellations() -> int:
    """Return how many cancellations of the caller have not ended in a timeout; 0 in Python 3.10, which counts none."""
    caller = asyncio.current_task()
    return caller.cancelling() if caller is not None and _COUNTS_CANCELLATIONS else 0


def _take_late() -> int:
    """Return how many times the caller was cancelled during effects, as by a timeout around them that still holds.

    0 the next time: what the program does about the cancellation is not cancelled by it.
    """
    caller = asyncio.current_task() if _late else None
    if caller is None or caller not in _late:
        return 0
    before, cancellations = _late.pop(caller)
    now = count_cancellations()
    return now - before if now >= cancellations else 0


async def _settle(running: asyncio.Future[Any]) -> None:
    """Wait until it is done, although the caller is cancelled meanwhile."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])


@contextmanager
def _nested(entry: Entry, within: Branch | None = None) -> Iterator[None]:
    """Make the steps that begin meanwhile steps of this one, and what runs the branch `within`."""
    token = current_scope.set(Scope(entry.key + "/"))
    try:
        with nullcontext() if within is None else running_in(within):
            yield
    finally:
        current_scope.reset(token)


async def _find(journal: Journal, entry: Entry, call: Caller) -> Recorded | None:
    found: Recorded | None = journal.find(entry) if journal.is_loaded else await call(journal.find, entry)
    return found


async def _value(entry: Entry, value: Any, call: Caller) -> Any:
    """Return what a function returned, or what it awaits in a coroutine."""
    if not inspect.isawaitable(value):
        return value
    if call is not here:
        return await value
    if inspect.iscoroutine(value):
        value.close()
    raise NotAwaited(
        f"The function of {entry.kind} {entry.name!r} returned an awaitable. Pass the coroutine function itself with "
        f"its arguments: await task.{entry.kind}({entry.name!r}, function, argument)."
    )


async def _ask(entry: Entry, key: str, check: Send, call: Caller) -> Any:
    try:
        return await _value(entry, check(key), call)
    except _ENDS:
        raise
    except BaseException as error:
        raise EffectUnknown(entry.name, key, error, is_safe=True) from error


async def _complete(journal: Journal, entry: Entry, key: str, value: Any, call: Caller, *, is_safe: bool) -> Any:
    try:
        return await call(journal.complete, entry, value)
    except ValueRejected as error:
        raise EffectUnknown(entry.name, key, _not_recorded(error), is_safe=is_safe) from error


def _not_recorded(error: ValueRejected) -> TypeError:
    return TypeError(f"Its value cannot be recorded: {error}")
