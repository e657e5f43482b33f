"""Runs all worlds, in as many processes as there are cores, and makes the figures."""

from __future__ import annotations

import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from statistics import mean

from bench.figures import Figure, at_least, at_most
from bench.routing.policies import PEERS, POLICIES
from bench.routing.simulation import Played, play
from bench.routing.worlds import KINDS
from bench.sizes import Scale, say

TITLE = "what learning who is best costs"
SIZES = (2, 5, 10, 20, 50)
OURS = "ours"


def run(scale: Scale) -> list[Figure]:
    worlds, tasks, sizes = scale.pick((20, 2_000, SIZES), (4, 200, (2, 5)))
    played: dict[tuple[str, str], list[Played]] = defaultdict(list)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for kind in KINDS:
            say(f"routing: {kind}")
            jobs = [(kind, policy, n, tasks, seed) for policy in POLICIES for n in sizes for seed in range(worlds)]
            for one in pool.map(_play, jobs, chunksize=max(1, worlds // 4)):
                played[one.kind, one.policy].append(one)
    how = f"{worlds} worlds each with {', '.join(map(str, sizes))} agents, {tasks:,} tasks"
    return [*_regrets(played, how), *_targets(played, how)]


def _play(job: tuple[str, str, int, int, int]) -> Played:
    return play(*job)


def _regrets(played: dict[tuple[str, str], list[Played]], how: str) -> list[Figure]:
    figures = []
    for (kind, policy), games in played.items():
        regrets = [game.regret for game in games]
        sizes = sorted({game.agents for game in games})
        worst = mean(_worst([g.regret for g in games if g.agents == size]) for size in sizes)
        means = "/".join(f"{mean(g.regret for g in games if g.agents == size):.0f}" for size in sizes)
        note = f"worst tenth {worst:.0f}; by size {means}"
        figures.append(Figure(f"{kind}: {policy}", mean(regrets), "regret", how, None, note))
    return figures


def _worst(regrets: list[float]) -> float:
    """Mean of the worst tenth."""
    return mean(sorted(regrets)[-max(1, len(regrets) // 10) :])


def _targets(played: dict[tuple[str, str], list[Played]], how: str) -> list[Figure]:
    regret = {key: mean(game.regret for game in games) for key, games in played.items()}
    against = {kind: regret[kind, OURS] / min(regret[kind, peer] for peer in PEERS) for kind in KINDS}
    worst = max(against, key=lambda kind: against[kind])
    every = played["clear shift", OURS]
    by_size = {n: [game for game in every if game.agents == n] for n in sorted({game.agents for game in every})}
    sizes = "/".join(f"{_share(games):.2f}" for games in by_size.values())
    stationary = regret["stationary", OURS] / regret["stationary", "Thompson"]
    shifted = regret["shift", OURS] / regret["shift", "Thompson"]
    return [
        Figure("stationary, ours / Thompson", stationary, "×", how, at_most(1)),
        Figure("shift, ours / Thompson", shifted, "×", how, at_most(0.5)),
        Figure("worst kind of world, ours / best peer", against[worst], "×", f"{how}; it is: {worst}", at_most(2)),
        Figure(
            "back on a clear best agent in 50 tasks",
            _share(every),
            "of worlds",
            how,
            at_least(0.9),
            f"by size {sizes}",
        ),
    ]


def _share(games: list[Played]) -> float:
    return mean(1.0 if game.back else 0.0 for game in games)
