"""Replays a run with the program as it is now: over what the run recorded, with nothing sent and nothing recorded.

Only code outside of steps runs, as in each attempt.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stentor_worker.errors import AttemptEnded, StepMismatch, Suspended, to_plain
from stentor_worker.http.client import Client, segment
from stentor_worker.journal import Journal, Recorded
from stentor_worker.scope import Entry, outer_keys
from stentor_worker.task import Task

TRIES = 4
MAX_SHOWN = 200
"""Characters of a value in the text of a difference."""
_MISSING = object()
_STARTS = ("#start", "#after/")
"""Keys of waits before the first attempt, which no program makes."""


@dataclass(frozen=True)
class Replay:
    """What a replay found.

    `difference` says in what the program differs from the run first, None if in nothing. `stopped_at` is the step that
    the run did not record, or that has no outcome; `unreached` are the keys of recorded steps that the program did not
    reach. `steps` counts the recorded ones that it reached.
    """

    task_id: str
    difference: str | None
    stopped_at: str | None
    unreached: tuple[str, ...]
    steps: int

    @property
    def is_same(self) -> bool:
        return self.difference is None


class _Stopped(AttemptEnded):
    """The program came to a step without a recorded outcome."""

    def __init__(self, key: str, *, was_sent: bool) -> None:
        super().__init__(f"The step {key!r} has no recorded outcome.", "REPLAY_STOPPED")
        self.key, self.was_sent = key, was_sent


class _NotCancelled(AttemptEnded):
    """The program did not cancel a step that it had cancelled in the run."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The run cancelled the step {key!r}, such as by a timeout, and this program did not.", "REPLAY_STOPPED"
        )


class _ReplayJournal(Journal):
    """A journal that only reads. The first step that it does not have ends the replay."""

    def __init__(self, client: Client, task_id: str, epoch: int, timeout_seconds: float) -> None:
        super().__init__(client, task_id, epoch, threading.Event())
        self._tries, self._timeout_seconds = TRIES, timeout_seconds
        self.found: set[str] = set()
        self._left: set[str] = set()
        """Keys of steps that the run began and did not end: only what ran within them is recorded."""
        self.first: _Stopped | StepMismatch | _NotCancelled | None = None
        """What ended the replay, also if the program continued after it."""

    def find(self, entry: Entry) -> Recorded | None:
        try:
            recorded = super().find(entry)
        except StepMismatch as mismatch:
            self.first = self.first or mismatch
            raise
        if recorded is not None:
            self.found.add(entry.key)
        elif waits := self._list_waits_within(entry):
            # As in the run, which may have continued in the meantime.
            self.waits += waits
            raise Suspended
        is_effect = recorded is not None and recorded["kind"] == "effect"
        if recorded is None or (is_effect and recorded["state"] == "started"):
            stopped = _Stopped(entry.key, was_sent=recorded is not None)
            self.first = self.first or stopped
            raise stopped
        return recorded

    def call(self, method: str, subpath: str, body: Any = None) -> Recorded:
        if method != "GET":
            raise AttemptEnded("A replay records nothing.", "REPLAY_STOPPED")
        return super().call(method, subpath, body)

    def require_cancellation(self, entry: Entry) -> None:
        # No attempt was longer, so no timeout of the program can have been longer.
        if time.monotonic() - entry.began_at >= self._timeout_seconds:
            self.first = self.first or _NotCancelled(entry.key)
            raise _NotCancelled(entry.key)

    def _list_waits_within(self, entry: Entry) -> list[str]:
        """List the waits in which the run left a step, and note that it did."""
        with self._lock:
            within = {key: step for key, step in self._loaded().items() if key.startswith(entry.key + "/")}
            if within:
                self._left.add(entry.key)
                self._forgotten.add(entry.key)
        return [key for key, step in within.items() if step["state"] == "started" and step["kind"] != "effect"]

    def list_unreached(self) -> list[str]:
        """List what is recorded and was not reached, but for what ran within a step that was."""
        with self._lock:
            recorded = self._loaded()
        keys = [key for key in recorded if key not in self.found and not key.startswith(_STARTS)]
        reached = self.found | self._left
        return [key for key in keys if not any(outer in reached for outer in outer_keys(key))]


class ReplayTask(Task):
    """A task as a handler sees it in a replay. What it emits goes nowhere."""

    def __init__(self, client: Client, task: dict[str, Any], task_input: Any) -> None:
        epoch = max(1, task["attempts"])
        claim = {
            "task_id": task["task_id"],
            "epoch": epoch,
            "type": task["type"],
            "input": task_input,
            "metadata": {name: value for name, value in task["metadata"].items() if name != "sender_agent"},
            "timeout_seconds": task["timeout_seconds"],
            "idempotency_key": f"{task['task_id']}:{epoch}",
        }
        super().__init__(client, claim)
        self.journal = _ReplayJournal(client, self.id, epoch, self.timeout_seconds)
        self._journal = self.journal

    def post(self, verb: str, body: dict[str, Any], *, tries: int = 1_000_000, timeout_s: float | None = None) -> None:
        """Send nothing."""


Execute = Callable[[Task], tuple[str, dict[str, Any]]]
"""Runs a handler, and returns verb and body of the report of the attempt."""


def replay(client: Client, task_id: str, execute: Execute) -> Replay:
    """Run the handler over the journal of a task. Raises ServiceError, such as for an unknown task."""
    path = f"/tasks/{segment(task_id)}"
    # An outage ends it: nobody waits hours for a test.
    record = client.call("GET", path, tries=TRIES)
    task = ReplayTask(client, record, client.call("GET", f"{path}/input")["input"])
    journal = task.journal
    verb, body = execute(task)
    first, unreached = journal.first, journal.list_unreached()
    stopped_at = first.key if isinstance(first, _Stopped) else None
    difference = _compare(record, first, verb, body, unreached)
    return Replay(record["task_id"], difference, stopped_at, tuple(unreached), len(journal.found))


def _compare(
    record: dict[str, Any],
    first: _Stopped | StepMismatch | _NotCancelled | None,
    verb: str,
    body: dict[str, Any],
    unreached: list[str],
) -> str | None:
    if isinstance(first, StepMismatch | _NotCancelled):
        return str(first)
    if first is None and verb == "fail" and body["error"]["code"] == "STEP_MISMATCH":
        return str(body["error"]["message"])
    if unreached:
        at = f" before {first.key!r}, which it did not record" if first is not None and not first.was_sent else ""
        return f"The run recorded {unreached[0]!r}{at}, and this program does not reach it."
    if record["status"] == "completed":
        return _compare_end(first, verb, body, record["result"])
    code = record["error"].get("code") if isinstance(record["error"], dict) else None
    # If the run failed and the program now completes, that is not a difference: the change may be the fix.
    if verb == "fail" and first is None and record["status"] == "failed" and code != body["error"]["code"]:
        return f"The run failed with {code}, and this program with {body['error']['code']}: {body['error']['message']}"
    return None


def _compare_end(first: _Stopped | None, verb: str, body: dict[str, Any], result: Any) -> str | None:
    if isinstance(first, _Stopped):
        return f"The run was completed, and this program continues with the step {first.key!r}."
    if verb == "suspend":
        return f"The run was completed, and this program waits for {', '.join(map(repr, body['keys']))}."
    if verb == "fail":
        return f"The run was completed, and this program fails with {body['error']['code']}: {body['error']['message']}"
    now = _through_json(body["result"])
    return (
        None if now == result else f"The steps are the same, and the result differs: {_locate('result', result, now)}."
    )


def _locate(place: str, before: Any, now: Any) -> str:
    """Say where two JSON values differ first, and how."""
    if isinstance(before, dict) and isinstance(now, dict):
        name = next(name for name in {**before, **now} if before.get(name, _MISSING) != now.get(name, _MISSING))
        return _locate(f"{place}[{name!r}]", before.get(name, _MISSING), now.get(name, _MISSING))
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        n = next(n for n, value in enumerate(before) if value != now[n])
        return _locate(f"{place}[{n}]", before[n], now[n])
    if isinstance(before, str) and isinstance(now, str) and max(len(before), len(now)) > MAX_SHOWN:
        pairs = enumerate(zip(before, now, strict=False))
        same = next((n for n, (old, new) in pairs if old != new), min(len(before), len(now)))
        place, before, now = f"{place} from character {same + 1:,}", before[same:], now[same:]
    return f"{place} was {_shorten(before)}, and is {_shorten(now)} now"


def _shorten(value: Any) -> str:
    text = "missing" if value is _MISSING else json.dumps(value, ensure_ascii=False, default=repr)
    return to_plain(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)")


def _through_json(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return value
