"""Ends the waits of tasks whose time is over, those for children that have ended, and tasks past their deadline.

It also cancels the subtasks of cancelled tasks. Each process looks once a second, and also when the next wait is due,
when a task is cancelled or begins to wait for a child in it, and when one ends in it while any task waits for a child.
The rows decide: of two processes only one ends a wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from stentor.core.clock import SECOND
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.locks import waits_lock
from stentor.core.errors import Conflict, CorruptRow, StoreUnavailable
from stentor.core.live import TERMINAL_EVENTS, Hub
from stentor.core.runlog import EventDraft
from stentor.core.timers import wait_until_tick
from stentor.domains.steps import store
from stentor.domains.steps.store import OpenStep
from stentor.domains.steps.wait_endings import BATCH_SIZE, WaitEndings
from stentor.domains.tasks import lease_store, subtask_store
from stentor.domains.tasks.damaged import DamagedTasks
from stentor.domains.tasks.store import TaskRef

INTERVAL_SECONDS = 1.0
PAUSE_SECONDS = 0.1
"""Minimum time between two checks of the waits that are due: those that come due meanwhile share a commit."""
SCAN_SHARE = 0.05
"""Share of the time that scans of all waits for children may take."""
log = logging.getLogger(__name__)
SUBTASKS = 1_024
"""Subtasks of cancelled tasks that one look reads: then what is due meanwhile has its turn."""
List = Callable[[Tx], list[OpenStep]]
End = Callable[[Tx, list[OpenStep]], None]


class WaitScheduler:
    """Background job that ends waits."""

    def __init__(self, db: Database, endings: WaitEndings, hub: Hub, damaged: DamagedTasks) -> None:
        self._db, self._endings, self._damaged = db, endings, damaged
        self._wake = asyncio.Event()
        self._ended: set[TaskRef] = set()
        """Tasks that ended in this process since the last look, while a task waited for a child, and children for which
        a wait began."""
        self._has_children = False
        self._next_scan = 0.0
        hub.listen(self._note_end, TERMINAL_EVENTS)
        hub.listen(self._note_cancel, ("task_cancelled",))
        hub.listen(self._note_wait, ("step_started",))

    async def run(self) -> None:
        """Run forever; waits out an outage of the database."""
        rest = INTERVAL_SECONDS
        while True:
            await wait_until_tick(self._wake, INTERVAL_SECONDS, at_most=rest)
            self._wake.clear()
            rest = INTERVAL_SECONDS
            try:
                rest = await self.tick(scans=time.monotonic() >= self._next_scan)
            except StoreUnavailable:
                continue  # the database logs the outage
            except Exception:
                # Fails open: one failed wait must not stop all later ones.
                log.exception("steps: tick failed")

    async def tick(self, *, scans: bool = True) -> float:
        """End everything that is due now; return the seconds until something is due again, at least PAUSE_SECONDS.

        `scans` is whether to look at all waits for children, also those of other processes and from before a crash.
        """

        def look(tx: Tx) -> tuple[int, int | None, int | None, bool, list[TaskRef]]:
            due_at, deadline = store.next_due_at(tx), lease_store.next_deadline(tx)
            return tx.now, due_at, deadline, store.has_open_children(tx), subtask_store.list_parents(tx, BATCH_SIZE)

        now, due_at, deadline, self._has_children, cancelled = await self._db.poll(look)
        # Before the waits: a task that continues when its subtasks are aborted would begin an attempt for nothing.
        if deadline is not None and deadline < now:
            await self._abort_late()
        if due_at is not None and due_at <= now:
            await self._end_each(lambda tx: store.list_due(tx, BATCH_SIZE), self._endings.end_due)
        await self._end_for_ended()
        if cancelled:
            await self._cancel_subtasks(cancelled)
        if self._has_children and scans:
            await self._scan_children()
        following = [each for each in (due_at, deadline) if each is not None]
        return max(PAUSE_SECONDS, (min(following) - now) / SECOND) if following else INTERVAL_SECONDS

    async def set_aside(self, error: CorruptRow) -> None:
        """End a wait whose row is malformed, and its task."""

        def work(tx: Tx) -> None:
            tenant, task_id, key = error.key
            store.fail_malformed(tx, tenant, task_id, key, error.message)
            self._damaged.set_aside_in_tx(tx, error)

        await self._db.write(work, [waits_lock(*error.key[:2])])

    async def _abort_late(self) -> None:
        while late := await self._db.poll(lambda tx: lease_store.list_late(tx, BATCH_SIZE)):
            await self._db.write(partial(self._endings.abort_late, late=late))
            if len(late) < BATCH_SIZE:
                return

    async def _end_for_ended(self) -> None:
        if self._ended:
            ended, self._ended = sorted(self._ended), set()
            await self._end_each(lambda tx: store.list_waits_for(tx, ended, BATCH_SIZE), self._endings.end_children)

    async def _cancel_subtasks(self, parents: list[TaskRef]) -> None:
        """Cancel subtasks of these cancelled tasks. The next look follows at once: it goes on, and a level deeper."""
        # First what they wait for: else their waits would end as those for a child that failed.
        await self._end_each(lambda tx: store.list_orphans_of(tx, parents, BATCH_SIZE), self._endings.end_orphans)
        found = await self._db.poll(lambda tx: subtask_store.list_open(tx, parents, SUBTASKS))
        for start in range(0, len(found), BATCH_SIZE):
            # Each on its own: one that changes at this moment does not keep the others from it.
            writes = [
                self._db.write(
                    partial(self._endings.cancel_subtask, tenant=tenant, task_id=task_id, parent=parent), NO_LOCKS
                )
                for tenant, task_id, parent in found[start : start + BATCH_SIZE]
            ]
            results = await asyncio.gather(*writes, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException) and not isinstance(result, Conflict):
                    raise result
        if len(found) < SUBTASKS:
            busy = {(tenant, parent) for tenant, _, parent in found}
            if over := [parent for parent in parents if parent not in busy]:
                await self._db.write(partial(subtask_store.forget, parents=over), NO_LOCKS)
        self._wake.set()

    async def _scan_children(self) -> None:
        started = time.monotonic()
        await self._end_each(lambda tx: store.list_ended_children(tx, BATCH_SIZE), self._endings.end_children)
        # With 100,000 waits a scan takes a good part of a second.
        self._next_scan = started + (time.monotonic() - started) / SCAN_SHARE

    async def _end_each(self, list_open: List, end: End) -> None:
        """End all waits of a list, a batch at a time."""
        while waits := (await self._db.poll(list_open))[:BATCH_SIZE]:
            refs = {(tenant, task_id) for tenant, task_id, _ in waits}

            def work(tx: Tx, refs: set[TaskRef] = refs) -> None:
                # Again, under the locks; a wait that came meanwhile has its turn in the next batch.
                end(tx, [wait for wait in list_open(tx) if wait[:2] in refs][:BATCH_SIZE])

            await self._db.write(work, [waits_lock(*ref) for ref in refs])
            if len(waits) < BATCH_SIZE:
                return

    def _note_cancel(self, tenant: str, task_id: str, events: list[EventDraft]) -> None:
        self._wake.set()

    def _note_wait(self, tenant: str, task_id: str, events: list[EventDraft]) -> None:
        # A child that ended in another process, after this wait read it and before its commit, found no wait to end.
        children = [event.metadata["waits_for"] for event in events if event.metadata.get("kind") == "child"]
        if children:
            self._has_children = True
            self._ended.update((tenant, child) for child in children)
            self._wake.set()

    def _note_end(self, tenant: str, task_id: str, events: list[EventDraft]) -> None:
        # A wait that began since the last look is found by the next scan.
        if self._has_children:
            self._ended.add((tenant, task_id))
            self._wake.set()
