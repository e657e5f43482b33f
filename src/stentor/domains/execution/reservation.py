"""Room for a task that this process starts at once: it is claimed in the transaction that stores it.

So a task alone takes two commits and not three. A task for which there is no room is queued, and the dispatchers claim
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stentor.core.db import Tx
from stentor.domains.execution.dispatcher import RunningTasks
from stentor.domains.execution.executor import TaskExecutor
from stentor.domains.tasks.model import QueuedTask, TaskClaim


class Reservation:
    """Room of one agent for one task. `is_current` checks this process's copy of the agent."""

    def __init__(
        self, agent_id: str, running: RunningTasks, executor: TaskExecutor, is_current: Callable[[Tx], bool]
    ) -> None:
        self._agent_id = agent_id
        self._running = running
        self._executor = executor
        self._is_current = is_current
        running.reserve(agent_id)

    def try_start(self, tx: Tx, queued: QueuedTask) -> bool:
        """Claim a task that was just stored, to start after the commit; False if it must be queued instead."""
        if not self._is_current(tx):
            return False
        claim = self._executor.claim(tx, queued, self._executor.lease_us)
        if claim is not None:
            # After the commit: an attempt whose claim is rolled back must not run.
            tx.after_commit(partial(self._start, claim))
        return True

    def release(self) -> None:
        """Give the room back: it is not needed, or the attempt has it now."""
        self._running.release(self._agent_id)

    def _start(self, claim: TaskClaim) -> None:
        key = (claim.tenant, claim.task_id)
        self._running.start(key, claim.agent_id, claim.epoch, self._executor.run_claim(claim))
