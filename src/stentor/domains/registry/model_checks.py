"""Finds the agents of the runtime llm whose model no provider serves, so that routing knows it without a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from stentor.core.timers import tick_forever, wait_until_tick
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence

INTERVAL_SECONDS = 30.0
"""For what nobody tells this process: a provider registered at another one, or a list of models that has changed."""
FindModelProblem = Callable[[str, str], Awaitable[str | None]]
"""(tenant, model) -> why no provider serves the model, empty for the default one; None if one does or may."""


class ModelChecks:
    """Checks the models of agents when agents or providers change, and records the result in `presence`."""

    def __init__(self, agents: AgentCache, presence: Presence, find_problem: FindModelProblem) -> None:
        self._agents, self._presence, self._find_problem = agents, presence, find_problem
        self._changed = asyncio.Event()
        agents.listeners.append(self._notice_agent)

    def notice_change(self) -> None:
        """Check all again soon: the providers or the routes of models have changed."""
        self._changed.set()

    def _notice_agent(self, agent: Agent) -> None:
        if agent.runtime.kind == "llm":
            self._changed.set()

    async def check(self, agent: Agent) -> str | None:
        """Return why the model of an agent of the runtime llm cannot be called; None if it can, or for others."""
        if agent.runtime.kind != "llm":
            return None
        problem = await self._find_problem(agent.tenant, model_of(agent))
        self._presence.record_model(agent.agent_id, served=problem is None)
        return problem

    async def run(self) -> None:
        """Run forever. After a check that failed the agents stay as they are until the next one."""
        await tick_forever("models of agents", partial(wait_until_tick, self._changed, INTERVAL_SECONDS), self.tick)

    async def tick(self) -> None:
        """Check the model of each agent that is not archived."""
        self._changed.clear()
        for agent in self._agents.list_all():
            if agent.runtime.kind == "llm" and not agent.is_archived:
                await self.check(agent)


def model_of(agent: Agent) -> str:
    """Return the model of an agent of the runtime llm, empty for the gateway's default one."""
    return str(agent.runtime.options.get("model") or "")


def describe_unserved(agent: Agent) -> str:
    """Return why an agent of the runtime llm is not online."""
    return f"no provider serves {model_of(agent) or 'the default model'}"
