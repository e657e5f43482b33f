"""Tracks which agents are online: workers that poll or hold a lease, endpoints that answer, models that a provider
serves. In memory; only that the last worker of an agent left is stored too.

It only influences the choice among agents that are admitted anyway, so an agent is assumed online until proven
otherwise: a worker counts as online for one interval after its registration and after the start of this process.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Protocol

from stentor.core.clock import DAY, MINUTE, SECOND, Clock
from stentor.domains.registry.model import Agent

ANNOUNCE_INTERVAL_US = 10 * SECOND
"""Shortest time between two announcements of a worker to other processes, in microseconds.

At most a third of the offline timeout, so that one lost announcement makes no worker offline.
"""
POLL_GAP_US = 5 * SECOND
"""The longest pause between two polls of a worker that has nothing to do, in microseconds."""
MAX_FAILURES = 3
"""After this many failed deliveries in a row an endpoint counts as offline. After this many failures of its provider in
a row an agent rests."""
ENDPOINT_PAUSE_US = 30 * SECOND
"""How long an endpoint is paused, or an agent rests, after these failures, in microseconds."""
SHARED_OUTAGE_FAILURES = 6
"""When an agent's provider works again after this many failures in a row, the agents that rest are tried again as well.
A provider that fails every second task hardly ever has this many in a row.
"""
FAILING_SHARE = 0.05
"""Weight of the newest attempt in the moving average of failing attempts: failed by the provider, or degraded."""
FAILING_HALF_LIFE_US = 2 * MINUTE
"""Shortest half-life of this average in microseconds. It decays, because a provider recovers without being tried."""
FAILING_HALF_LIFE_ATTEMPTS = 8
"""The half-life is the usual time of this many attempts, if that is longer: the average of an agent with a task every
few minutes must last until the next one. With each further failure it takes longer until the agent is tried again.
"""
MAX_FAILING_HALF_LIFE_US = DAY
"""Longest half-life in microseconds."""


class Announce(Protocol):
    def __call__(self, agent_id: str, at: int, *, left: bool = False) -> None:
        """Tell the other processes; `at` in microseconds."""
        ...


class Presence:
    """The activity of workers and endpoints, as this process knows it.

    A worker is online until it leaves, or until `offline_after_seconds` after its last activity. `announce` tells
    other processes that a worker was seen or, with `left`, that it left.
    """

    def __init__(self, clock: Clock, offline_after_seconds: float, announce: Announce) -> None:
        self._clock = clock
        self.offline_after_us = int(offline_after_seconds * SECOND)
        self._announce = announce
        # A third of the time after which a worker counts as offline, so that one message may be lost.
        self._announce_interval = min(ANNOUNCE_INTERVAL_US, self.offline_after_us // 3)
        self._latest = self._started = clock.now()
        self._latest_monotonic = clock.monotonic()
        self._seen: dict[str, int] = {}
        self._announced: dict[str, int] = {}
        self._left: dict[str, int] = {}
        """When the last worker of an agent left; without those that were seen again."""
        self.departed: set[str] = set()
        """Agents whose last worker may be recorded as departed; the process that sees a worker deletes the record."""
        self._failures: dict[str, int] = {}
        self._paused_until: dict[str, int] = {}
        self._unserved: set[str] = set()
        self._provider_failures: dict[str, tuple[int, int]] = {}
        """By agent: the number of failures of its provider in a row, and until when the agent rests."""
        self._before_failures: dict[str, float] = {}
        """By agent: its value in `_failing` before the first of these failures."""
        self._retried: set[str] = set()
        """Agents that are to be tried once, because another agent's provider works again."""
        self._failing: dict[str, tuple[float, int, int]] = {}
        """By agent: the moving average of failing attempts, when it was computed, and the usual time between two
        attempts in microseconds."""
        self._slots: dict[str, dict[object, int]] = {}
        """By agent and poll: how many tasks the poll asks for."""
        self._leases: dict[str, dict[str, int]] = {}
        self._start_loads: dict[str, dict[str, int]] = {}
        """By agent and task that it took in this process: the number of its other tasks at that moment."""
        self._polled: dict[str, int] = {}
        """When a worker last polled this process."""
        self._progressed: dict[str, int] = {}
        """When a worker last took or ended a task."""
        self.arrival_count = 0
        """How often an agent became available for waiting tasks: it came online, is new, or was changed."""
        self.changed = asyncio.Event()
        """Set at each arrival and when an agent goes offline, but not when a worker goes silent: readers poll."""

    def notify_arrival(self) -> None:
        """Record that an agent became available for waiting tasks."""
        self.arrival_count += 1
        self.changed.set()

    def record_seen(self, agent_id: str) -> None:
        """Record that a worker polled, sent a heartbeat or reported an outcome."""
        now = self._now()
        is_back = self._left.pop(agent_id, None) is not None
        self.record_seen_elsewhere(agent_id, now)
        if is_back:
            self.notify_arrival()
        if is_back or now - self._announced.get(agent_id, 0) >= self._announce_interval:
            self._announced[agent_id] = now
            self._announce(agent_id, now)

    def record_seen_elsewhere(self, agent_id: str, at: int) -> None:
        """Record that another process saw a worker; the clock of that process may be ahead."""
        now = self._now()
        # A time in the future would keep a worker online that is gone.
        at, previous = min(at, now), self._seen.get(agent_id, 0)
        self._seen[agent_id] = max(at, previous)
        if (left := self._left.get(agent_id)) is not None:
            # A message that was sent before the worker left may arrive after it.
            if at > left:
                del self._left[agent_id]
                self.notify_arrival()
        elif now - at < self.offline_after_us <= now - previous:
            self.notify_arrival()

    def load_departures(self, departures: Mapping[str, int]) -> None:
        """Take over from earlier processes whose last worker left, and when, in microseconds."""
        now = self._now()
        for agent_id, left_at in departures.items():
            self.departed.add(agent_id)
            self._leave(agent_id, min(left_at, now))

    def record_left(self, agent_id: str) -> None:
        """Record that the last worker of an agent left: the agent is offline until a worker is seen again."""
        now = self._now()
        self.departed.add(agent_id)
        self._leave(agent_id, now)
        self._announce(agent_id, now, left=True)

    def record_left_elsewhere(self, agent_id: str, at: int) -> None:
        """Record that another process saw no worker of an agent any more, unless one polls or works here."""
        now = self._now()
        self.departed.add(agent_id)
        if agent_id in self._slots or self.count_held(agent_id):
            self._announce(agent_id, now)
        elif at >= self._seen.get(agent_id, 0):
            self._leave(agent_id, min(at, now))

    def _leave(self, agent_id: str, at: int) -> None:
        self._seen[agent_id] = self._left[agent_id] = at
        self.changed.set()

    def last_seen(self, agent_id: str) -> int | None:
        """Return when a worker was last seen, in microseconds; None if never since the start of this process."""
        return self._seen.get(agent_id)

    def is_online(self, agent: Agent) -> bool:
        kind = agent.runtime.kind
        if kind == "worker":
            if agent.agent_id in self._left:
                return False
            now, seen = self._now(), self._seen.get(agent.agent_id)
            if seen is None:
                # A registration in the future comes from another process's clock and would keep the agent online.
                seen = agent.created_at if self._started < agent.created_at <= now else self._started
            return now - seen < self.offline_after_us
        if kind == "llm":
            return agent.agent_id not in self._unserved
        return kind != "http" or self._now() >= self._paused_until.get(agent.agent_id, 0)

    def is_unreachable(self, agent_id: str) -> bool:
        """Return whether the last deliveries to an endpoint failed: also after the pause, until one succeeds."""
        return self._failures.get(agent_id, 0) >= MAX_FAILURES

    def is_unseen(self, agent: Agent) -> bool:
        """Return whether an agent is a worker that was registered since this process started and never seen.

        It counts as online for one interval all the same: its program may be about to connect.
        """
        is_new = agent.runtime.kind == "worker" and agent.created_at > self._started
        return is_new and agent.agent_id not in self._seen

    def record_model(self, agent_id: str, *, served: bool) -> None:
        """Record whether a provider serves the model of an agent of the runtime llm."""
        if served and agent_id in self._unserved:
            self._unserved.discard(agent_id)
            self.notify_arrival()
        elif not served and agent_id not in self._unserved:
            self._unserved.add(agent_id)
            self.changed.set()

    def record_delivery(self, agent_id: str) -> None:
        """Record that an endpoint accepted a task."""
        self._failures.pop(agent_id, None)
        if self._paused_until.pop(agent_id, None) is not None:
            self.notify_arrival()

    def record_failed_delivery(self, agent_id: str) -> None:
        """Record that an endpoint could not be reached."""
        failures = self._failures[agent_id] = self._failures.get(agent_id, 0) + 1
        if failures >= MAX_FAILURES:
            self._paused_until[agent_id] = self._now() + ENDPOINT_PAUSE_US
            self.changed.set()

    def record_outcome(self, agent_id: str, outcome_class: str) -> None:
        """Record how an attempt ended: after some failures of its provider in a row an agent rests."""
        if outcome_class == "cancelled":
            return
        is_failure = outcome_class == "provider_failure"
        now, previous = self._now(), self.failing_share(agent_id)
        # Neither produces evidence, so without this share an agent with a good record would keep all its tasks.
        is_lost = is_failure or outcome_class == "degraded_success"
        if is_failure:
            count = self._provider_failures.get(agent_id, (0, 0))[0] + 1
            self._provider_failures[agent_id] = count, now + ENDPOINT_PAUSE_US if count >= MAX_FAILURES else 0
            self._before_failures.setdefault(agent_id, previous)
            if agent_id in self._retried:
                self._retried.discard(agent_id)
                previous = self.failing_share(agent_id)
        elif agent_id in self._provider_failures:
            previous = self._record_recovery(agent_id, previous)
        if is_lost or agent_id in self._failing:
            share = (1 - FAILING_SHARE) * previous + FAILING_SHARE * is_lost
            _, at, interval = self._failing.get(agent_id, (0.0, now, 0))
            # Limited: an agent without tasks for a week would otherwise count as one with a task a week.
            longest = FAILING_HALF_LIFE_ATTEMPTS * max(interval, FAILING_HALF_LIFE_US)
            self._failing[agent_id] = share, now, (interval + min(longest, max(0, now - at))) // 2

    def _record_recovery(self, agent_id: str, share: float) -> float:
        """Forget an agent's failures in a row; return its share of failures from now on.

        Where several agents rest at the same time, their providers are most likely one. So once one of them works, each
        other one is tried once, and the failures in a row of those that work too no longer count.
        """
        count, _ = self._provider_failures.pop(agent_id)
        before = self._before_failures.pop(agent_id)
        resting = [other for other, (failures, _) in self._provider_failures.items() if failures >= MAX_FAILURES]
        was_retried = agent_id in self._retried
        self._retried.discard(agent_id)
        is_first = count >= SHARED_OUTAGE_FAILURES and bool(resting) and not was_retried
        if is_first:
            self._retried.update(resting)
        return before if is_first or was_retried else share

    def is_resting(self, agent_id: str, ahead: int) -> bool:
        """Return whether other agents are preferred, because the provider of this one fails.

        When its rest is over it is tried with one task: it rests on while it has any. Only what this process saw.
        """
        # Without an outage this is all that a routing decision pays for each candidate.
        if agent_id not in self._provider_failures:
            return False
        now = self._now()
        count, until = self._provider_failures[agent_id]
        return count >= MAX_FAILURES and (ahead > 0 or (now < until and agent_id not in self._retried))

    def failing_share(self, agent_id: str) -> float:
        """Return which share of an agent's tasks its provider fails or ends degraded, from 0 to 1.

        Only what this process saw.
        """
        if agent_id not in self._failing:
            return 0.0
        if agent_id in self._retried:
            return self._before_failures[agent_id]
        now = self._now()
        share, at, interval = self._failing[agent_id]
        half_life = min(MAX_FAILING_HALF_LIFE_US, max(FAILING_HALF_LIFE_US, FAILING_HALF_LIFE_ATTEMPTS * interval))
        # The usual time between two attempts is no sign of recovery: an agent that always fails must approach 1.
        return share * math.exp2(-max(0, now - at - interval) / half_life)

    def offline_endpoints(self) -> list[str]:
        """Return the ids of the agents whose endpoints are paused."""
        # Each attempt asks twice, and almost always none is paused.
        if not self._paused_until:
            return []
        now = self._now()
        return [agent_id for agent_id, until in self._paused_until.items() if now < until]

    def release_endpoints(self) -> list[str]:
        """Resume the endpoints whose pause is over and return their agents' ids."""
        now = self._now()
        resumed = [agent_id for agent_id, until in self._paused_until.items() if until <= now]
        for agent_id in resumed:
            del self._paused_until[agent_id]
            self.notify_arrival()
        return resumed

    def record_poll(self, agent_id: str, poll: object, slots: int) -> None:
        """Record how many tasks a worker polls for. An agent may have several workers, each with a poll."""
        self._slots.setdefault(agent_id, {})[poll] = slots
        self._polled[agent_id] = self._now()

    def remove_poll(self, agent_id: str, poll: object) -> None:
        """Record that a poll has ended, if it was recorded."""
        polls = self._slots.get(agent_id, {})
        polls.pop(poll, None)
        if not polls:
            self._slots.pop(agent_id, None)

    def record_lost_poll(self, agent_id: str) -> None:
        """Record that a worker ended its poll early: it may be gone, so it has no free slot until it polls again."""
        self._polled.pop(agent_id, None)

    def record_lease(self, agent_id: str, task_id: str, until: int) -> None:
        """Record the lease of a worker on a task; `until` in microseconds."""
        self._leases.setdefault(agent_id, {})[task_id] = until

    def record_start(self, agent_id: str, task_id: str, until: int) -> None:
        """Record that a worker took a task, with its lease."""
        load = self.count_held(agent_id) - (task_id in self._leases.get(agent_id, {}))
        self._start_loads.setdefault(agent_id, {})[task_id] = load
        self.record_lease(agent_id, task_id, until)

    def load_at_start(self, agent_id: str, task_id: str) -> int | None:
        """Return how many other tasks a worker worked on when it took this one; None if it took it elsewhere."""
        return self._start_loads.get(agent_id, {}).get(task_id)

    def record_claim(self, agent_id: str) -> None:
        """Record that a worker took tasks in this process."""
        self._progressed[agent_id] = self._now()

    def remove_lease(self, agent_id: str, task_id: str) -> None:
        leases = self._leases.get(agent_id)
        self._start_loads.get(agent_id, {}).pop(task_id, None)
        if leases is not None and leases.pop(task_id, None) is not None and agent_id in self._progressed:
            self._progressed[agent_id] = self._now()

    def has_free_slot(self, agent_id: str) -> bool:
        """Return whether a worker would take a task at once: it polls this process, or has polled it lately and holds
        nothing.
        """
        if agent_id in self._slots:
            return True
        polled = self._polled.get(agent_id)
        return polled is not None and self._now() - polled < POLL_GAP_US and not self.count_held(agent_id)

    def count_slots(self, agent_id: str) -> int:
        """Return how many tasks a worker polls for; at least 1."""
        return max(1, sum(self._slots.get(agent_id, {}).values()))

    def stalled_ms(self, agent_id: str) -> float:
        """Return for how many milliseconds a worker has held tasks without taking, ending or asking for one.

        0 without tasks, and of a worker that took none in this process, which does not see what it asks for.
        """
        progressed = self._progressed.get(agent_id)
        if progressed is None or not self._leases.get(agent_id) or self._polled.get(agent_id, 0) > progressed:
            return 0.0
        return (self._now() - progressed) / 1000

    def count_held(self, agent_id: str) -> int:
        """Return how many tasks a worker executes, as far as this process knows."""
        leases = self._leases.get(agent_id)
        if not leases:
            return 0
        now = self._now()
        # Nobody reports an expired lease of another process, so it is forgotten when it is counted.
        for task_id in [task_id for task_id, until in leases.items() if until < now]:
            del leases[task_id]
            self._start_loads.get(agent_id, {}).pop(task_id, None)
        return len(leases)

    def concurrency(self, agent_id: str) -> int:
        """Return how many tasks a worker runs at a time: those it holds and those it polls for."""
        return max(1, self.count_held(agent_id) + sum(self._slots.get(agent_id, {}).values()))

    def _now(self) -> int:
        now, monotonic = self._clock.now(), self._clock.monotonic()
        offset = now - self._latest - (monotonic - self._latest_monotonic)
        if abs(offset) > SECOND:
            self._shift_times(offset)
        self._latest, self._latest_monotonic = now, monotonic
        return now

    def _shift_times(self, offset: int) -> None:
        """Shift all recorded times after the machine's clock was set.

        Else an agent that is gone would stay online, and an endpoint paused, for as long as the clock was ahead; and
        all workers would be offline at once when it is set ahead.
        """
        self._started += offset
        rests = self._provider_failures
        self._provider_failures = {key: (count, until + offset) for key, (count, until) in rests.items()}
        failing = self._failing.items()
        self._failing = {key: (share, at + offset, interval) for key, (share, at, interval) in failing}
        known = self._seen, self._left, self._announced, self._paused_until, self._polled, self._progressed
        for times in (*known, *self._leases.values()):
            for key in times:
                times[key] += offset
