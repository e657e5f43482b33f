"""Keeps the views in this process's memory up to date with the database: agents, keys, people, weights, trust, models.

It is loaded at the start, and what changed since then is read when another process announces a change, and regularly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.agents import AgentServices
from stentor.bootstrap.parts.llm import LlmParts
from stentor.bootstrap.parts.notifications import WebhookParts
from stentor.bootstrap.parts.tasks import TaskServices
from stentor.core.clock import SECOND
from stentor.core.db import Tx
from stentor.core.db.polling import PollQuery, apply_polls
from stentor.core.db.postgres.late_commits import CommitHorizon
from stentor.core.errors import StoreUnavailable
from stentor.core.fanout import CacheInvalidated, Reconnected
from stentor.core.timers import sleep_until_tick, wait_until_tick
from stentor.domains.keys.service import KeyService
from stentor.domains.people.service import PeopleService
from stentor.domains.registry import store as agent_store

REFRESH_OVERLAP_US = 5 * SECOND
"""How far a refresh looks back beyond the horizon: for the time from a transaction's begin to its first write."""
MIN_REFRESH_SECONDS = 0.05
"""Pause before a refresh, so that many notices of changes cause one."""
log = logging.getLogger(__name__)


class Poller(Protocol):
    def poll_query(self, since: int) -> PollQuery: ...


class ViewRefresher:
    """Loads and refreshes the views of the domains, each of which reads its own rows."""

    def __init__(
        self,
        infra: Infrastructure,
        agents: AgentServices,
        tasks: TaskServices,
        llm: LlmParts,
        keys: KeyService,
        people: PeopleService,
        webhooks: WebhookParts,
    ) -> None:
        self._infra, self._agents, self._tasks, self._llm = infra, agents, tasks, llm
        self._keys, self._people, self._webhooks = keys, people, webhooks
        self._stale = asyncio.Event()
        """Set when another process has changed what this one holds in memory."""
        self._horizon = CommitHorizon()
        self._read_at = 0
        """Time from which on the next read of all views must read (microseconds); first set by `load`, while other
        processes may change things."""

    def follow_changes(self) -> None:
        """Refresh as soon as another process changes something, or when its notices may have been missed."""
        self._tasks.freshness.on_stale = self._stale.set
        if not self._infra.is_single_process:
            shown = (self._agents.registry, self._agents.trust.view)
            self._agents.registry.agents.catch_up.read = partial(self._catch_up, *shown)
            callers = (self._keys, self._people) if self._people.is_enabled else (self._keys,)
            self._keys.catch_up.read = partial(self._catch_up, *callers)
        # Reconnected: notices sent while the connection was down are lost, so everything may be stale.
        for message_type in (CacheInvalidated, Reconnected):
            self._infra.fanout.subscribe(message_type, lambda _: self._stale.set())

    async def load(self) -> None:
        """Load what is held in memory. Only trust may be missing: routing works without it, and says so."""
        # People are loaded even without a provider: their roles tell whether a person or a program did something
        # earlier.
        self._read_at = await self._read_views((*self._required_views, self._people), 0)
        self._agents.presence.load_departures(await self._infra.db.read(agent_store.list_departures))
        try:
            await apply_polls(self._infra.db.poll, [self._agents.trust.view.poll_query(0)])
        except Exception:
            log.exception("trust: cannot be read, tasks are routed without it")

    async def keep_fresh(self) -> None:
        while True:
            await wait_until_tick(self._stale, self._infra.settings.storage.refresh_seconds)
            if self._stale.is_set():
                await asyncio.sleep(MIN_REFRESH_SECONDS)
            # Before the queries: a notice that arrives while they run must cause another refresh.
            self._stale.clear()
            try:
                self._read_at = await self.refresh(self._read_at - REFRESH_OVERLAP_US)
                self._tasks.dispatcher.registry_refreshed()
            except StoreUnavailable:
                # `_read_at` stays, so that the next refresh catches up on everything that was missed.
                continue  # the database logs its outage; routing uses what is in memory
            except Exception:
                # Fails open: routing uses what is in memory, and the health check reports the outage.
                log.exception("registry: view not refreshed")

    async def watch_trust(self) -> None:
        """Notice that trust has become unreadable or readable, where no refresh of other processes' changes runs."""
        trust = self._agents.trust.view
        while True:
            await sleep_until_tick(self._infra.settings.storage.refresh_seconds)
            try:
                # Nothing has changed since now, so while trust is available the query only shows that it still is.
                await apply_polls(self._infra.db.poll, [trust.poll_query(self._infra.clock.now())])
            except Exception as error:  # noqa: BLE001 - the view is marked unavailable, and routing reports it
                log.debug("trust: cannot be read error=%s", error)

    async def refresh(self, since: int) -> int:
        """Load what changed since a time of everything that is held in memory; return the time for the next refresh.

        Both are the database's time (microseconds), as in its rows: the clock of this machine may differ from it.
        """
        views: list[Poller] = [*self._required_views, self._agents.trust.view]
        if self._people.is_enabled:
            # Without a provider nobody can sign in, so nothing changes after the first load.
            views.append(self._people)
        return await self._read_views(views, since)

    @property
    def _required_views(self) -> tuple[Poller, ...]:
        return (
            self._keys,
            self._agents.registry,
            self._agents.learning.view,
            self._llm.models,
            self._llm.runtime_settings,
        )

    async def _read_views(self, views: Iterable[Poller], since: int) -> int:
        times: set[int] = set()
        snapshots: list[tuple[int, list[int], int, int]] = []

        def timed(query: PollQuery) -> PollQuery:
            def read(tx: Tx) -> Callable[[], None]:
                times.add(tx.now)
                return query(tx)

            return read

        def find_horizon(tx: Tx) -> Callable[[], None]:
            return partial(snapshots.append, self._horizon.read(tx))

        polls = [*(view.poll_query(since) for view in views), self._webhooks.dispatcher.poll_query()]
        if self._infra.is_single_process:
            await apply_polls(self._infra.db.poll, map(timed, polls))
            # After the clock was set back, everything is read: a change may have any time.
            return min(times) if min(times) >= self._read_at else 0
        await apply_polls(self._infra.db.poll, map(timed, [*polls, find_horizon]))
        # The horizon holds for what was read in its own transaction. Usually they share one, unless a read failed.
        return self._horizon.advance(*snapshots[0]) if len(times) == 1 else self._read_at

    async def _catch_up(self, *views: Poller) -> None:
        # Leaves `_read_at` alone: only some of the views are read here.
        await apply_polls(self._infra.db.poll, [view.poll_query(self._read_at - REFRESH_OVERLAP_US) for view in views])
