"""The steps of a task: each runs once, and the next attempt gets its outcome from the journal of the service.

A step is known by its key: its name, the steps that it runs in, and how many of that name began before it. So steps may
run side by side. A changed program is noticed by the order of the steps that run one after another.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from stentor_worker.client import Client, ServiceError, segment
from stentor_worker.errors import (
    EffectFailed,
    EffectUnknown,
    Failed,
    StepFailed,
    StepMismatch,
    Suspended,
    TaskCancelled,
    WaitTimeout,
)

PAGE = 1_000
MAX_MESSAGE = 2_000
_SCALARS = (str, int, bool, type(None))
_NOT_RECORDED = (TaskCancelled, ServiceError, StepMismatch, EffectUnknown)
"""Errors of the attempt, not of the step: the next attempt runs the step again."""

Send = Callable[[str], Any]
"""Sends an effect with an idempotency key, or asks about it."""


@dataclass(eq=False)
class Entry:
    """A step that runs. `position` is None for one that runs beside others.

    `recorded` is what the journal had when it began, None if nothing.
    """

    scope: Scope
    key: str
    name: str
    kind: str
    position: int | None
    recorded: dict[str, Any] | None = None
    began_at: float = field(default_factory=time.monotonic)

    def fields(self) -> dict[str, Any]:
        """Return the fields that name the step in a request."""
        return {"key": self.key, "name": self.name, "position": self.position}


class Scope:
    """The steps that a handler, or another step, runs. Thread-safe.

    Those that begin where the scope was opened, in its thread and its asyncio task, run in the order of the program and
    have positions. Others run side by side, in an order that changes from one attempt to the next.
    """

    def __init__(self, journal: Journal, prefix: str = "") -> None:
        self.journal, self.prefix = journal, prefix
        self._names: Counter[str] = Counter()
        self._ordered = 0
        self._lock = threading.Lock()
        self._home = _place()

    def open_here(self) -> None:
        """Take the present thread and asyncio task for those of the program."""
        self._home = _place()

    def enter(self, name: str, kind: str) -> Entry:
        if not 1 <= len(name) <= 255 or not name.isprintable():
            raise ValueError(f"The name of a step is 1 to 255 printable characters, not {name[:40]!r}.")
        place = _place()
        with self._lock:
            self._names[name] += 1
            count = self._names[name]
            if count > 1 and place[0] != self._home[0]:
                # Which thread comes first is chance, so the next attempt could give each the value of the other.
                raise ValueError(f"Steps that run in threads need names of their own, and {name!r} began before.")
            # Escaped, so that no name looks like a path or a count.
            key = self.prefix + quote(name, safe=" :,;=()") + (f"#{count}" if count > 1 else "")
            if place != self._home:
                return Entry(self, key, name, kind, None)
            self._ordered += 1
            return Entry(self, key, name, kind, self._ordered - 1)


def _place() -> tuple[int, int | None]:
    """Return the thread and the asyncio task in which this runs."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), None if task is None else id(task)


_current_scope: ContextVar[Scope | None] = ContextVar("stentor_scope", default=None)


class Journal:
    """The journal of one task in one attempt. Thread-safe."""

    def __init__(self, client: Client, task_id: str, epoch: int, on_lost: Callable[[], None]) -> None:
        self._epoch, self._on_lost = epoch, on_lost
        self._path = f"/tasks/{segment(task_id)}"
        # A first attempt has nothing to read.
        self._recorded: dict[str, dict[str, Any]] | None = {} if epoch == 1 else None
        self._expected: dict[str, dict[int, dict[str, Any]]] = {}
        """Steps of an earlier attempt that did not begin yet in this one, by scope and position."""
        self._lock = threading.Lock()
        self._root = Scope(self)
        self.client = client
        self.waits: list[str] = []
        """Keys of the steps that this attempt waits for."""

    def run(self, name: str, function: Callable[[], Any]) -> Any:
        """Run a step, or return its recorded value. Raises StepFailed, also for a recorded error."""
        with self._enter(name, "step") as entry:
            self._find(entry)
            if entry.recorded is not None:
                return self._replay(entry, entry.recorded)
            try:
                value = function()
                _require_plain(name, value)
            except Exception as error:
                self._fail(entry, error)
                raise
            return self._complete(entry, value)

    def open_here(self) -> None:
        """Take the present thread and asyncio task for those in which the handler runs its steps in order."""
        self._root.open_here()

    def enter(self, name: str, kind: str, scope: Scope | None = None) -> Entry:
        """Begin a step that nothing nests in, for `wait` or `run_keyed`.

        Called in the order of the program, so that steps side by side always get the same keys.
        """
        return (scope or self._scope()).enter(name, kind)

    def run_keyed(self, entry: Entry, function: Send) -> Any:
        """Run a step with a function that gets its key, or return its recorded value."""
        self._find(entry)
        if entry.recorded is not None:
            return self._replay(entry, entry.recorded)
        return self._complete(entry, function(entry.key))

    def wait(self, entry: Entry, fields: dict[str, Any]) -> Any:
        """Return what the task waited for. Raises Suspended while it waits, WaitTimeout, and StepFailed."""
        self._find(entry)
        step = entry.recorded
        if step is None or step["state"] == "started":
            given = {key: value for key, value in fields.items() if value is not None}
            step = self._post("/waits", entry.fields() | given | {"kind": entry.kind})
        if step["state"] == "started":
            with self._lock:
                self.waits.append(entry.key)
            raise Suspended
        if step["state"] == "failed" and step["error"]["type"] == WaitTimeout.__name__:
            raise WaitTimeout(entry.name, step["error"]["message"])
        return self._replay(entry, step)

    async def run_async(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Do the same as `run` with a coroutine function."""
        # The requests run in a thread, so that steps side by side do not wait for each other.
        with self._enter(name, "step") as entry:
            await self._find_async(entry)
            if entry.recorded is not None:
                return await asyncio.to_thread(self._replay, entry, entry.recorded)
            try:
                value = await function()
            except Exception as error:
                await asyncio.to_thread(self._fail, entry, error)
                raise
            return await asyncio.to_thread(self._complete, entry, value)

    def run_effect(self, name: str, function: Send, check: Send | None, *, idempotent: bool) -> Any:
        """Send an effect once, or return its recorded value. `function` and `check` get its idempotency key.

        Raises StepFailed if it failed, and EffectUnknown.
        """
        with self._enter(name, "effect") as entry:
            return self._send(entry, function, check, idempotent=idempotent)

    async def run_effect_async(
        self,
        name: str,
        function: Callable[[str], Awaitable[Any]],
        check: Callable[[str], Awaitable[Any]] | None,
        *,
        idempotent: bool,
    ) -> Any:
        """Do the same as `run_effect` with coroutine functions."""
        loop = asyncio.get_running_loop()

        def wait_for(call: Callable[[str], Awaitable[Any]]) -> Send:
            return lambda key: asyncio.run_coroutine_threadsafe(_await(call(key)), loop).result()

        # In a thread, which waits for the coroutines of this loop.
        checked = wait_for(check) if check else None
        with self._enter(name, "effect") as entry:
            return await asyncio.to_thread(self._send, entry, wait_for(function), checked, idempotent=idempotent)

    def require_complete(self) -> None:
        """Raise StepMismatch if an earlier attempt ran a step alone that this attempt, at its end, has not run."""
        with self._lock:
            missing = next((step for steps in self._expected.values() for step in steps.values()), None)
        if missing is not None:
            raise StepMismatch(missing["name"], None)

    @contextmanager
    def _enter(self, name: str, kind: str) -> Iterator[Entry]:
        entry = self._scope().enter(name, kind)
        token = _current_scope.set(Scope(self, entry.key + "/"))
        try:
            yield entry
        finally:
            _current_scope.reset(token)

    def _scope(self) -> Scope:
        scope = _current_scope.get()
        return scope if scope is not None and scope.journal is self else self._root

    def _send(self, entry: Entry, function: Send, check: Send | None, *, idempotent: bool) -> Any:
        self._find(entry)
        begun = entry.recorded
        if begun is None or begun["state"] == "started":
            begun = self._post("/effects", entry.fields())
        if begun["state"] != "started":
            return self._replay(entry, begun)
        key: str = begun["idempotency_key"]
        if begun["epoch"] != self._epoch:
            # An earlier attempt sent it, and ended before it recorded an outcome.
            if check is not None and (value := check(key)) is not None:
                return self._complete(entry, value)
            if check is None and not idempotent:
                raise EffectUnknown(entry.name, key)
        return self._complete(entry, self._call(entry, key, function, check, idempotent=idempotent))

    def _call(self, entry: Entry, key: str, function: Send, check: Send | None, *, idempotent: bool) -> Any:
        try:
            value = function(key)
            _require_plain(entry.name, value)
            return value
        except EffectFailed as error:
            self._fail(entry, error)
            raise
        except _NOT_RECORDED:
            raise
        except Exception as error:
            # It may have been sent: a timeout says nothing about the other side.
            if check is not None and (value := check(key)) is not None:
                return value
            if check is not None or idempotent:
                raise
            raise EffectUnknown(entry.name, key) from error

    async def _find_async(self, entry: Entry) -> None:
        if self._recorded is None:
            await asyncio.to_thread(self._find, entry)
        else:
            self._find(entry)

    def _find(self, entry: Entry) -> None:
        """Look the step up. Raises StepMismatch if the journal has another step in its place."""
        with self._lock:
            if self._recorded is None:
                self._recorded = self._load()
            recorded = entry.recorded = self._recorded.get(entry.key)
            scope = self._expected.get(entry.scope.prefix, {})
            expected = None if entry.position is None else scope.pop(entry.position, None)
            if expected is not None and expected["key"] != entry.key:
                raise StepMismatch(expected["name"], entry.name)
            if recorded is not None and recorded["state"] != "started":
                # It does not run, so the steps in it do not begin.
                self._forget(entry.key + "/")
        if recorded is not None and recorded["kind"] != entry.kind:
            raise StepMismatch(f"{recorded['name']} ({recorded['kind']})", f"{entry.name} ({entry.kind})")

    def _forget(self, prefix: str) -> None:
        for scope in [scope for scope in self._expected if scope.startswith(prefix)]:
            del self._expected[scope]

    def _load(self) -> dict[str, dict[str, Any]]:
        steps: dict[str, dict[str, Any]] = {}
        superseded: list[tuple[str, int]] = []
        query = f"?limit={PAGE}"
        while True:
            page = self.client.call("GET", self._path + "/steps" + query)
            for step in page["steps"]:
                scope, position = step["key"][: step["key"].rfind("/") + 1], step["position"]
                if step["superseded"]:
                    superseded.append((scope, -1 if position is None else position))
                    continue
                steps[step["key"]] = step
                if position is not None:
                    self._expected.setdefault(scope, {})[position] = step
            if page["next_cursor"] is None:
                break
            query = f"?limit={PAGE}&cursor={page['next_cursor']}"
        for scope, position in superseded:
            # It runs again and may end in another way, after which the program need not do what it did before.
            self._forget_after(scope, position)
        return steps

    def _forget_after(self, scope: str, position: int) -> None:
        later = [n for n in self._expected.get(scope, {}) if n > position]
        for step in [self._expected[scope].pop(n) for n in later]:
            self._forget(step["key"] + "/")

    def _replay(self, entry: Entry, recorded: dict[str, Any]) -> Any:
        """Return the recorded value, or raise the recorded error."""
        if recorded["state"] == "failed":
            raise StepFailed(entry.name, recorded["error"]["type"], recorded["error"]["message"])
        value = recorded["value"]
        if recorded["value_sha256"] is not None and value is None:
            value = self.client.call("GET", f"{self._path}/steps/{segment(entry.key)}")["value"]
        return base64.b64decode(value) if recorded["encoding"] == "base64" else value

    def _complete(self, entry: Entry, value: Any) -> Any:
        """Record the value, and return it as the next attempt would get it: after JSON."""
        fields: dict[str, Any] = {"value": value}
        if isinstance(value, bytes | bytearray):
            value = bytes(value)
            fields = {"value": base64.b64encode(value).decode(), "encoding": "base64"}
        elif not isinstance(value, _SCALARS):
            fields = {"value": json.loads(_to_json(entry.name, value))}
            value = fields["value"]
        return self._record(entry, fields, value)

    def _fail(self, entry: Entry, error: Exception) -> None:
        """Record the error and raise StepFailed; return for an error of the attempt."""
        if isinstance(error, _NOT_RECORDED):
            return
        kind, message = type(error).__name__[:255], str(error)[:MAX_MESSAGE]
        self._record(entry, {"error": {"type": kind, "message": message}}, None)
        raise StepFailed(entry.name, kind, message) from error

    def _record(self, entry: Entry, outcome: dict[str, Any], value: Any) -> Any:
        duration_ms = int((time.monotonic() - entry.began_at) * 1000)
        response = self._post("/steps", entry.fields() | outcome | {"kind": entry.kind, "duration_ms": duration_ms})
        return value if response["recorded"] else self._replay(entry, response)

    def _post(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response: dict[str, Any] = self.client.call("POST", self._path + verb, {"epoch": self._epoch, **body})
        except ServiceError as error:
            if error.code in ("STEP_MISMATCH", "STEP_UNKNOWN", "CONFLICT") or error.status in (400, 413):
                # Another attempt would get the same answer.
                raise Failed(f"Step {body['name']!r} was rejected: {error}", "STEP_REJECTED") from None
            if error.status not in (404, 409):
                raise
            self._on_lost()
            raise TaskCancelled(self._path) from None
        return response


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _require_plain(name: str, value: Any) -> None:
    """Raise TypeError for the coroutine of a function that was not recognized as a coroutine function."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            f"The function of step {name!r} returned an awaitable. Pass the coroutine function itself with its "
            f"arguments: await task.step({name!r}, function, argument)."
        )


def _to_json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"The value of step {name!r} is neither JSON nor bytes: {error}.") from None
