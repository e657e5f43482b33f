"""Finds the agents of the runtime llm whose model no provider serves.

Routing and reads of agents take what the latest check found: they never wait for a provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from stentor.core.jsontext import JsonObject
from stentor.core.timers import tick_forever, wait_until_tick
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence

INTERVAL_SECONDS = 30.0
"""For changes of which this process gets no message: a provider registered at another one, a changed list of models."""
CONCURRENT_CHECKS = 8
FindModelProblem = Callable[[str, str], Awaitable[str | None]]
"""(tenant, model) -> why no provider serves the model, empty for the default one; None if one does or may."""


class ModelChecks:
    """Checks the models of agents when agents or providers change, and records the result in `presence`."""

    def __init__(self, agents: AgentCache, presence: Presence, find_problem: FindModelProblem) -> None:
        self._agents, self._presence, self._find_problem = agents, presence, find_problem
        self._changed = asyncio.Event()
        self._problems: dict[tuple[str, str], str | None] = {}
        """(tenant, model) -> what the latest check found."""
        agents.listeners.append(self._notice_agent)

    def notice_change(self) -> None:
        """Check all again soon: the providers or the routes of models have changed."""
        self._changed.set()

    def _notice_agent(self, agent: Agent) -> None:
        if agent.runtime.kind == "llm":
            self._changed.set()

    def known_problem(self, agent: Agent) -> str | None:
        """Return why the model of an agent cannot be called, as the latest check found; None if it was not checked."""
        return self._problems.get((agent.tenant, model_of(agent))) if agent.runtime.kind == "llm" else None

    async def check(self, agent: Agent) -> str | None:
        """Ask the providers now why the model of an agent cannot be called; None if it can, or for other runtimes.

        May take seconds, so it is for changes of agents and not for reads.
        """
        if agent.runtime.kind != "llm":
            return None
        problem = await self._find_problem(agent.tenant, model_of(agent))
        self._record(agent, problem)
        return problem

    async def check_patch(self, tenant: str, agent_id: str, patch: JsonObject) -> str | None:
        """Ask the providers why the model that a JSON merge patch gives to an agent cannot be called.

        None if it can be, and for a patch that names no model or an agent of another runtime.
        """
        agent = self._agents.get(tenant, agent_id)
        runtime = patch.get("runtime")
        options = runtime.get("options") if isinstance(runtime, dict) else None
        if agent is None or agent.runtime.kind != "llm" or not isinstance(options, dict) or "model" not in options:
            return None
        return await self._find_problem(tenant, str(options["model"] or ""))

    def _record(self, agent: Agent, problem: str | None) -> None:
        self._problems[agent.tenant, model_of(agent)] = problem
        self._presence.record_model(agent.agent_id, served=problem is None)

    async def run(self) -> None:
        """Run forever. After a check that failed the agents stay as they are until the next one."""
        await tick_forever("models of agents", partial(wait_until_tick, self._changed, INTERVAL_SECONDS), self.tick)

    async def tick(self) -> None:
        """Check each model of the agents that are not archived once."""
        self._changed.clear()
        agents: dict[tuple[str, str], list[Agent]] = {}
        for agent in self._agents.list_all():
            if agent.runtime.kind == "llm" and not agent.is_archived:
                agents.setdefault((agent.tenant, model_of(agent)), []).append(agent)
        for outdated in self._problems.keys() - agents.keys():
            del self._problems[outdated]
        # Several at once, so that an unresponsive provider hardly delays the models of the others.
        limit = asyncio.Semaphore(CONCURRENT_CHECKS)

        async def check(tenant: str, model: str) -> None:
            async with limit:
                problem = await self._find_problem(tenant, model)
            for agent in agents[tenant, model]:
                self._record(agent, problem)

        await asyncio.gather(*(check(*key) for key in agents))


def model_of(agent: Agent) -> str:
    """Return the model of an agent of the runtime llm, empty for the gateway's default one."""
    return str(agent.runtime.options.get("model") or "")


def describe_unserved(agent: Agent) -> str:
    """Return why an agent of the runtime llm is not online."""
    return f"no provider serves {model_of(agent) or 'the default model'}"
