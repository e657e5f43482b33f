"""How agents do their work: one driver per kind of runtime. Workers pull and have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stentor.domains.execution.model import Outcome
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.model import Claim

Emit = Callable[[str], None]
"""Takes one token of the answer, for whoever watches."""


class Driver(Protocol):
    async def run(self, claim: Claim, agent: Agent, emit: Emit) -> Outcome:
        """Do the task. Cancelling the coroutine must stop the work. Raises AgentFailed."""
        ...
