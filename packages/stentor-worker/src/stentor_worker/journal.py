"""The journal of a task as one attempt sees it: what earlier attempts recorded, and what this one does."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from stentor_worker.branches import note
from stentor_worker.errors import (
    MAX_CODE,
    AttemptEnded,
    ChildFailed,
    Failed,
    ServiceGone,
    StepFailed,
    StepMismatch,
    TaskCancelled,
    WaitTimeout,
    to_code,
    to_message,
    to_plain,
)
from stentor_worker.http.client import Client, ServiceError, segment
from stentor_worker.scope import WAS_CANCELLED, Entry, Scope, current_scope, outer_keys

PAGE = 1_000
READS_AHEAD = 8
"""Long values that are read at once, and kept until the program comes to them: each may have megabytes."""
MAX_HANDLED = 1_000
"""Keys of handled steps in a request."""
CANCELLED = "STEP_CANCELLED"
"""Code of the error of a step that the program cancelled."""
_SAME_IN_JSON = (str, bool, type(None))
Recorded = dict[str, Any]
"""A step as the service returns it."""


class ValueRejected(Exception):
    """The value of a step cannot be recorded: it is neither JSON nor bytes, or too long for the service."""


class Journal:
    """The journal of one task in one attempt. Thread-safe."""

    def __init__(
        self, client: Client, task_id: str, epoch: int, lost: threading.Event, *, is_empty: bool = False
    ) -> None:
        self.client, self.epoch, self._lost = client, epoch, lost
        self._path = f"/tasks/{segment(task_id)}"
        self._recorded: dict[str, Recorded] | None = {} if is_empty else None
        self._superseded: dict[str, Recorded] = {}
        """Failed steps that run again, because a person retried the task."""
        self._expected: dict[str, dict[int, Recorded]] = {}
        """Steps of an earlier attempt that did not begin yet in this one, by scope and position."""
        self._forgotten: set[str] = set()
        """Keys of steps within which no step is expected."""
        self._handled: list[str] = []
        """Keys of failed steps whose error the program handled; sent with the next irreversible step."""
        self._timeouts: set[str] = set()
        """Those of waits whose time was over; sent with the next wait too, so that a retry does not wait again."""
        self._values = _LongValues(lambda key: client.call("GET", f"{self._path}/steps/{segment(key)}", tries=1))
        self._tries = 1_000_000
        self._lock = threading.Lock()
        self._root = Scope()
        self.waits: list[str] = []
        """Keys of the steps that this attempt waits for."""
        self.has_ended = False
        """Whether a coroutine handler has ended, though steps that it did not await may still run."""

    def open_here(self) -> None:
        """Treat the current thread and asyncio task as the ones in which the handler runs its steps in order."""
        self._root.open_here()

    def enter(self, name: str, kind: str, scope: Scope | None = None, *, is_irreversible: bool = False) -> Entry:
        """Begin a step in the scope of the step that runs here. Call it in the order of the program."""
        entry = (scope or current_scope.get() or self._root).enter(name, kind, is_irreversible=is_irreversible)
        with self._lock:
            self._handled += entry.handled
        return entry

    @property
    def is_loaded(self) -> bool:
        """Whether `find` sends no request."""
        return self._recorded is not None

    def load(self) -> None:
        """Read now what earlier attempts recorded, so that no timeout of the program includes the time it takes."""
        with self._lock:
            self._loaded()

    def find(self, entry: Entry) -> Recorded | None:
        """Return what is recorded of a step. Raises StepMismatch if the journal has another step in its place."""
        with self._lock:
            # Under the lock, so that concurrent steps load the journal once.
            steps = self._loaded()
            recorded = steps.get(entry.key + WAS_CANCELLED) or steps.get(entry.key)
            prefix = entry.scope.prefix
            scope = {} if self._is_forgotten(prefix) else self._expected.get(prefix, {})
            # Popped: what is left at the end of the program was never run again.
            expected = None if entry.position is None else scope.pop(entry.position, None)
            if expected is not None and expected["key"] != entry.key:
                raise StepMismatch(_label(expected["key"], expected["name"]), _label(entry.key, entry.name))
            if recorded is not None and recorded["state"] != "started":
                # It does not run, so the steps in it do not begin.
                self._forgotten.add(entry.key)
        if recorded is not None and recorded["kind"] != entry.kind:
            raise StepMismatch(f"{recorded['name']} ({recorded['kind']})", f"{entry.name} ({entry.kind})")
        return recorded

    def is_recorded(self, entry: Entry) -> bool:
        """Return whether the journal has a step with this key; it need not be the same step."""
        with self._lock:
            return entry.key in self._loaded()

    def superseded(self, entry: Entry) -> Recorded | None:
        """Return the failed step that runs again as this one."""
        return self._superseded.get(entry.key)

    def replay(self, entry: Entry, recorded: Recorded) -> Any:
        """Return the recorded value, or raise the recorded error: StepFailed, WaitTimeout, ChildFailed."""
        moment = note(recorded)
        if recorded["state"] == "failed":
            if was_cancelled(recorded):
                # Stored under the key of the step that shows it: a retry of the task must not forget it.
                entry = replace(entry, key=recorded["key"])
            entry.scope.note_failed(entry)
            error = _recorded_error(entry, recorded)
            error.moment = moment
            if isinstance(error, WaitTimeout):
                self._timeouts.add(entry.key)
            raise error
        value = recorded["value"]
        if _is_value_elsewhere(recorded):
            step = self._values.take(entry.key)
            value = (self.call("GET", f"/steps/{segment(entry.key)}") if step is None else step)["value"]
        return base64.b64decode(value) if recorded["encoding"] == "base64" else value

    def complete(self, entry: Entry, value: Any) -> Any:
        """Record the value, and return it as the next attempt would get it: after JSON. Raises ValueRejected."""
        fields: dict[str, Any] = {"value": value}
        if isinstance(value, bytes | bytearray):
            # A copy, as the program may change a bytearray while it is sent.
            value = bytes(value)
            fields = {"value": base64.b64encode(value).decode(), "encoding": "base64"}
        elif type(value) not in _SAME_IN_JSON:  # not of a subclass either, such as an enum of strings
            fields = {"value": json.loads(_to_json(value))}
            value = fields["value"]
        step = self._record(entry, fields)
        if not step["recorded"]:
            return self.replay(entry, step)
        note(step)
        return value

    def fail(self, entry: Entry, error: BaseException) -> Any:
        """Record the error and raise StepFailed, or return a value that was recorded before.

        If the task was cancelled, return without recording.
        """
        if isinstance(error, TaskCancelled):
            return None
        fields: dict[str, Any] = {"type": to_plain(type(error).__name__)[:MAX_CODE], "message": to_message(error)}
        if isinstance(error, Failed):
            fields |= {"code": to_code(error.code), "outcome_class": error.outcome_class}
        if isinstance(error, asyncio.CancelledError):
            fields |= {"code": CANCELLED, "message": "The program cancelled the step, such as by a timeout."}
        try:
            step = self._record(entry, {"error": fields})
        except ValueRejected as rejected:
            raise AttemptEnded(f"The error of step {entry.name!r} was rejected: {rejected}", "STEP_REJECTED") from error
        if not step["recorded"]:
            return self.replay(entry, step)
        entry.scope.note_failed(entry)
        failed = StepFailed(entry.name, fields)
        failed.moment = note(step)
        if isinstance(error, Failed):
            # Not recorded with the step: a later attempt that gets this error again has not paid for it.
            failed.cost = error.cost
        raise failed from error

    def post(self, entry: Entry, subpath: str, fields: dict[str, Any]) -> Recorded:
        """Send a step. Raises ValueRejected, TaskCancelled, and AttemptEnded."""
        body, handled = {"epoch": self.epoch, **entry.fields(), **fields}, self._take_handled(entry)
        # So that a retry by a person does not run these failed steps again: a success would come on top of this effect.
        # The request may be repeated: what was recorded first counts.
        parts = [{"handled": handled[n : n + MAX_HANDLED]} for n in range(0, len(handled), MAX_HANDLED)] or [{}]
        try:
            first, *_ = [self.call("POST", subpath, body | part) for part in parts]
        except ValueRejected:
            with self._lock:
                self._handled = handled + self._handled
            raise
        return first

    def note_replayed_wait(self, entry: Entry) -> None:
        """Keep later waits from recording the timeouts that were handled before this one, which has recorded them.

        Otherwise each attempt would send them all again. An effect still does: an earlier version of this package may
        have made the wait, and recorded none.
        """
        with self._lock:
            self._timeouts.difference_update(entry.handled)

    def call(self, method: str, subpath: str, body: Any = None) -> Recorded:
        """Call the service about this task. Raises ValueRejected, TaskCancelled, and AttemptEnded."""
        try:
            response: Recorded = self.client.call(method, self._path + subpath, body, tries=self._tries)
        except ServiceError as error:
            if error.code in ("STEP_MISMATCH", "STEP_UNKNOWN", "CONFLICT"):
                code = "STEP_MISMATCH" if error.code == "STEP_MISMATCH" else "STEP_REJECTED"
                raise AttemptEnded(error.message, code) from None
            if error.status in (400, 413):
                raise ValueRejected(error.message) from None
            # After the codes above: a 409 of another kind says that the attempt is no longer this worker's.
            if error.status in (404, 409) and not error.is_foreign:
                self._lost.set()
                raise TaskCancelled(self._path) from None
            if error.is_outage:
                raise ServiceGone(str(error), error.code) from None
            raise AttemptEnded(str(error), error.code, "provider_failure") from None
        except UnicodeEncodeError as error:
            raise ValueRejected(f"it is not Unicode text: {error}") from None
        return response

    def require_cancellation(self, entry: Entry) -> None:
        """Raise TaskCancelled if it is no longer necessary to wait for the cancellation of a step."""
        if self._lost.is_set():
            raise TaskCancelled(self._path)

    def require_complete(self) -> None:
        """Raise StepMismatch if an earlier attempt ran an ordered step that this attempt, at its end, has not run."""
        with self._lock:
            # Also for a program that reached no step at all.
            self._loaded()
            scopes = (steps for scope, steps in self._expected.items() if steps and not self._is_forgotten(scope))
            missing = next((step for steps in scopes for step in steps.values()), None)
        if missing is not None:
            raise StepMismatch(_label(missing["key"], missing["name"]), None)

    def _is_forgotten(self, prefix: str) -> bool:
        """Return whether no step is expected in a scope. Call it with the lock."""
        # Asked by scope: to look for the scopes of each step that is found takes long in a journal with many.
        return any(outer in self._forgotten for outer in outer_keys(prefix))

    def _loaded(self) -> dict[str, Recorded]:
        """Return the recorded steps by key. Call it with the lock."""
        if self._recorded is None:
            self._recorded = self._load()
        return self._recorded

    def _load(self) -> dict[str, Recorded]:
        steps: dict[str, Recorded] = {}
        query = f"?limit={PAGE}"
        while True:
            page = self.call("GET", "/steps" + query)
            for step in page["steps"]:
                if step["superseded"]:
                    self._superseded[step["key"]] = step
                    continue
                cancelled, is_repeated, _ = step["key"].partition(f"{WAS_CANCELLED}#")
                steps[cancelled + WAS_CANCELLED if is_repeated else step["key"]] = step
                if step["position"] is not None:
                    self._expected.setdefault(_scope_of(step), {})[step["position"]] = step
            if page["next_cursor"] is None:
                break
            query = f"?limit={PAGE}&cursor={page['next_cursor']}"
        self._forget_left([*steps.values(), *self._superseded.values()])
        elsewhere = (key for key, step in steps.items() if _is_value_elsewhere(step) and _is_reached(step, steps))
        self._values.keys = dict.fromkeys(elsewhere)
        return steps

    def _forget_left(self, steps: list[Recorded]) -> None:
        """Expect no step that the program may not come to: one before it ran again after a retry, or will now."""
        newest: dict[str, float] = {}
        for step in sorted(steps, key=lambda step: -1 if step["position"] is None else step["position"]):
            scope, is_again = _scope_of(step), step["key"] in self._superseded
            if step["position"] is None and not is_again:
                continue
            if step["epoch"] < newest.get(scope, 0):
                self._expected.get(scope, {}).pop(step["position"], None)
                self._forgotten.add(step["key"])
            newest[scope] = math.inf if is_again else max(newest.get(scope, 0), step["epoch"])

    def _take_handled(self, entry: Entry) -> list[str]:
        """Return the keys of handled steps that are recorded with this one, and forget them."""
        is_wait = entry.kind not in ("step", "effect")
        if not entry.is_irreversible and not is_wait:
            return []
        with self._lock:
            taken = {key: None for key in self._handled if entry.is_irreversible or key in self._timeouts}
            self._handled = [key for key in self._handled if key not in taken]
        return list(taken)

    def _record(self, entry: Entry, outcome: dict[str, Any]) -> Recorded:
        """Record an outcome. If `recorded` is false, another request of this attempt did first: that one counts.

        That may be one whose response was lost.
        """
        duration_ms = int((time.monotonic() - entry.began_at) * 1000)
        fields = outcome | {"kind": entry.kind, "duration_ms": duration_ms}
        fields |= {} if entry.tool is None else {"tool": entry.tool}
        return self.post(entry, "/steps", fields)


class _LongValues:
    """Long values of recorded steps, read ahead in threads in the order of the journal, which the program repeats.

    A step returns its value without waiting, so a `gather` would read them one after another.
    """

    def __init__(self, read: Callable[[str], Recorded]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._reads: dict[str, Future[Recorded]] = {}
        self.keys: dict[str, None] = {}
        """Keys of the steps whose values are still to be read, in the order of the journal."""

    def take(self, key: str) -> Recorded | None:
        """Return a step with its value, and read the next ones; None if it was not read ahead or that failed."""
        with self._lock:
            self.keys.pop(key, None)
            while self.keys and len(self._reads) < READS_AHEAD:
                ahead = next(iter(self.keys))
                del self.keys[ahead]
                self._reads[ahead] = future = Future[Recorded]()
                try:
                    # Daemons, and without repetitions in an outage: they must not keep the program from ending.
                    threading.Thread(target=self._run, args=(ahead, future), daemon=True).start()
                except RuntimeError as error:  # no more threads: it is read when the program comes to it
                    future.set_exception(error)
            read = self._reads.pop(key, None)
        return None if read is None or read.exception() is not None else read.result()

    def _run(self, key: str, read: Future[Recorded]) -> None:
        try:
            read.set_result(self._read(key))
        except Exception as error:  # noqa: BLE001 - whoever needs it reads it again
            read.set_exception(error)


def was_cancelled(step: Recorded | None) -> bool:
    """Return whether the program cancelled a recorded step."""
    return step is not None and step["error"] is not None and step["error"].get("code") == CANCELLED


def count_cancelled(step: Recorded) -> int:
    """Return how many times the program cancelled a step, from the entry that records it."""
    return int(step["key"].partition(f"{WAS_CANCELLED}#")[2] or 1)


def _is_value_elsewhere(step: Recorded) -> bool:
    """Return whether the page of the journal has left the value of a step out, as it does with long ones."""
    return step.get("value_sha256") is not None and step["value"] is None


def _is_reached(step: Recorded, steps: dict[str, Recorded]) -> bool:
    """Return whether the program may come to a step: not if one around it has ended, which does not run again."""
    outer = (steps.get(key) for key in outer_keys(step["key"]))
    return all(one is None or one["state"] == "started" for one in outer)


def _label(key: str, name: str) -> str:
    """Return the name of a step, with its number if others of this name began before: `poll`, then `poll#2`."""
    return name + "".join(key[key.rfind("/") + 1 :].partition("#")[1:])


def _scope_of(step: Recorded) -> str:
    return str(step["key"])[: step["key"].rfind("/") + 1]


def _recorded_error(entry: Entry, recorded: Recorded) -> Failed:
    error = recorded["error"]
    if error["type"] == WaitTimeout.__name__ and entry.kind in ("signal", "question", "child"):
        return WaitTimeout(entry.name, error["message"])
    if entry.kind == "child":
        return ChildFailed(entry.name, recorded["waits_for"], error.get("status", "gone"), error.get("error"))
    return StepFailed(entry.name, error)


def _to_json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueRejected(f"it is neither JSON nor bytes: {error}") from None
