"""Which tasks changed since their notes were written: in memory, and by the run log where memory does not reach."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

MOST = 20_000
"""Changed tasks held in memory; what comes above is read from the run log later."""


class Changes:
    """For one tenant. Tasks come out in the order in which they changed first.

    Between `position` and `until` the run log has to be read; `position` is None when it need not be. While
    `until` is None too, changes are not taken into memory at all, because there are too many.
    """

    def __init__(self, tenant: str, most: int = MOST) -> None:
        self._tenant = tenant
        self._most = most
        self._waiting: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        self._newest = ""
        self._dropped = ""
        self._collecting = True
        self.position: str | None = None
        self.until: str | None = None
        self.seen = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._waiting or task_id in self._taken

    @property
    def idle(self) -> bool:
        """Whether every change that was seen is mirrored."""
        return not self._waiting and not self._taken and self.position is None

    def saw(self, tenant: str, task_id: str, events: list[Any]) -> None:
        """A listener of the hub; called for every change of every task."""
        if tenant != self._tenant or not events:
            return
        self.seen += 1
        self._newest = events[-1].event_id
        if task_id in self._waiting or not self._collecting:
            return
        if len(self._waiting) < self._most:
            self._waiting[task_id] = events[0].event_id
        else:
            self._overflow(events[0].event_id)

    def again(self, task_ids: Iterable[str]) -> None:
        """These were written in a state that they may not have any more."""
        for task_id in task_ids:
            self._waiting.setdefault(task_id, self._taken.get(task_id, self._newest))

    def behind(self, position: str) -> None:
        """The run log has to be read, all that sorts after this."""
        self.position = position if self.position is None else min(self.position, position)
        self.until = None

    def _overflow(self, event_id: str) -> None:
        self._dropped = event_id[:-1]  # sorts before it
        self.behind(self._dropped)
        self._collecting = False

    def scanned(self, until: str, end: str | None) -> None:
        """The run log was read to `end`, or, when that is None, to `until`."""
        if end is not None:
            self.position = end
        elif self.until == until:
            self.position = self.until = None
            self._newest = max(self._newest, until)
        else:
            self.position = self._dropped

    @property
    def resumable(self) -> bool:
        """Whether there is room again for changes that come."""
        return self.position is not None and self.until is None and len(self._waiting) <= self._most // 2

    def collect(self) -> None:
        """Take changes into memory again, before the run log is read up to now."""
        self._collecting = True

    def take(self, most: int) -> list[str]:
        """The next tasks; they count as not mirrored until `done`."""
        self._taken = dict(islice(self._waiting.items(), most))
        for task_id in self._taken:
            del self._waiting[task_id]
        return list(self._taken)

    def done(self) -> None:
        self._taken = {}

    def undo(self) -> None:
        """What was taken could not be written."""
        self._waiting = {**self._taken, **{k: v for k, v in self._waiting.items() if k not in self._taken}}
        self._taken = {}

    def low(self) -> str:
        """Each task whose events are all before this one has its note; empty while nothing was seen."""
        firsts = [next(iter(each.values())) for each in (self._taken, self._waiting) if each]
        if self.position is not None:
            firsts.append(self.position)
        return min(firsts) if firsts else self._newest
