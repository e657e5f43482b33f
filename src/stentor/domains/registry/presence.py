"""Which agents can take work now: workers that poll or hold a lease, endpoints that answer. In memory only.

Nothing depends on it but the choice among agents that are admitted anyway, so it starts with the benefit of the doubt:
a worker counts as online for one interval after its registration and after the start of this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stentor.core.clock import SECOND, Clock
from stentor.domains.registry.model import Agent

ANNOUNCE_INTERVAL_US = 10 * SECOND
"""Least time between two messages to other processes about the same worker, in microseconds; less where a worker is
offline sooner than after three of these.
"""
MAX_FAILURES = 3
"""Failed deliveries in a row from which on an endpoint counts as offline."""
ENDPOINT_PAUSE_US = 30 * SECOND
"""How long an endpoint stays offline before it is tried again, in microseconds."""


class Presence:
    """`interval` is how long a worker counts as online after it was last heard of, in seconds. `tell` hands on to other
    processes that a worker was seen: (agent id, moment).
    """

    def __init__(self, clock: Clock, offline_after_seconds: float, announce: Callable[[str, int], None]) -> None:
        self._clock = clock
        self.offline_after_us = int(offline_after_seconds * SECOND)
        """In microseconds."""
        self._tell = announce
        self._tell_every = min(ANNOUNCE_INTERVAL_US, self.offline_after_us // 3)
        self._latest = self._started = clock.now()
        self._seen: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._resting: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._held: dict[str, dict[str, int]] = {}
        self.arrival_count = 0
        """How often somebody came who may take work that waits: who was offline, is new, or was changed."""
        self.changed = asyncio.Event()
        """Set at each of these, and when an endpoint goes offline. That a worker was silent for too long sets nothing:
        who wants to know looks.
        """

    def notify_arrival(self) -> None:
        """Somebody may take work now who could not before."""
        self.arrival_count += 1
        self.changed.set()

    def record_seen(self, agent_id: str) -> None:
        """A worker polled, sent a heartbeat or an answer."""
        now = self._now()
        self.record_seen_elsewhere(agent_id, now)
        if now - self._told.get(agent_id, 0) >= self._tell_every:
            self._told[agent_id] = now
            self._tell(agent_id, now)

    def record_seen_elsewhere(self, agent_id: str, at: int) -> None:
        """Another process saw a worker, whose clock may be ahead of this one's."""
        now = self._now()
        at, before = min(at, now), self._seen.get(agent_id, 0)
        self._seen[agent_id] = max(at, before)
        if now - at < self.offline_after_us <= now - before:
            self.notify_arrival()

    def last_seen(self, agent_id: str) -> int | None:
        return self._seen.get(agent_id)

    def is_online(self, agent: Agent) -> bool:
        kind = agent.runtime.kind
        if kind == "worker":
            now, since = self._now(), self._seen.get(agent.agent_id)
            if since is None:
                since = agent.created_at if self._started < agent.created_at <= now else self._started
            return now - since < self.offline_after_us
        return kind != "http" or self._now() >= self._resting.get(agent.agent_id, 0)

    def record_delivery(self, agent_id: str) -> None:
        """An endpoint took a task."""
        self._failures.pop(agent_id, None)
        if self._resting.pop(agent_id, None) is not None:
            self.notify_arrival()

    def record_failed_delivery(self, agent_id: str) -> None:
        """An endpoint could not be reached."""
        failures = self._failures[agent_id] = self._failures.get(agent_id, 0) + 1
        if failures >= MAX_FAILURES:
            self._resting[agent_id] = self._now() + ENDPOINT_PAUSE_US
            self.changed.set()

    def offline_endpoints(self) -> list[str]:
        """The endpoints that are offline."""
        now = self._now()
        return [agent_id for agent_id, until in self._resting.items() if now < until]

    def release_endpoints(self) -> list[str]:
        """Let endpoints whose rest is over come back; answers which."""
        now = self._now()
        back = [agent_id for agent_id, until in self._resting.items() if until <= now]
        for agent_id in back:
            del self._resting[agent_id]
            self.notify_arrival()
        return back

    def record_poll(self, agent_id: str, slots: int) -> None:
        """A worker asks for up to so many tasks; 0 when it has stopped waiting."""
        self._slots[agent_id] = max(0, slots)

    def record_lease(self, agent_id: str, task_id: str, until: int) -> None:
        """A worker holds a task, by its lease until then."""
        self._held.setdefault(agent_id, {})[task_id] = until

    def remove_lease(self, agent_id: str, task_id: str) -> None:
        held = self._held.get(agent_id)
        if held is not None:
            held.pop(task_id, None)

    def count_held(self, agent_id: str) -> int:
        """Tasks that a worker works on, as far as this process knows."""
        held = self._held.get(agent_id)
        if not held:
            return 0
        now = self._now()
        for task_id in [task_id for task_id, until in held.items() if until < now]:
            del held[task_id]
        return len(held)

    def concurrency(self, agent_id: str) -> int:
        """Tasks that a worker does at a time: those it holds and those it asks for."""
        return max(1, self.count_held(agent_id) + self._slots.get(agent_id, 0))

    def _now(self) -> int:
        now = self._clock.now()
        if now < self._latest:
            self._set_back(now - self._latest)
        self._latest = now
        return now

    def _set_back(self, by: int) -> None:
        """The machine's clock was set back. What was noted moves along, or who is gone would be online, and what rests
        would rest, for as long as the clock was wrong.
        """
        self._started += by
        for moments in (self._seen, self._told, self._resting, *self._held.values()):
            for key in moments:
                moments[key] += by
