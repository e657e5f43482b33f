"""Tells one process about a queued task: for an agent inside the service one that runs agents, for a worker one where
its workers were seen. If it has no free slot, it passes the hint on.

Only messages, so a hint may be lost, and then the poll of `postgres_dispatcher.py` finds the task. A process that does
not know others yet tells all.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from stentor.core.fanout import Fanout, ProcessWorks, Reconnected, TaskQueued, WorkerSeen

TRIES = 2
"""How many processes are told one after the other before all are."""
RENEW_SECONDS, RENEW_SECONDS_EACH = 5.0, 0.1
"""How often a process says that it runs agents: at least the first, or the second times their number, so that all
together send at most ten such messages a second."""
LIFETIMES = 3
"""Renewals that may be lost before a process is forgotten."""
WORKER_SECONDS = 30.0
"""How long a process gets hints about an agent's tasks after it announced a worker, which it does every 10 s."""
MAX_PLACES = 8
"""Processes that are known for each agent outside; the workers of one are seldom at more."""


class Places:
    """Processes with expiry times. The last one gets the next hint."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, process: str, until: float, *, first: bool) -> None:
        """Add or renew a process; with `first` it is the next one to be told."""
        self._until[process] = until
        if first:
            self._until.move_to_end(process)
        while first and len(self._until) > MAX_PLACES:
            self._until.popitem(last=False)

    def remove(self, process: str) -> None:
        self._until.pop(process, None)

    def forget(self, now: float) -> None:
        for process in [process for process, until in self._until.items() if until < now]:
            del self._until[process]

    def others(self, tried: Iterable[str]) -> list[str]:
        """Return the processes except those that were tried, the next one first."""
        return [process for process in reversed(self._until) if process not in tried]

    def turn(self, process: str) -> None:
        """Move the process to the end of the turn order."""
        self._until.move_to_end(process, last=False)


class TaskHints:
    """Sends and receives the hints of queued tasks.

    `take` starts a look for a task of an agent, which is inside the service or not; it returns False if this process
    has no free slot, and must look by itself as soon as it has one.
    """

    def __init__(self, fanout: Fanout, take: Callable[[str, bool], bool]) -> None:
        self._fanout = fanout
        self._take = take
        self._clock = time.monotonic
        self._working = Places()
        self._workers: dict[str, Places] = {}
        self._works = False
        self._renewed_at = self._clock()
        self._complete_at = self._clock() + WORKER_SECONDS
        """Time from which on all processes that can take tasks are known here."""
        fanout.subscribe(TaskQueued, self._on_queued)
        fanout.subscribe(ProcessWorks, self._on_works)
        fanout.subscribe(WorkerSeen, self._on_worker)
        fanout.subscribe(Reconnected, lambda _: self._on_reconnect())

    def tell(self, agent_id: str, *, inside: bool) -> None:
        """Have a task of the agent looked for: here if a slot is free, else in another process."""
        if not self._take(agent_id, inside):
            self.pass_on(agent_id, inside=inside)

    def pass_on(self, agent_id: str, *, inside: bool, tried: tuple[str, ...] = ()) -> None:
        """Have a task of the agent looked for in another process; those in `tried` had no free slot."""
        now, tried = self._clock(), (*tried, self._fanout.own_id)
        places = self._working if inside else self._workers.get(agent_id, Places())
        places.forget(now)
        others = places.others(tried)
        if others and len(tried) <= TRIES:
            places.turn(others[0])
            self._fanout.send(TaskQueued(agent_id, inside, tried), others[0])
        elif others or not places or now < self._complete_at:
            self._fanout.send(TaskQueued(agent_id, inside))
        # Otherwise every process that could take it has been told, and looks as soon as it has a free slot.

    def has_others(self, agent_id: str) -> bool:
        """Return whether workers of the agent may wait in other processes."""
        places = self._workers.get(agent_id)
        is_known = places is not None and self._clock() >= self._complete_at
        return not is_known or (places is not None and bool(places.others((self._fanout.own_id,))))

    def worker_waits(self, agent_id: str) -> None:
        """Record that a worker of the agent waits in this process."""
        self._place_worker(agent_id, self._fanout.own_id)

    def start_working(self) -> None:
        """Announce that this process runs agents, now and then again at each `renew` that is due."""
        self._works = True
        self._announce()

    def stop_working(self) -> None:
        if self._works:
            self._works = False
            self._fanout.send(ProcessWorks(self._fanout.own_id, 0))

    def renew(self) -> None:
        """Announce again what others would forget, and forget what they no longer announce. Call it each second."""
        now = self._clock()
        if now - self._renewed_at < self._interval():
            return
        self._renewed_at = now
        self._working.forget(now)
        for agent_id, places in list(self._workers.items()):
            places.forget(now)
            if not places:
                del self._workers[agent_id]
        self._announce()

    def _interval(self) -> float:
        return max(RENEW_SECONDS, RENEW_SECONDS_EACH * len(self._working))

    def _announce(self) -> None:
        if self._works:
            # It knows itself too: a process that knows only itself need not tell all others.
            seconds = LIFETIMES * self._interval()
            self._working.add(self._fanout.own_id, self._clock() + seconds, first=False)
            self._fanout.send(ProcessWorks(self._fanout.own_id, seconds))

    def _on_queued(self, message: TaskQueued) -> None:
        if not self._take(message.agent_id, message.in_process) and message.tried:
            self.pass_on(message.agent_id, inside=message.in_process, tried=message.tried)

    def _on_works(self, message: ProcessWorks) -> None:
        if message.seconds:
            self._working.add(message.process, self._clock() + message.seconds, first=False)
        else:
            self._working.remove(message.process)

    def _on_worker(self, message: WorkerSeen) -> None:
        if message.left:
            self._workers.pop(message.agent_id, None)
        else:
            self._place_worker(message.agent_id, message.process)

    def _place_worker(self, agent_id: str, process: str) -> None:
        places = self._workers.setdefault(agent_id, Places())
        places.add(process, self._clock() + WORKER_SECONDS, first=True)

    def _on_reconnect(self) -> None:
        self._complete_at = self._clock() + WORKER_SECONDS
        self._announce()
