"""Plays a policy in a world."""

from __future__ import annotations

from collections import deque
from random import Random

import msgspec

from bench.routing.policies import POLICIES, penalties
from bench.routing.worlds import KINDS

RECOVERY = 50
"""Tasks after a shift within which the best agent is to be found again."""


class Played(msgspec.Struct, frozen=True):
    """`back`: the best agent was chosen within RECOVERY tasks after a shift; None where nothing shifts."""

    kind: str
    policy: str
    agents: int
    regret: float
    back: bool | None


def play(kind: str, policy: str, agents: int, tasks: int, seed: int) -> Played:
    """The world is the same for every policy of a seed."""
    random = Random(f"{kind}/{agents}/{seed}")
    world = KINDS[kind](random, agents, tasks)
    less = penalties(world)
    player = POLICIES[policy](world, Random(seed))
    draw = Random(f"outcomes/{seed}")
    ahead = [0] * agents
    flying: deque[tuple[int, int, float, int | None]] = deque()
    regret, back = 0.0, None if world.shift_at is None else False
    for t in range(tasks):
        task_type = draw.randrange(world.types) if world.types > 1 else 0
        rates = world.rates(t, task_type)
        length = world.lengths[t] if world.lengths else None
        chosen = player.choose(task_type, ahead, length)
        values = [rate - loss for rate, loss in zip(rates, less, strict=True)]
        best = max(values)
        regret += best - values[chosen]
        if world.shift_at is not None and 0 <= t - world.shift_at < RECOVERY and values[chosen] == best:
            back = True
        reward = _reward(rates[chosen], draw, graded=world.graded)
        ahead[chosen] += 1
        flying.append((task_type, chosen, reward, length))
        if len(flying) > world.delay:
            done_type, done, worth, done_length = flying.popleft()
            ahead[done] -= 1
            player.learn(done_type, done, worth, done_length)
    return Played(kind, policy, agents, regret, back)


def _reward(rate: float, draw: Random, *, graded: bool) -> float:
    if not graded:
        return 1.0 if draw.random() < rate else 0.0
    return draw.betavariate(8 * rate, 8 * (1 - rate)) if 0 < rate < 1 else rate
