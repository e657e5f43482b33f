"""Worlds: agents with true rates of success that only the simulation knows, what they declare, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

Rates = Callable[[int, int], list[float]]
"""(task number, task type) -> each agent's true rate of success."""
LOW, HIGH = 0.3, 0.95
DOUBLING = 0.15
"""What a doubling of the cost takes off a task's value where costs differ: the price of `prefer: cheap`."""


@dataclass
class World:
    """`delay` answers are outstanding before the first one comes; `graded` ones are worth a part of a success.

    `lengths` are those of the tasks' inputs in bytes; without any, all are as long.
    """

    agents: int
    tasks: int
    rates: Rates
    declared: list[float]
    types: int = 1
    delay: int = 0
    graded: bool = False
    costs: list[float] = field(default_factory=list)
    shift_at: int | None = None
    lengths: list[int] = field(default_factory=list)


def _drawn(random: Random, agents: int) -> list[float]:
    return [random.uniform(LOW, HIGH) for _ in range(agents)]


def _declared(random: Random, rates: list[float]) -> list[float]:
    """Half truth, half chance."""
    return [(rate + random.uniform(LOW, HIGH)) / 2 for rate in rates]


def stationary(random: Random, agents: int, tasks: int) -> World:
    rates = _drawn(random, agents)
    return World(agents, tasks, lambda t, kind: rates, _declared(random, rates))


def shift(random: Random, agents: int, tasks: int) -> World:
    """Half way the rates change places."""
    before = _drawn(random, agents)
    after = random.sample(before, agents)
    half = tasks // 2
    declared = _declared(random, before)
    return World(agents, tasks, lambda t, kind: before if t < half else after, declared, shift_at=half)


def clear_shift(random: Random, agents: int, tasks: int) -> World:
    """One agent is clearly the best (0.9, the others at most 0.7), and half way another one."""
    before = [random.uniform(0.2, 0.7) for _ in range(agents)]
    first, second = random.sample(range(agents), 2)
    before[first] = 0.9
    after = list(before)
    after[first], after[second] = before[second], before[first]
    half = tasks // 2
    declared = _declared(random, before)
    return World(agents, tasks, lambda t, kind: before if t < half else after, declared, shift_at=half)


def drift(random: Random, agents: int, tasks: int) -> World:
    """Each rate walks at random, and is reflected at 0.05 and 0.98."""
    path = [_drawn(random, agents)]
    for _ in range(tasks - 1):
        moved = [rate + random.gauss(0, 0.012) for rate in path[-1]]
        path.append([0.1 - rate if rate < 0.05 else 1.96 - rate if rate > 0.98 else rate for rate in moved])
    return World(agents, tasks, lambda t, kind: path[t], _declared(random, path[0]))


def outage(random: Random, agents: int, tasks: int) -> World:
    """The best agent fails everything for a quarter of the time, then is as good as before."""
    rates = _drawn(random, agents)
    without = list(rates)
    without[rates.index(max(rates))] = 0.0
    away = range(tasks // 4, tasks // 2)
    return World(agents, tasks, lambda t, kind: without if t in away else rates, _declared(random, rates))


def misleading(random: Random, agents: int, tasks: int) -> World:
    """The worse an agent is, the more it declares."""
    rates = _drawn(random, agents)
    return World(agents, tasks, lambda t, kind: rates, [HIGH + LOW - rate for rate in rates])


def silent(random: Random, agents: int, tasks: int) -> World:
    """Every agent declares the same: the default scores of a registration."""
    rates = _drawn(random, agents)
    return World(agents, tasks, lambda t, kind: rates, [0.5] * agents)


def many_types(random: Random, agents: int, tasks: int) -> World:
    """200 task types with ten tasks each: an agent is about as good at each as in general."""
    general = _drawn(random, agents)
    rates = [[min(0.99, max(0.02, rate + random.gauss(0, 0.15))) for rate in general] for _ in range(200)]
    return World(agents, tasks, lambda t, kind: rates[kind], _declared(random, general), types=200)


def few_types(random: Random, agents: int, tasks: int) -> World:
    """Ten task types at which the agents' skills have nothing to do with each other."""
    rates = [_drawn(random, agents) for _ in range(10)]
    return World(agents, tasks, lambda t, kind: rates[kind], _declared(random, rates[0]), types=10)


def delayed(random: Random, agents: int, tasks: int) -> World:
    """32 tasks are in flight before the first answer."""
    world = stationary(random, agents, tasks)
    world.delay = 32
    return world


def delayed_shift(random: Random, agents: int, tasks: int) -> World:
    world = shift(random, agents, tasks)
    world.delay = 32
    return world


def graded(random: Random, agents: int, tasks: int) -> World:
    """Every answer comes, and is worth a part of a success."""
    world = stationary(random, agents, tasks)
    world.graded = True
    return world


def costly(random: Random, agents: int, tasks: int) -> World:
    """Agents cost from 0.1 to 10 cents, and a doubling of the cost is worth 0.15 of a success."""
    world = stationary(random, agents, tasks)
    world.costs = [0.001 * 10 ** random.uniform(0, 2) for _ in range(agents)]
    return world


def lengths(random: Random, agents: int, tasks: int) -> World:
    """Inputs from 100 bytes to 100 kB. Half of the agents fail those that are longer than their own limit."""
    rates = _drawn(random, agents)
    limits = [10 ** random.uniform(2, 5) if random.random() < 0.5 else 10**9 for _ in range(agents)]
    drawn = [int(10 ** random.uniform(2, 5)) for _ in range(tasks)]
    return World(
        agents,
        tasks,
        lambda t, kind: [rate if drawn[t] < limit else 0.0 for rate, limit in zip(rates, limits, strict=True)],
        _declared(random, rates),
        lengths=drawn,
    )


KINDS: dict[str, Callable[[Random, int, int], World]] = {
    "stationary": stationary,
    "shift": shift,
    "clear shift": clear_shift,
    "drift": drift,
    "outage": outage,
    "misleading": misleading,
    "silent": silent,
    "200 types": many_types,
    "10 types": few_types,
    "32 in flight": delayed,
    "32 in flight, shift": delayed_shift,
    "graded": graded,
    "costs": costly,
    "lengths": lengths,
}
