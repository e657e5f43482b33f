"""Ends the waits of tasks whose time is over, those for children that have ended, and tasks past their deadline.

It also cancels the subtasks of cancelled tasks. Each process looks once a second, and also when the next wait or
deadline is due, when a task is cancelled, gets a wait or a deadline that is due before that or a wait for a child in
it, and when one ends in it while any task waits for a child.
The end of a task for which others wait is recorded in a table, so that one that ends in another process, or just before
a crash, is found without reading all waits. The rows decide: of two processes only one ends a wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial

from stentor.core.clock import SECOND
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.locks.locks import task_lock, waits_lock
from stentor.core.errors import CorruptRow, StoreUnavailable
from stentor.core.fanout.live import TERMINAL_EVENTS, Hub
from stentor.core.runlog import EventDraft
from stentor.core.timers import wait_until_tick
from stentor.domains.steps import store
from stentor.domains.steps.store import ChildCheck, OpenStep
from stentor.domains.steps.wait_endings import BATCH_SIZE, WaitEndings
from stentor.domains.tasks.queues import lease_store, subtask_store
from stentor.domains.tasks.queues.damaged import DamagedTasks
from stentor.domains.tasks.queues.subtask_store import CancelledParent
from stentor.domains.tasks.store import TaskRef

INTERVAL_SECONDS = 1.0
PAUSE_SECONDS = 0.1
"""Minimum time between two checks of the waits that are due: those that come due meanwhile share a commit."""
log = logging.getLogger(__name__)
SUBTASKS = 1_024
"""Subtasks of cancelled tasks that one look reads: then what is due meanwhile has its turn."""
SUBTASKS_AT_ONCE = 32
"""Those that a commit cancels. With 128 the writes of others, which share these commits, took twice as long."""
List = Callable[[Tx], list[OpenStep]]
End = Callable[[Tx, list[OpenStep]], None]


class WaitScheduler:
    """Background job that ends waits."""

    def __init__(self, db: Database, endings: WaitEndings, hub: Hub, damaged: DamagedTasks) -> None:
        self._db, self._endings, self._damaged = db, endings, damaged
        self._wake = asyncio.Event()
        self._ended: set[TaskRef] = set()
        """Tasks that ended in this process since the last look, and children for which a wait began."""
        self._has_children = False
        self._looks_at = -math.inf
        """When it looks again, in microseconds; unknown during a look."""
        self._due_meanwhile = math.inf
        """When the first wait is due that began in this process since the look began, which may not have read it."""
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
                rest = await self.tick()
            except StoreUnavailable:
                continue  # the database logs the outage
            except Exception:
                # Fails open: one failed wait must not stop all later ones.
                log.exception("steps: tick failed")

    def expect(self, due_at: int) -> None:
        """Look again when a wait or a deadline that began in this process is due, if that is before the next look."""
        self._due_meanwhile = min(self._due_meanwhile, due_at)
        # Not for less than PAUSE_SECONDS: many short waits would make it look all the time.
        if due_at < self._looks_at - PAUSE_SECONDS * SECOND:
            self._wake.set()

    async def tick(self) -> float:
        """End everything that is due now; return the seconds until something is due again, at least PAUSE_SECONDS."""

        def look(tx: Tx) -> tuple[int, int | None, int | None, bool, list[ChildCheck], list[CancelledParent]]:
            due_at, deadline = store.next_due_at(tx), lease_store.next_deadline(tx)
            noted, cancelled = store.list_checks(tx, BATCH_SIZE), subtask_store.list_parents(tx, BATCH_SIZE)
            return tx.now, due_at, deadline, store.has_open_children(tx), noted, cancelled

        # Before the query: it finds all waits for what had ended by then, and a later wait checks for itself.
        ended, self._ended = self._ended, set()
        self._looks_at, self._due_meanwhile = -math.inf, math.inf
        try:
            now, due_at, deadline, self._has_children, noted, cancelled = await self._db.poll(look)
            # Before the waits: a task that continues when its subtasks are aborted would begin an attempt for nothing.
            if deadline is not None and deadline < now:
                await self._abort_late()
            if due_at is not None and due_at <= now:
                await self._end_each(lambda tx: store.list_due(tx, BATCH_SIZE), self._endings.end_due)
            await self._end_for_ended(ended if self._has_children else set(), noted)
        except BaseException:
            self._ended |= ended
            raise
        if cancelled:
            await self._cancel_subtasks(cancelled)
        following = min(each for each in (due_at, deadline, self._due_meanwhile) if each is not None)
        rest = max(PAUSE_SECONDS, (following - now) / SECOND) if following < math.inf else INTERVAL_SECONDS
        self._looks_at = now + min(rest, INTERVAL_SECONDS) * SECOND
        return rest

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

    async def _end_for_ended(self, ended: set[TaskRef], noted: list[ChildCheck]) -> None:
        refs = sorted(ended.union((tenant, task_id) for _, tenant, task_id, _ in noted))
        if refs:
            await self._end_each(lambda tx: store.list_waits_for(tx, refs, BATCH_SIZE), self._endings.end_children)
        if noted:
            await self._db.write(partial(store.forget_checks, checks=noted), NO_LOCKS)
        if len(noted) == BATCH_SIZE:
            self._wake.set()

    async def _cancel_subtasks(self, parents: list[CancelledParent]) -> None:
        """Cancel subtasks of these cancelled tasks. The next check follows at once, and continues one level deeper."""
        refs = [parent.ref for parent in parents]
        # First the tasks that they wait for: otherwise their waits would end as if a child had failed.
        await self._end_each(lambda tx: store.list_orphans_of(tx, refs, BATCH_SIZE), self._endings.end_orphans)
        found, moved, over = await self._db.poll(lambda tx: subtask_store.list_open(tx, parents, SUBTASKS))
        for start in range(0, len(found), SUBTASKS_AT_ONCE):
            some = found[start : start + SUBTASKS_AT_ONCE]
            batch = {(tenant, task_id): parent for tenant, task_id, parent in some}
            held = [task_lock(*ref) for ref in batch]
            await self._db.write(partial(self._endings.cancel_subtasks, parents=batch), held)
        if moved or over:
            # Only now: after a crash those of the last look are read again.
            await self._db.write(partial(subtask_store.save_positions, moved=moved, over=over), NO_LOCKS)
        self._wake.set()

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
        self._ended.add((tenant, task_id))
        if self._has_children:
            self._wake.set()
