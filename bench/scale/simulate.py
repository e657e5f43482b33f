"""A discrete-event simulation: tasks in bursts go through gateways, group commit, dispatch and their end.

Each process has one writer, which takes all units that wait (at most 128) into one transaction. A transaction holds one
of the server's cores for its units' CPU, then waits for its flush. Same seed, same answer.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy

MOST_TOGETHER = 128
SUBMIT, CLAIM, FINISH = range(3)
Action = Callable[[float], None]


@dataclass(frozen=True)
class Traffic:
    """Requests come in bursts, `burst` at a time on average; it swings from `rate` to `peak` times that and back."""

    rate: float
    seconds: float
    peak: float = 1.0
    burst: float = 1.0
    seed: int = 1

    def arrivals(self) -> list[float]:
        """Seconds, in order: a thinned Poisson process of bursts of geometric size."""
        dice = numpy.random.default_rng(self.seed)
        most = self.rate * self.peak / self.burst
        starts = numpy.sort(dice.uniform(0, self.seconds, dice.poisson(most * self.seconds)))
        swing = 1 + (self.peak - 1) * numpy.sin(numpy.pi * starts / self.seconds) ** 2
        starts = starts[dice.uniform(0, self.peak, len(starts)) < swing]
        sizes = dice.geometric(1 / self.burst, len(starts)) if self.burst > 1 else numpy.ones(len(starts), int)
        return [float(at) for at in numpy.repeat(starts, sizes)]


@dataclass(frozen=True)
class Times:
    """Seconds. `units`: CPU of the server for the submit, the claim and the end of a task.

    `speed`: what is left of each core beside the background work.
    """

    units: tuple[float, float, float]
    gateway: float = 0.0
    flush: float = 0.0
    hint: float = 0.0
    work: float = 0.0
    speed: float = 1.0


@dataclass
class Answer:
    """Seconds, one for each task: from the request to its 202, and from there until it is claimed."""

    submits: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    finished: int = 0
    transactions: int = 0

    def figures(self) -> dict[str, float]:
        found = {}
        for name, values in (("submit", self.submits), ("waiting", self.waits)):
            for share in (50, 99):
                found[f"{name} p{share}"] = float(numpy.percentile(values, share)) if values else 0.0
        return found


class Writer:
    """The one writer of a process: while it works, units gather."""

    def __init__(self, run: Simulation) -> None:
        self._run = run
        self._waiting: deque[tuple[int, Action]] = deque()
        self._busy = False

    def put(self, now: float, kind: int, done: Action) -> None:
        self._waiting.append((kind, done))
        if not self._busy:
            self._next(now)

    def _next(self, now: float) -> None:
        group = [self._waiting.popleft() for _ in range(min(MOST_TOGETHER, len(self._waiting)))]
        self._busy = bool(group)
        if not group:
            return
        times = self._run.times
        seconds = sum(times.units[kind] for kind, _ in group) / times.speed

        def committed(at: float) -> None:
            for _, done in group:
                done(at)
            self._next(at)

        self._run.answer.transactions += 1
        self._run.on_server(now, seconds, lambda at: self._run.at(at + times.flush, committed))


class Simulation:
    def __init__(self, traffic: Traffic, times: Times, gateways: int, cores: int) -> None:
        self.times = times
        self.answer = Answer()
        self._traffic = traffic
        self._dice = numpy.random.default_rng(traffic.seed + 1)
        self._writers = [Writer(self) for _ in range(gateways)]
        self._events: list[tuple[float, int, Action]] = []
        self._number = 0
        self._free = cores
        self._queue: deque[tuple[float, Action]] = deque()

    def run(self) -> Answer:
        for came in self._traffic.arrivals():
            self.at(came + self.times.gateway, self._submit(came))
        while self._events:
            now, _, action = heapq.heappop(self._events)
            action(now)
        return self.answer

    def at(self, when: float, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, action))

    def on_server(self, now: float, seconds: float, done: Action) -> None:
        """One core for that long; whoever comes first has it first."""
        if self._free == 0:
            self._queue.append((seconds, done))
            return
        self._free -= 1
        self._hold(now, seconds, done)

    def _hold(self, now: float, seconds: float, done: Action) -> None:
        def ended(at: float) -> None:
            if self._queue:
                self._hold(at, *self._queue.popleft())
            else:
                self._free += 1
            done(at)

        self.at(now + seconds, ended)

    def _writer(self) -> Writer:
        return self._writers[int(self._dice.integers(len(self._writers)))]

    def _submit(self, came: float) -> Action:
        return lambda now: self._writer().put(now, SUBMIT, lambda at: self._submitted(came, at))

    def _submitted(self, came: float, now: float) -> None:
        self.answer.submits.append(now - came)
        heard = now + float(self._dice.uniform(0, self.times.hint)) if self.times.hint else now
        worker = self._writer()
        self.at(heard, lambda at: worker.put(at, CLAIM, lambda done: self._claimed(now, worker, done)))

    def _claimed(self, since: float, worker: Writer, now: float) -> None:
        self.answer.waits.append(now - since)
        lasts = float(self._dice.exponential(self.times.work)) if self.times.work else 0.0
        self.at(now + lasts, lambda at: worker.put(at, FINISH, self._finished))

    def _finished(self, _now: float) -> None:
        self.answer.finished += 1


def of_one_server(load: float, service: float) -> float:
    """Mean wait before the service in an M/D/1 queue, seconds; `load` is its utilisation."""
    return load * service / (2 * (1 - load))
