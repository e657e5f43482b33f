"""What governance adds: one tier, one patch compared, one question to a policy file, admission with and without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from bench.figures import Figure, at_most, percentile, spread
from bench.sizes import Scale
from stentor.bootstrap.parts.agents import routing_policy_check
from stentor.core import ids
from stentor.core.security.policy import PolicyEntity, PolicySet
from stentor.domains.governance import impact
from stentor.domains.governance.impact import AgentConfig, TierFacts
from stentor.domains.governance.model import Changes
from stentor.domains.registry import authorization as agent_policy
from stentor.domains.registry.model import Agent, AllowedNetwork, AllowedTool, Runtime, SandboxWhitelist
from stentor.domains.routing import model as routing
from stentor.domains.routing.candidates import AgentCandidate
from stentor.domains.routing.model import RoutingPolicy, RoutingRequest
from stentor.domains.routing.track_record import build_track_record

TITLE = "governance and the policy file"
FILE = """
forbid (principal, action == Action::"route", resource == TaskType::"deploy")
unless { context has trust && context.trust.greaterThanOrEqual(decimal("0.8")) };
forbid (principal, action == Action::"route", resource) when { principal.trust_tier == "human" };
forbid (principal, action == Action::"route", resource) when { principal.capabilities.contains("payments") };
forbid (principal, action == Action::"use_tool", resource == Tool::"shell") unless { principal.runtime == "builtin" };
forbid (principal, action == Action::"use_tool", resource) when { context has path && context.path like "*/secrets/*" };
forbid (principal, action == Action::"propose_update", resource) when { context.files_modified.contains("main.py") };
"""
FILES = tuple(f"src/module_{n}.py" for n in range(20))
FACTS = TierFacts("code", Changes(FILES, 40, 20, 9_000, False, False, False), trust=0.93)
REQUEST = RoutingRequest("default", "review", ("review",))


def run(scale: Scale) -> list[Figure]:
    rounds, count = scale.pick(scale.rounds, 3), scale.pick(5_000, 300)
    rules, agent = PolicySet(FILE), _agent()
    candidate = AgentCandidate(agent, build_track_record(agent.composite, 0.2, 7.0, 8.0), 0.85)
    built_in, with_file = (
        RoutingPolicy(trust_floor=0.5),
        RoutingPolicy(trust_floor=0.5, is_permitted=routing_policy_check(rules)),
    )
    now = impact.agent_config(agent)
    then = AgentConfig(now.capabilities[:1], now.runtime, now.sandbox_whitelist)
    tool, context = PolicyEntity("Tool", "files"), {"operation": "read", "path": "notes/a.md"}

    def figure(name: str, call: Callable[[], object], limit: float | None, how: str) -> Figure:
        found = [[_timed(call) for _ in range(count)] for _ in range(rounds)]
        values = [value for each in found for value in each]
        note = f"p99 {percentile(values, 0.99):.1f} µs; {spread([median(each) for each in found])}"
        return Figure(name, median(values), "µs", how, at_most(limit) if limit else None, note)

    times = f"in process, {rounds * count:,} times"
    return [
        figure("tier p50", lambda: impact.classify_tier(FACTS), 50, f"`tiers.classify`, 20 files named, {times}"),
        figure("patch compared p50", lambda: impact.is_widening(now, then), 50, "20 tools with 3 paths each"),
        figure(
            "admission p50", lambda: routing.find_denial(REQUEST, candidate, built_in), 50, "one candidate, all checks"
        ),
        figure(
            "policy decision p50",
            lambda: rules.authorize("use_tool", agent_policy.to_policy_entity(agent), tool, context),
            200,
            f"`Rules.ask` with the entity of its agent, a file of six policies, {times}",
        ),
        figure(
            "admission with a policy file p50",
            lambda: routing.find_denial(REQUEST, candidate, with_file),
            200,
            "the same candidate, and the file asked after the checks",
        ),
    ]


def _agent() -> Agent:
    tools = tuple(AllowedTool(f"tool-{n}", ("a/**", "b/*.md", "c/?"), ("read", "write"), 60) for n in range(20))
    may = SandboxWhitelist(tools, AllowedNetwork(("api.example",), (443,)))
    capabilities = ("review", "summarize", "translate")
    names = (ids.new_id(), "default", "ann", capabilities)
    return Agent(*names, 0.8, 0.7, 0.9, "auto", "active", Runtime(), may, None, 0, None, 0, 0)


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - started) / 1000
