"""The cost of one routing decision, and that it does not grow with the agents that are no candidates."""

from __future__ import annotations

import gc
import time
from statistics import median

import msgspec

from bench.figures import Figure, at_most, percentile, spread
from bench.sizes import Scale
from stentor.core import ids
from stentor.core.clock import SystemClock
from stentor.domains.learning.model import Weight
from stentor.domains.learning.view import LearningView
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent, Runtime, SandboxWhitelist
from stentor.domains.routing.model import RoutingPolicy, RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.trust.model import TrustEntity
from stentor.domains.trust.service import TrustView

TITLE = "one routing decision"
CANDIDATES = 50
FEW, MANY = 1_000, 100_000
REQUEST = RoutingRequest("default", "review", ("review",))


def run(scale: Scale) -> list[Figure]:
    sizes = {size: routing(size) for size in (FEW, MANY)}
    gc.freeze()  # as `stentor serve` does once it is ready
    times: dict[int, list[float]] = {size: [] for size in sizes}
    rounds: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(scale.pick(scale.rounds, 3)):
        for size, router in sizes.items():
            found = timed(router, scale.pick(4_000, 500))
            times[size] += found
            rounds[size].append(median(found))
    gc.unfreeze()
    return _figures(times, rounds)


def _figures(times: dict[int, list[float]], rounds: dict[int, list[float]]) -> list[Figure]:
    who = f"{CANDIDATES} candidates with weight and trust, both of which count"
    how = f"`routing.decide` in process, {len(times[MANY]):,} times, {who}"
    many = median(times[MANY])
    return [
        Figure(f"decide p50, {MANY:,} agents", many, "µs", how, at_most(100), spread(rounds[MANY])),
        Figure(f"decide p99, {MANY:,} agents", percentile(times[MANY], 0.99), "µs", how),
        Figure(f"decide p50, {FEW:,} agents", median(times[FEW]), "µs", how, at_most(100)),
        Figure("growth for 100 times the agents", many / median(times[FEW]), "×", "ratio of the two p50"),
    ]


def routing(size: int) -> RoutingEngine:
    """`size` agents of which CANDIDATES have the wanted capability, each with a weight and a trust score."""
    snapshot, learning, trust, clock = AgentCache(), LearningView(), TrustView(), SystemClock()
    for n in range(size):
        candidate = n % (size // CANDIDATES) == 0
        agent = _agent(n, "review" if candidate else f"other-{n % 500}", clock.now())
        snapshot.put(agent)
        if candidate:
            rewards, tick = "ff" * (n % 40) + "00" * (n % 9), n % 300
            recent, strength = "S" * (n % 40) + "F" * (n % 9), 1.0 + n % 7 / 10
            weight = Weight(agent.agent_id, "review", strength, 12.0, 9, recent, clock.now(), rewards, tick)
            learning.put("default", weight)
            learning.put("default", msgspec.structs.replace(weight, task_type="other"))
            trust.put("default", TrustEntity(agent.agent_id, "agent", 0.5 + n % 5 / 10, clock.now()))
    return RoutingEngine(snapshot, learning, trust, clock, RoutingPolicy(0.2, 0.2, 0.1))


def _agent(n: int, capability: str, now: int) -> Agent:
    scores = (n % 10 / 10, n % 7 / 7, n % 3 / 3)
    runtime, may = Runtime(), SandboxWhitelist()
    return Agent(
        ids.new_id(),
        "default",
        f"agent-{n}",
        (capability,),
        *scores,
        "auto",
        "active",
        runtime,
        may,
        None,
        0,
        None,
        now,
        now,
    )


def timed(router: RoutingEngine, count: int) -> list[float]:
    """Microseconds of each decision."""
    found = []
    for _ in range(count):
        started = time.perf_counter_ns()
        router.decide(REQUEST)
        found.append((time.perf_counter_ns() - started) / 1000)
    return found
