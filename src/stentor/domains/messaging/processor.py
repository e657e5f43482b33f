"""Carries messages out: the most urgent and oldest first, each once, whatever is killed in between.

What an action changes and the answer to its message are written in one transaction, so a message that was in
somebody's hands when the process died either has its answer or had no effect, and goes back into the queue. A task
is found again by its id, a write to the memory by the run log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from stentor.core.clock import SECOND
from stentor.core.db import Database, Tx, locks
from stentor.core.errors import Forbidden, StentorError, StoreUnavailable
from stentor.core.live import Hub
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
"""Messages that one process carries at a time; a task that is waited for holds no lane."""
SCAN_INTERVAL_TICKS = 10
"""Ticks of a second."""
BATCH, SCAN = 200, 100_000
MAX_MICROS = 2**62
SHUTDOWN_SECONDS = 5.0
INTERNAL_ERROR = StentorError("The service failed on this message; its log says why.")
MessageKey = tuple[str, str]
log = logging.getLogger(__name__)


class MessageProcessor:
    """`lease`, in microseconds: how long a message stays with a carrier that gives no sign of life. `shared`: other
    processes may carry messages of the same database.
    """

    def __init__(
        self,
        db: Database,
        endings: MessageLifecycle,
        hub: Hub,
        actions: Mapping[tuple[str, str], ZoneAction],
        lease: int,
        *,
        shared: bool,
    ) -> None:
        self._db = db
        self._endings = endings
        self._actions = actions
        self._lease = lease
        self._renew_every = lease // (3 * SECOND)
        self._shared = shared
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._held: dict[MessageKey, StoredMessage] = {}
        self._dropped: list[StoredMessage] = []
        self._carrying: set[asyncio.Task[None]] = set()
        self._background: list[asyncio.Task[None]] = []
        hub.listeners.append(endings.on_task_events)

    async def start(self) -> int:
        """Take up what an earlier process left; answers how many messages it had in its hands."""
        found = 0
        while not self._shared and (batch := await self._db.read(lambda tx: store.list_expired(tx, MAX_MICROS, BATCH))):
            found += await self._give_back(batch)
        for key in await self._db.read(lambda tx: store.list_awaited_tasks(tx, SCAN)):
            self._endings.await_task(*key)
        jobs = (self._run(), self._endings.run(), self._watch())
        self._background += [asyncio.create_task(job) for job in jobs]
        return found

    async def stop(self) -> None:
        """Take no more, and let what is in hand come to its end if that is soon."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        if self._carrying:
            await asyncio.wait(self._carrying, timeout=SHUTDOWN_SECONDS)
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def wake(self) -> None:
        """There is a message to carry."""
        self._work.set()

    async def _run(self) -> None:
        """As many at once as there are lanes free: they share the commit of being taken."""
        while True:
            self._room.clear()
            if len(self._carrying) >= MAX_CONCURRENT:
                await self._room.wait()
                continue
            self._work.clear()
            taken = await self._taken(MAX_CONCURRENT - len(self._carrying))
            for stored in taken:
                task = asyncio.create_task(self._carry(stored))
                self._carrying.add(task)
                task.add_done_callback(self._after)
            if not taken:
                await self._work.wait()

    def _after(self, task: asyncio.Task[None]) -> None:
        self._carrying.discard(task)
        self._room.set()

    async def _taken(self, most: int) -> list[StoredMessage]:
        try:
            return await self._db.write(lambda tx: self._endings.claim(tx, self._lease, most), (locks.MESSAGES_LOCK,))
        except StoreUnavailable:
            return []  # the watch wakes us again
        except Exception:
            log.exception("the next messages could not be taken")
            return []

    async def _carry(self, stored: StoredMessage) -> None:
        key = stored.tenant, stored.message_id
        self._held[key] = stored
        try:
            await self._close(stored, await self._prepared(stored))
        except StaleEpoch:
            log.info("message %s was taken from this carrier", stored.message_id)
        except StoreUnavailable:
            self._dropped.append(stored)
        except Exception:
            # It comes back when its lease ends, so that it does not stand in the way of others until then.
            log.exception("message %s could not be closed", stored.message_id)
        finally:
            del self._held[key]

    async def _prepared(self, stored: StoredMessage) -> CommitStep:
        """Whatever goes wrong but an outage is the message's answer."""
        try:
            body = bodies.parse_body(stored.atp_message)
            action = self._actions[stored.header.zone_action]
            authorize_action(stored, action)
            return await action.prepare(ActionContext(stored, body, stored.head_id))
        except StoreUnavailable:
            raise
        except StentorError as error:
            return _failing(error)
        except Exception:
            log.exception("message %s broke its action", stored.message_id)
            return _failing(INTERNAL_ERROR)

    async def _close(self, stored: StoredMessage, closing: CommitStep) -> None:
        try:
            await self._db.write(lambda tx: self._endings.record_result(tx, stored, closing(tx)))
        except (StoreUnavailable, StaleEpoch):
            raise
        except Exception as error:
            if not isinstance(error, StentorError):
                log.exception("message %s broke its action", stored.message_id)
            failed = _failing(error if isinstance(error, StentorError) else INTERNAL_ERROR)
            await self._db.write(lambda tx: self._endings.record_result(tx, stored, failed(tx)))

    async def _watch(self) -> None:
        tick = 0
        while True:
            await sleep_until_tick()
            tick += 1
            try:
                await self._tick(tick)
            except StoreUnavailable:
                continue  # the database says in the log that it is out
            except Exception:
                # Fails open: a look that breaks must not end all later ones.
                log.exception("the watch over the messages stumbled")

    async def _tick(self, tick: int) -> None:
        dropped, self._dropped = self._dropped, []
        try:
            await self._give_back(dropped)
        except StoreUnavailable:
            self._dropped += dropped
            raise
        if self._held and tick % self._renew_every == 0:
            held = list(self._held.values())
            await self._db.write(lambda tx: store.renew_leases(tx, held, self._lease), ())
        everything = self._shared or tick % SCAN_INTERVAL_TICKS == 0
        due, lost, missed = await self._db.poll(lambda tx: self._look(tx, everything=everything))
        if due:
            self._work.set()
        await self._give_back([one for one in lost if (one.tenant, one.message_id) not in self._held])
        await self._endings.repair(missed)

    def _look(self, tx: Tx, *, everything: bool) -> tuple[bool, list[StoredMessage], MissedEndings]:
        """Whether a scheduled message came due, or another process sent one; who lost whose; what has ended."""
        due, lost, overdue, answered = store.check_pending(tx)
        missed = self._endings.poll(tx, overdue=overdue, answered=answered and everything)
        return due, store.list_expired(tx, tx.now, BATCH) if lost else [], missed

    async def _give_back(self, messages: list[StoredMessage]) -> int:
        if not messages:
            return 0
        return await self._db.write(lambda tx: sum(self._endings.requeue(tx, one) for one in messages))


def authorize_action(stored: StoredMessage, action: ZoneAction) -> None:
    """Fails closed. Raises Forbidden unless the sender might do it over REST."""
    stored.principal.require(action.permission)
    if action.tenant is not None and stored.tenant != action.tenant:
        raise Forbidden(f"The memory belongs to the tenant {action.tenant!r}; this key is another's.")


def _failing(error: StentorError) -> CommitStep:
    return lambda tx: ActionResult(error_response(error), MessageRoute((), error.message), "failed")
