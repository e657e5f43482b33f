"""Executes messages: the most urgent and oldest first, each exactly once, whichever process is killed.

The effect of an action and the response to its message are written in one transaction. So a message whose processor
died either has its response or had no effect, and is requeued. Effects outside the transaction are found again: a
task by its id, a write to the memory in the run log. State changes are in `lifecycle`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from stentor.core.clock import SECOND, Clock, ClockWatch, JumpWatch
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.locks import locks
from stentor.core.errors import Forbidden, StentorError, StoreUnavailable
from stentor.core.fanout.live import TERMINAL_EVENTS, Hub
from stentor.core.timers import sleep_until_tick
from stentor.domains.atp import bodies
from stentor.domains.messaging import store
from stentor.domains.messaging.lifecycle import MessageLifecycle, MissedEndings, StaleEpoch
from stentor.domains.messaging.model import (
    ActionContext,
    ActionResult,
    CommitStep,
    MessageRoute,
    StoredMessage,
    ZoneAction,
    error_response,
)

MAX_CONCURRENT = 16
"""Messages that one process executes at a time; a message that waits for a task does not count."""
SCAN_INTERVAL_TICKS = 10
"""Ticks of a second."""
BATCH, SCAN = 200, 100_000
MAX_MICROS = 2**62
SHUTDOWN_SECONDS = 5.0
INTERNAL_ERROR = StentorError("The service failed to process this message; see its log.")
MessageKey = tuple[str, str]
"""Tenant and message id."""
log = logging.getLogger(__name__)


class MessageProcessor:
    """Claims messages and executes their actions.

    `lease`, in microseconds: how long a claim is valid without renewal. `follow_jump`: see `JumpWatch.look`. `shared`:
    other processes may process messages of the same database.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        follow_jump: Callable[[int, int, int], Awaitable[object]],
        lifecycle: MessageLifecycle,
        hub: Hub,
        actions: Mapping[tuple[str, str], ZoneAction],
        lease: int,
        *,
        shared: bool,
    ) -> None:
        self._db = db
        self._lifecycle = lifecycle
        self._actions = actions
        self._lease = lease
        # A third of the lease, so that one renewal may fail or be late.
        self._renew_every = lease // (3 * SECOND)
        self._shared = shared
        self._clock_watch, self._jump_watch = ClockWatch(), JumpWatch(clock.monotonic)
        self._follow_jump = follow_jump
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._claimed: dict[MessageKey, StoredMessage] = {}
        self._interrupted: list[StoredMessage] = []
        self._running: set[asyncio.Task[None]] = set()
        self._background: list[asyncio.Task[None]] = []
        hub.listen(lifecycle.on_task_end, TERMINAL_EVENTS)

    async def start(self) -> int:
        """Requeue what an earlier process had claimed and start the loops; return how many were requeued."""
        count = 0
        # Without other processes every claim is from a dead one, whatever its lease says.
        while not self._shared and (batch := await self._db.poll(lambda tx: store.list_expired(tx, MAX_MICROS, BATCH))):
            count += await self._requeue(batch)
        for key in await self._db.read(lambda tx: store.list_awaited_tasks(tx, SCAN)):
            self._lifecycle.await_task(*key)
        jobs = (self._run(), self._lifecycle.run(), self._watch())
        self._background += [asyncio.create_task(job) for job in jobs]
        return count

    async def stop(self) -> None:
        """Claim no more messages, and cancel those that do not end within SHUTDOWN_SECONDS."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        if self._running:
            await asyncio.wait(self._running, timeout=SHUTDOWN_SECONDS)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def wake(self) -> None:
        """Trigger a check of the queue, because a message was stored."""
        self._work.set()

    async def _run(self) -> None:
        # Claims as many as there is room for in one transaction: they share its commit.
        while True:
            self._room.clear()
            if len(self._running) >= MAX_CONCURRENT:
                await self._room.wait()
                continue
            # Cleared before the claim: a message that arrives during it sets the event again and is not missed.
            self._work.clear()
            messages = await self._claim(MAX_CONCURRENT - len(self._running))
            for stored in messages:
                task = asyncio.create_task(self._process(stored))
                self._running.add(task)
                task.add_done_callback(self._on_done)
            if not messages:
                await self._work.wait()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._room.set()

    async def _claim(self, limit: int) -> list[StoredMessage]:
        try:
            return await self._db.write(
                lambda tx: self._lifecycle.claim(tx, self._lease, limit), (locks.MESSAGES_LOCK,)
            )
        except StoreUnavailable:
            return []  # the next tick wakes the loop again
        except Exception:
            log.exception("messaging: claim failed")
            return []

    async def _process(self, stored: StoredMessage) -> None:
        key = stored.tenant, stored.message_id
        self._claimed[key] = stored
        try:
            async with AsyncExitStack() as held:
                await self._commit(stored, await self._prepare(stored, held))
        except StaleEpoch:
            log.info("messaging: claim lost message_id=%s", stored.message_id)
        except StoreUnavailable:
            # Requeued by the next tick and not here: the database may be what failed.
            self._interrupted.append(stored)
        except Exception:
            # Not requeued at once: it would fail again and again and block others. Its lease must run out first.
            log.exception("messaging: recording the result failed message_id=%s", stored.message_id)
        finally:
            # From here on its lease is no longer renewed.
            del self._claimed[key]

    async def _prepare(self, stored: StoredMessage, held: AsyncExitStack) -> CommitStep:
        """Prepare the action. Every error but an outage becomes the response to the message."""
        try:
            body = bodies.parse_body(stored.atp_message)
            action = self._actions[stored.header.zone_action]
            # Checked again although `send` did: this is the last place before the effect.
            authorize_action(stored, action)
            return await action.prepare(ActionContext(stored, body, stored.head_id, held))
        except StoreUnavailable:
            raise
        except StentorError as error:
            return _fail_with(error)
        except Exception:
            log.exception("messaging: action failed unexpectedly message_id=%s", stored.message_id)
            return _fail_with(INTERNAL_ERROR)

    async def _commit(self, stored: StoredMessage, step: CommitStep) -> None:
        try:
            await self._db.write(lambda tx: self._lifecycle.record_result(tx, stored, step(tx)))
        except (StoreUnavailable, StaleEpoch):
            raise
        except Exception as error:
            if not isinstance(error, StentorError):
                log.exception("messaging: action failed unexpectedly message_id=%s", stored.message_id)
            # The failed transaction is rolled back with all effects; the error is recorded in a new one.
            fail = _fail_with(error if isinstance(error, StentorError) else INTERNAL_ERROR)
            await self._db.write(lambda tx: self._lifecycle.record_result(tx, stored, fail(tx)))

    async def _watch(self) -> None:
        tick = 0
        while True:
            await sleep_until_tick()
            tick += 1
            try:
                await self._tick(tick)
            except StoreUnavailable:
                continue  # the database logs its outage itself
            except Exception:
                # Fails open: one failed tick must not end all later ones.
                log.exception("messaging: tick failed")

    async def _tick(self, tick: int) -> None:
        interrupted, self._interrupted = self._interrupted, []
        try:
            await self._requeue(interrupted)
        except StoreUnavailable:
            self._interrupted += interrupted
            raise
        if self._claimed and tick % self._renew_every == 0:
            claimed = list(self._claimed.values())
            await self._db.write(lambda tx: store.renew_leases(tx, claimed, self._lease), NO_LOCKS)
        # The hub announces the tasks of this process only; with other processes every tick must check for ended tasks.
        check_ended = self._shared or tick % SCAN_INTERVAL_TICKS == 0
        begun = self._jump_watch.begin()
        now, is_due, expired, missed = await self._db.poll(lambda tx: self._poll(tx, check_ended=check_ended))
        # Otherwise messages, including those of a dead process, would wait as long as the clock was set back.
        await self._clock_watch.look(
            now, lambda: self._db.write(lambda tx: store.bring_back(tx, self._lease), NO_LOCKS)
        )
        # Like the reconciler, which may check later: a message must not end before its deadline is extended.
        await self._jump_watch.look(begun, now, self._follow_jump)
        if is_due:
            self._work.set()
        # A late renewal of our own is not a reason to requeue: the message would be executed twice.
        await self._requeue([stored for stored in expired if (stored.tenant, stored.message_id) not in self._claimed])
        await self._lifecycle.repair(missed)

    def _poll(self, tx: Tx, *, check_ended: bool) -> tuple[int, bool, list[StoredMessage], MissedEndings]:
        """Return the time, whether a message is due, those with an expired lease, and what `repair` must handle."""
        due, expired, overdue, ended = store.check_pending(tx)
        missed = self._lifecycle.poll(tx, overdue=overdue, ended=ended and check_ended)
        return tx.now, due, store.list_expired(tx, tx.now, BATCH) if expired else [], missed

    async def _requeue(self, messages: list[StoredMessage]) -> int:
        if not messages:
            return 0
        return await self._db.write(lambda tx: sum(self._lifecycle.requeue(tx, stored) for stored in messages))


def authorize_action(stored: StoredMessage, action: ZoneAction) -> None:
    """Check that the sender may do the same over REST. Fails closed: raises Forbidden otherwise."""
    stored.principal.require(action.permission)
    if action.tenant is not None and stored.tenant != action.tenant:
        raise Forbidden(f"The memory belongs to the tenant {action.tenant!r}. Use a key of that tenant.")


def _fail_with(error: StentorError) -> CommitStep:
    return lambda tx: ActionResult(error_response(error), MessageRoute((), error.message), "failed")
