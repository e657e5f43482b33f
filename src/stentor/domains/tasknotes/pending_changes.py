"""Tracks which tasks changed since their notes were written: in memory, and by a range of the run log above a limit."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

MAX_PENDING_TASKS = 20_000
"""Maximum number of changed tasks held in memory; further ones are read from the run log later."""


class PendingChanges:
    """The changed tasks of one tenant, in the order of their first change.

    The run log must be read from `replay_after` to `replay_until`; `replay_after` is None if it need not be. After an
    overflow `replay_until` is None, and changes are not collected in memory until `resume`.
    """

    def __init__(self, tenant: str, max_tasks: int = MAX_PENDING_TASKS) -> None:
        self._tenant = tenant
        self._max_tasks = max_tasks
        self._waiting: dict[str, str] = {}
        """Task ids with the id of the first event that is not in the note."""
        self._batch: dict[str, str] = {}
        self._newest = ""
        self._overflow_at = ""
        self._collecting = True
        self.replay_after: str | None = None
        self.replay_until: str | None = None
        self.event_batches = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._waiting or task_id in self._batch

    @property
    def is_idle(self) -> bool:
        """Return whether every known change is in its note."""
        return not self._waiting and not self._batch and self.replay_after is None

    def record_events(self, tenant: str, task_id: str, events: list[Any]) -> None:
        """Record a change; a listener of the hub, called for every change of every task."""
        if tenant != self._tenant or not events:
            return
        self.event_batches += 1
        self._newest = events[-1].event_id
        # The first event stays: the cursor must not pass an event whose note is not written.
        if task_id in self._waiting or not self._collecting:
            return
        if len(self._waiting) < self._max_tasks:
            self._waiting[task_id] = events[0].event_id
        else:
            self._overflow(events[0].event_id)

    def requeue(self, task_ids: Iterable[str]) -> None:
        """Mark tasks as changed whose notes may be outdated already."""
        for task_id in task_ids:
            self._waiting.setdefault(task_id, self._batch.get(task_id, self._newest))

    def require_replay(self, after: str) -> None:
        """Require reading all events of the run log whose ids sort after `after`."""
        self.replay_after = after if self.replay_after is None else min(self.replay_after, after)
        self.replay_until = None

    def _overflow(self, event_id: str) -> None:
        # Reading goes by `event_id > :after`, so the position must lie before the event itself.
        self._overflow_at = event_id[:-1]  # sorts before the event
        self.require_replay(self._overflow_at)
        self._collecting = False

    def finish_page(self, until: str, end: str | None) -> None:
        """Record that the run log was read up to `end`, or up to `until` if `end` is None."""
        if end is not None:
            self.replay_after = end
        elif self.replay_until == until:
            self.replay_after = self.replay_until = None
            self._newest = max(self._newest, until)
        else:
            # Memory overflowed again during the replay: continue with the changes that were dropped.
            self.replay_after = self._overflow_at

    @property
    def can_resume(self) -> bool:
        """Return whether there is room in memory again after an overflow."""
        return (
            # At half, so that memory does not overflow again at once.
            self.replay_after is not None and self.replay_until is None and len(self._waiting) <= self._max_tasks // 2
        )

    def resume(self) -> None:
        """Collect changes in memory again. Call it before choosing `replay_until`: no change may fall in between."""
        self._collecting = True

    def take_batch(self, limit: int) -> list[str]:
        """Return the next tasks; they count as not written until `commit_batch`."""
        self._batch = dict(islice(self._waiting.items(), limit))
        for task_id in self._batch:
            del self._waiting[task_id]
        return list(self._batch)

    def commit_batch(self) -> None:
        """Record that the batch was written."""
        self._batch = {}

    def restore_batch(self) -> None:
        """Put the batch back because it could not be written; its tasks stay first, with their first event."""
        self._waiting = {
            **self._batch,
            **{task_id: event_id for task_id, event_id in self._waiting.items() if task_id not in self._batch},
        }
        self._batch = {}

    def low_water_mark(self) -> str:
        """Return an event id: all events before it are in the notes. Empty before the first event."""
        firsts = [next(iter(group.values())) for group in (self._batch, self._waiting) if group]
        if self.replay_after is not None:
            firsts.append(self.replay_after)
        return min(firsts) if firsts else self._newest
