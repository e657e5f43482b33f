"""Whether an outcome or a grade may teach anything: not when who asked for the work is who did it, and not too often.

Without this an agent's key could submit tasks to its own agent and praise itself, up to the trust at which its updates
are approved without a person. Only keys of role agent are held back: a person who submits tasks and runs the workers
with one key owns the machine. docs/decisions/0031 has the reasons.
"""

from __future__ import annotations

from typing import Protocol

from stentor.auth.principal import RoleRegistry
from stentor.core.db import Tx
from stentor.domains.learning import store as learning
from stentor.domains.registry import standing
from stentor.domains.registry.snapshot import Snapshot
from stentor.domains.tasks import lineage

SHARED_KEY = "The submitter of the task or of one of its ancestors, and its worker, share a key."


class Work(Protocol):
    """The parts of a claim or of a row that tell who asked for the work."""

    @property
    def tenant(self) -> str: ...
    @property
    def submitted_by(self) -> str: ...
    @property
    def parent_task_id(self) -> str | None: ...


class Independence:
    """`most` is how many outcomes and grades a day one agent's key may have one agent learn from; 0 is no limit."""

    def __init__(self, snapshot: Snapshot, roles: RoleRegistry, most: int) -> None:
        self._snapshot = snapshot
        self._roles = roles
        self._most = most

    def objection(self, tx: Tx, work: Work, agent_id: str, ended_by: str | None) -> str | None:
        """Why nothing may be learned from the work; None when it may. Fails closed. Counts an outcome that may.

        `ended_by` is the key that reported the outcome, None for an agent that runs inside the service. Costs nothing
        but two look-ups in memory where all keys are people's.
        """
        if self._by_own_hand(tx, work, agent_id, ended_by):
            return SHARED_KEY
        if not self._most or self._roles.is_person(work.tenant, work.submitted_by):
            return None
        if self._counted(tx, work.tenant, agent_id, work.submitted_by):
            return None
        return f"The submitter's key has had the agent learn from {self._most} outcomes today."

    def grade_objection(self, tx: Tx, work: Work, agent_id: str, graded_by: str) -> str | None:
        """Why the key may not grade the work today; None when it may. Counts a grade that may, but for the submitter's
        own: the outcome that it corrects was counted.
        """
        if not self._most or graded_by == work.submitted_by or self._roles.is_person(work.tenant, graded_by):
            return None
        if self._counted(tx, work.tenant, agent_id, graded_by):
            return None
        return f"The key {graded_by!r} has had the agent learn {self._most} times today: use a key of role admin."

    def _counted(self, tx: Tx, tenant: str, agent_id: str, name: str) -> bool:
        return learning.taught(tx, tenant, agent_id, name) <= self._most

    def _by_own_hand(self, tx: Tx, work: Work, agent_id: str, ended_by: str | None) -> bool:
        agent = self._snapshot.get(work.tenant, agent_id)
        hands = {agent.key_name if agent else None, ended_by}
        workers = {name for name in hands if name is not None and not self._roles.is_person(work.tenant, name)}
        is_run_here = agent is not None and standing.is_run_here(agent)
        if not workers and not is_run_here:
            return False
        asked = lineage.submitters(tx, work.tenant, work.submitted_by, work.parent_task_id)
        if asked is None or asked & workers:
            return True
        # Whoever may register agents may be behind one that shows no key.
        return is_run_here and any(self._roles.is_agent_with_admin(work.tenant, name) for name in asked)
