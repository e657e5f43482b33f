"""A grant, and the rules by which it can only restrict what its holder may do. Pure. See docs/delegation.md."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stentor.core.clock import SECOND
from stentor.core.errors import DelegationDenied
from stentor.domains.routing.model import Authority
from stentor.domains.tasks.model import Task

MAX_DELEGATION_DEPTH = 4
"""Longest chain of grants."""
MAX_GRANT_CAPABILITIES = 32
MAX_GRANT_SECONDS = 86_400
NO_AUTHORITY = Authority(is_active=False)


class Grant(msgspec.Struct, frozen=True):
    """Capabilities that `to_agent` may request while `from_agent` executes the task in this `epoch`.

    Times in microseconds; `depth` starts at 1.
    """

    grant_id: str
    tenant: str
    task_id: str
    from_agent: str
    to_agent: str
    capabilities: tuple[str, ...]
    parent_id: str | None
    depth: int
    granted_by: str
    created_at: int
    expires_at: int
    revoked_at: int | None
    epoch: int

    def is_active(self, task: Task | None, now: int) -> bool:
        """Return whether the grant is neither expired nor revoked and its task is still in the same claim."""
        # A later claim may be by another agent, which delegated nothing.
        same_claim = task is not None and task.status == "executing" and task.epoch == self.epoch
        return same_claim and self.revoked_at is None and now < self.expires_at


class GrantRequest(msgspec.Struct, frozen=True):
    """A requested grant; without `expires_in_seconds` it is valid as long as its task and parents permit."""

    to_agent: str
    capabilities: tuple[str, ...]
    expires_in_seconds: int | None = None


def limit_grant(
    request: GrantRequest, task: Task, chain: Sequence[Grant], allowed: frozenset[str] | None, now: int
) -> tuple[int, int]:
    """Return the depth and the expiry, in microseconds, of a requested grant.

    `chain` is the grant that the task was submitted with and its parents, nearest first, all active. `allowed` is what
    the agent may request without a grant, None for everything. Raises DelegationDenied for a grant that exceeds them.
    """
    if chain:
        nearest = chain[0]
        if nearest.depth >= MAX_DELEGATION_DEPTH:
            raise DelegationDenied(f"Authority can be delegated at most {MAX_DELEGATION_DEPTH} times in a row.")
        allowed = frozenset(nearest.capabilities)
    if allowed is not None and (excess := sorted(set(request.capabilities) - allowed)):
        raise DelegationDenied(f"The grant exceeds the delegating agent's authority by: {', '.join(excess)}.")
    assert task.deadline_at is not None
    lifetime_s = MAX_GRANT_SECONDS if request.expires_in_seconds is None else request.expires_in_seconds
    # Never longer than the task or any parent, so that a grant cannot outlive what it comes from.
    return len(chain) + 1, min(now + lifetime_s * SECOND, task.deadline_at, *(grant.expires_at for grant in chain))


def effective_authority(chain: Sequence[Grant], tasks: Sequence[Task | None], now: int) -> Authority:
    """Return the authority of the nearest grant of a chain; none if any grant of the chain is not active.

    `tasks` are the tasks of the grants, in the same order. Fails closed: an empty chain gives no authority.
    """
    if not chain or not all(grant.is_active(task, now) for grant, task in zip(chain, tasks, strict=True)):
        return NO_AUTHORITY
    return Authority(capabilities=frozenset(chain[0].capabilities))
