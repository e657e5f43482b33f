"""A claimed task as a handler sees it, and the result of a handler."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from stentor_worker.errors import TaskCancelled
from stentor_worker.http.client import Client, ServiceError, segment
from stentor_worker.journal import Journal
from stentor_worker.steps import (
    find_request_threads,
    finish,
    finish_first,
    here,
    in_thread,
    run_effect,
    run_step,
)
from stentor_worker.waits import (
    Child,
    Duration,
    Wait,
    call,
    gather,
    gather_children,
    is_in_loop,
    start_child,
    to_list,
    to_seconds,
)

P = ParamSpec("P")
T = TypeVar("T")

EMIT_EVERY = 0.05
"""Minimum seconds between two batches of streamed tokens."""
MAX_TOKEN = 65_536
"""Most characters of a token, and of a request with tokens, which is well below the limit of a body then."""


@dataclass(frozen=True)
class Result:
    """A value with the agent's own assessment.

    `performance` is in (0, 1], `degraded` marks a fallback result, `cost` is in US dollars.
    """

    value: Any
    performance: float | None = None
    degraded: bool = False
    cost: float | None = None


class Task:
    """A claimed task. `idempotency_key` is the same for every delivery of this attempt."""

    def __init__(self, client: Client, claim: dict[str, Any]) -> None:
        self._client = client
        self._lost = threading.Event()
        self._tokens = deque[str]()
        self._sent_at = 0.0
        # Held during a request, so that texts arrive in the order in which a thread emitted them.
        self._emitting = threading.Lock()
        self._sending: Future[None] | None = None
        """The last request with texts that a coroutine emitted."""
        self.id: str = claim["task_id"]
        self.epoch: int = claim["epoch"]
        self.type: str = claim["type"]
        self.input: Any = claim["input"]
        self.metadata: dict[str, Any] = claim["metadata"]
        self.timeout_seconds: int = claim["timeout_seconds"]
        self.idempotency_key: str = claim["idempotency_key"]
        # A first attempt has nothing to read, unless the task continues from a step of another one.
        is_empty = self.epoch == 1 and "rerun_from" not in self.metadata
        self._journal = Journal(client, self.id, self.epoch, self._lost, is_empty=is_empty)
        self._effects: set[asyncio.Future[Any]] = set()
        """Effects of a coroutine handler that run."""

    @property
    def cancelled(self) -> bool:
        """Whether the task is no longer this worker's; long handlers should check it from time to time."""
        return self._lost.is_set()

    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `function(*args, **kwargs)` once: a later attempt gets its value, or its error, from the journal.

        The value is JSON or bytes, and comes back as JSON has it: a tuple as a list. For a coroutine function, await
        the result. Steps may nest, and run side by side. A worker that dies before the value is recorded runs the
        function again.
        Raises StepFailed for an error of the function, and TaskCancelled. A changed program ends the attempt
        (StepMismatch, no Exception).
        """
        entry, run = self._journal.enter(name, "step"), partial(function, *args, **kwargs)
        if inspect.iscoroutinefunction(function):
            return run_step(self._journal, entry, run, in_thread)
        return finish(run_step(self._journal, entry, run, here))

    def tool_step(
        self, tool: str, name: str, function: Callable[[], Coroutine[Any, Any, T]], /
    ) -> Coroutine[Any, Any, T]:
        """Run a step that is the call of a tool: the same as `step`, and traces show it as that tool's.

        For integrations of frameworks, and for programs that call tools for a model.
        """
        entry = self._journal.enter(name, "step")
        entry.tool = tool
        return run_step(self._journal, entry, function, in_thread)

    def effect(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        check: Callable[[str], Any] | None = None,
        idempotent: bool = False,
    ) -> Any:
        """Do something outside, such as a payment, once: run `function(key, *args)`, and record its value.

        `key` identifies the effect; it is stored before the function runs, and is the same whenever it is sent again.
        If an attempt ends between sending and recording, the next one sends it again with `idempotent=True`, which
        promises that the other side takes the key. With `check` it asks first: `check(key)` returns the value of an
        effect that happened, and None for one that did not. With neither nothing is sent. An error of the function
        says nothing about whether the effect happened: raise EffectFailed if it certainly did not. For coroutine
        functions, await the result; an effect that has begun is not cancelled, so give the function a timeout.
        Raises StepFailed for an EffectFailed; an unknown effect ends the attempt (EffectUnknown, no Exception).
        """
        entry, send = self._journal.enter(name, "effect", is_irreversible=True), partial(_call_with_key, function, args)
        if inspect.iscoroutinefunction(function):
            running = run_effect(self._journal, entry, send, check, in_thread, idempotent=idempotent)
            return finish_first(running, self._effects)
        return finish(run_effect(self._journal, entry, send, check, here, idempotent=idempotent))

    def sleep(self, duration: Duration, *, name: str = "sleep") -> Any:
        """Wait `duration` (seconds or a timedelta). In a coroutine, await it.

        This and the other waits end the attempt: nothing is held in memory. Another one continues here when the wait
        is over, in a minute or in a month. So whatever the handler does before belongs in steps.
        """
        return self._wait(name, "sleep", seconds=to_seconds(duration))

    def wait_for(self, signal: str, timeout: Duration | None = None) -> Any:
        """Wait for a signal (`POST /tasks/{id}/signals`) and return its value. In a coroutine, await it.

        Raises WaitTimeout.
        """
        return self._wait(signal, "signal", signal=signal, seconds=to_seconds(timeout))

    def ask(
        self,
        question: str,
        options: Iterable[str] | None = None,
        timeout: Duration | None = None,
        *,
        name: str = "question",
    ) -> Any:
        """Ask a person and return the answer: one of `options`, or any text. In a coroutine, await it.

        Raises WaitTimeout.
        """
        choices = None if options is None else to_list("options", options)
        return self._wait(name, "question", question=question, options=choices, seconds=to_seconds(timeout))

    def start_child(self, type_: str, input_: Any, *, capabilities: Iterable[str] = (), **fields: Any) -> Any:
        """Submit a child task, and return it as a Child. In a coroutine, await it.

        `fields` are further fields of the submission. A child is submitted once, however often this runs. While the
        task waits for it, it is cancelled with the task. Whether the worker's key may submit it is checked as for any
        other task; StepFailed says that it may not.
        """
        return call(self._start_child(type_, input_, to_list("capabilities", capabilities), fields))

    def child(self, type_: str, input_: Any, *, capabilities: Iterable[str] = (), **fields: Any) -> Any:
        """Submit a child task, wait for its end and return its result. In a coroutine, await it. Raises ChildFailed."""
        start = self._start_child(type_, input_, to_list("capabilities", capabilities), fields)
        return call(lambda: start().begin().run()["result"])

    def _start_child(self, *submission: Any) -> Callable[[], Child]:
        return start_child(self._journal, self.id, self.metadata.get("traceparent"), *submission)

    def gather(self, *items: Any) -> Any:
        """Wait for all children; in a coroutine, `await` it with any awaitables. Returns their results in order.

        Unlike `asyncio.gather` it lets the others finish when one has to wait, so that no work is lost. Of several
        errors it raises the first one, in each attempt the same, unless the program itself raises them in asyncio tasks
        that were made before: pass coroutines. Raises TypeError for anything else, such as a list of children.
        """
        if all(isinstance(item, Child) for item in items):
            return call(gather_children(items))
        if not all(isinstance(item, Child) or (inspect.isawaitable(item) and is_in_loop()) for item in items):
            raise TypeError("Pass children one by one: task.gather(*children). Awaitables need a coroutine handler.")
        return gather([item.result() if isinstance(item, Child) else item for item in items])

    def _wait(self, step_name: str, kind: str, /, **fields: Any) -> Any:
        return call(Wait(self._journal, step_name, kind, fields).run)

    @property
    def waits(self) -> list[str]:
        """The keys of the steps that this attempt waits for."""
        return self._journal.waits

    def open_here(self) -> None:
        """Treat the current thread and asyncio task as the ones of the handler."""
        self._journal.open_here()

    def load(self) -> None:
        """Read what earlier attempts recorded."""
        self._journal.load()

    def require_complete(self) -> None:
        """Raise StepMismatch if an earlier attempt ran a step that this one, at its end, has not run."""
        self._journal.require_complete()

    async def finish_effects(self) -> None:
        """Note the end of the handler, and wait for effects that still run: the end of its loop would cancel them."""
        self._journal.has_ended = True
        while self._effects:
            await asyncio.wait(self._effects)

    def emit(self, text: str) -> None:
        """Stream a part of the output to the watchers of the task. Raises TaskCancelled, and TypeError for no text.

        In a coroutine it does not wait for the request, whose error the next call raises.
        """
        # Checked here: the texts are joined later, where no traceback would show who emitted it.
        if not isinstance(text, str):
            raise TypeError(f"A task emits text, not {type(text).__name__}.")
        self._tokens.append(text)
        if time.monotonic() - self._sent_at < EMIT_EVERY:
            return
        threads = find_request_threads() if is_in_loop() else None
        if threads is None:
            self._send_tokens()
        elif self._sending is None or self._sending.done():
            self._finish_sending()
            # Not here, where all other coroutines would wait for the request, and in an outage for its end.
            self._sending = threads.submit(self._send_tokens)

    def flush(self) -> None:
        """Send the emitted text that is still buffered. Raises TaskCancelled."""
        self._finish_sending()
        self._send_tokens()

    def _finish_sending(self) -> None:
        """Wait for the last request that a coroutine's text caused. Raises its error, but only once."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def _send_tokens(self) -> None:
        with self._emitting:
            self.check()
            # One by one, because a coroutine may emit meanwhile.
            texts = [self._tokens.popleft() for _ in range(len(self._tokens))]
            # JSON cannot hold an unpaired surrogate.
            text = "".join(texts).encode("utf-8", "replace").decode()
            if text:
                self._sent_at = time.monotonic()
            try:
                for start in range(0, len(text), MAX_TOKEN):
                    self.post("tokens", {"tokens": [text[start : start + MAX_TOKEN]]})
            except ServiceError as error:
                # An outage as the worker stops: the text is only shown, and the result may still be reported.
                if not error.is_outage:
                    raise

    def check(self) -> None:
        """Raise TaskCancelled if the task is no longer this worker's."""
        if self.cancelled:
            raise TaskCancelled(self.id)

    def heartbeat(self, lease_seconds: int, timeout_s: float | None = None) -> None:
        """Renew the lease if it is not lost. Never raises; a lost lease shows in `cancelled`."""
        # The next one retries after any error: the lease is long enough to miss one or two.
        with suppress(Exception):
            self.check()
            self.post("heartbeat", {"lease_seconds": lease_seconds}, tries=1, timeout_s=timeout_s)

    def post(self, verb: str, body: dict[str, Any], *, tries: int = 1_000_000, timeout_s: float | None = None) -> None:
        """Report on this attempt. Raises TaskCancelled if the lease is lost, and ServiceError."""
        path, content = f"/tasks/{segment(self.id)}/{verb}", {"epoch": self.epoch, **body}
        try:
            self._client.call("POST", path, content, tries=tries, timeout_s=timeout_s)
        except ServiceError as error:
            # 409 is LEASE_LOST or an ended task, 404 a deleted one: either way another report is pointless.
            if error.status in (404, 409) and not error.is_foreign:
                self._lost.set()
                raise TaskCancelled(self.id) from None
            raise


def _call_with_key(function: Callable[..., Any], args: tuple[Any, ...], key: str) -> Any:
    return function(key, *args)
