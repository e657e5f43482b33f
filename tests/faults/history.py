"""What clients and workers were told, and whether the database stands by it afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.checker import ENDS, check, query, read_only

RETRIES = "select task_id from events where event_type = 'routing_decision' and metadata like '%\"retry_count\"%'"
"""Each gives its task another life."""


@dataclass
class History:
    """Safe to write from many threads. `flaws` are answers that contradict each other, seen as they came."""

    accepted: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By id: the first answer with 202."""
    asked: set[str] = field(default_factory=set)
    """Every id that was ever sent."""
    cancelled: dict[str, float] = field(default_factory=dict)
    """By id: when 200 was answered to a cancellation, monotonic seconds."""
    finished: dict[str, set[int]] = field(default_factory=dict)
    """By id: the attempts whose worker was answered 200 to its result."""
    ended: dict[str, str] = field(default_factory=dict)
    """By id: the end that a client has read; forgotten when it asks for a retry."""
    answers: Counter[str] = field(default_factory=Counter)
    flaws: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def was_accepted(self, task_id: str, answer: dict[str, Any]) -> None:
        with self._lock:
            first = self.accepted.setdefault(task_id, answer)
            if first != answer or answer["task_id"] != task_id:
                self.flaws.append(f"{task_id} was answered {first} and then {answer}")

    def was_cancelled(self, task_id: str) -> None:
        with self._lock:
            if task_id in self.cancelled:
                self.flaws.append(f"{task_id} was cancelled twice")
            self.cancelled[task_id] = time.monotonic()

    def was_read(self, task_id: str, status: str) -> None:
        with self._lock:
            before = "cancelled" if task_id in self.cancelled else self.ended.get(task_id)
            if before not in (None, status):
                self.flaws.append(f"{task_id} was {before} and then read as {status}")
            if status in ENDS.values():
                self.ended[task_id] = status

    def was_retried(self, task_id: str) -> None:
        with self._lock:
            self.ended.pop(task_id, None)

    def was_finished(self, task_id: str, epoch: int) -> None:
        with self._lock:
            self.finished.setdefault(task_id, set()).add(epoch)

    def was_answered(self, what: str, wrong: str | None = None) -> None:
        """Counts an answer; `wrong` tells why there should be no such one."""
        with self._lock:
            self.answers[what] += 1
            if wrong is not None:
                self.flaws.append(wrong)


def judge(database: Path | str, history: History) -> list[str]:
    """All that is wrong with the database, and all that was told and is not so."""
    found = [*history.flaws, *check(database, history.accepted, history.asked)]
    with closing(read_only(database)) as connection:
        tasks = {row["task_id"]: row for row in query(connection, "select task_id, status, epoch from tasks")}
        retries = Counter(row["task_id"] for row in query(connection, RETRIES))
    for task_id in history.cancelled:
        if (status := tasks.get(task_id, {}).get("status")) != "cancelled":
            found.append(f"{task_id} was cancelled with 200 and is {status}")
    for task_id, status in history.ended.items():
        if (now := tasks.get(task_id, {}).get("status")) != status:
            found.append(f"{task_id} was read as {status} and is {now}")
    for task_id, epochs in history.finished.items():
        last = tasks.get(task_id, {}).get("epoch")
        if len(epochs) > 1 + retries[task_id] or (max(epochs) != last and not retries[task_id]):
            found.append(f"{task_id} has the results of the attempts {sorted(epochs)} and ended in attempt {last}")
    return found
