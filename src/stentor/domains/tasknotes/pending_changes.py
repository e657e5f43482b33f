"""Which tasks changed since their notes were written: in memory, and by the run log where memory does not reach."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

MAX_PENDING_TASKS = 20_000
"""Changed tasks held in memory; what comes above is read from the run log later."""


class PendingChanges:
    """For one tenant. Tasks come out in the order in which they changed first.

    Between `position` and `until` the run log has to be read; `position` is None when it need not be. While
    `until` is None too, changes are not taken into memory at all, because there are too many.
    """

    def __init__(self, tenant: str, max_tasks: int = MAX_PENDING_TASKS) -> None:
        self._tenant = tenant
        self._most = max_tasks
        self._waiting: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        self._newest = ""
        self._dropped = ""
        self._collecting = True
        self.replay_after: str | None = None
        self.replay_until: str | None = None
        self.event_batches = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._waiting or task_id in self._taken

    @property
    def is_idle(self) -> bool:
        """Whether every change that was seen is mirrored."""
        return not self._waiting and not self._taken and self.replay_after is None

    def record_events(self, tenant: str, task_id: str, events: list[Any]) -> None:
        """A listener of the hub; called for every change of every task."""
        if tenant != self._tenant or not events:
            return
        self.event_batches += 1
        self._newest = events[-1].event_id
        if task_id in self._waiting or not self._collecting:
            return
        if len(self._waiting) < self._most:
            self._waiting[task_id] = events[0].event_id
        else:
            self._overflow(events[0].event_id)

    def requeue(self, task_ids: Iterable[str]) -> None:
        """These were written in a state that they may not have any more."""
        for task_id in task_ids:
            self._waiting.setdefault(task_id, self._taken.get(task_id, self._newest))

    def require_replay(self, position: str) -> None:
        """The run log has to be read, all that sorts after this."""
        self.replay_after = position if self.replay_after is None else min(self.replay_after, position)
        self.replay_until = None

    def _overflow(self, event_id: str) -> None:
        self._dropped = event_id[:-1]  # sorts before it
        self.require_replay(self._dropped)
        self._collecting = False

    def finish_page(self, until: str, end: str | None) -> None:
        """The run log was read to `end`, or, when that is None, to `until`."""
        if end is not None:
            self.replay_after = end
        elif self.replay_until == until:
            self.replay_after = self.replay_until = None
            self._newest = max(self._newest, until)
        else:
            self.replay_after = self._dropped

    @property
    def can_resume(self) -> bool:
        """Whether there is room again for changes that come."""
        return self.replay_after is not None and self.replay_until is None and len(self._waiting) <= self._most // 2

    def resume(self) -> None:
        """Take changes into memory again, before the run log is read up to now."""
        self._collecting = True

    def take_batch(self, most: int) -> list[str]:
        """The next tasks; they count as not mirrored until `done`."""
        self._taken = dict(islice(self._waiting.items(), most))
        for task_id in self._taken:
            del self._waiting[task_id]
        return list(self._taken)

    def commit_batch(self) -> None:
        self._taken = {}

    def restore_batch(self) -> None:
        """What was taken could not be written."""
        self._waiting = {**self._taken, **{k: v for k, v in self._waiting.items() if k not in self._taken}}
        self._taken = {}

    def low_water_mark(self) -> str:
        """Each task whose events are all before this one has its note; empty while nothing was seen."""
        firsts = [next(iter(each.values())) for each in (self._taken, self._waiting) if each]
        if self.replay_after is not None:
            firsts.append(self.replay_after)
        return min(firsts) if firsts else self._newest
