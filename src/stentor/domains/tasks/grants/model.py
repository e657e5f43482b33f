"""A grant, and the rules by which it may only narrow: pure. See docs/delegation.md."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stentor.core.clock import SECOND
from stentor.core.errors import DelegationDenied
from stentor.domains.routing.model import Authority
from stentor.domains.tasks.model import Task

MAX_DEPTH = 4
"""How often authority is passed on, at most."""
MAX_CAPABILITIES = 32
MAX_SECONDS = 86_400
NOTHING = Authority(active=False)


class Grant(msgspec.Struct, frozen=True):
    """What `to_agent` may ask for while `from_agent` works on the task, in the claim of that `epoch`.

    Times in microseconds; `depth` from 1.
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

    def live(self, task: Task | None, now: int) -> bool:
        """Whether it holds: its task must still be in the hands that it was given from, not of a later claim."""
        held = task is not None and task.status == "executing" and task.epoch == self.epoch
        return held and self.revoked_at is None and now < self.expires_at


class Wish(msgspec.Struct, frozen=True):
    """A grant as it is asked for; `seconds` None is as long as may be."""

    to_agent: str
    capabilities: tuple[str, ...]
    seconds: int | None = None


def narrowed(wish: Wish, task: Task, chain: Sequence[Grant], own: frozenset[str] | None, now: int) -> tuple[int, int]:
    """Depth and end of the grant that may be made of a wish. Raises DelegationDenied where it would widen.

    `chain` is the task's own grant with its parents, the nearest first, all of them live; `own` is what the agent may
    ask for by itself, None for everything.
    """
    if chain:
        nearest = chain[0]
        if nearest.depth >= MAX_DEPTH:
            raise DelegationDenied(f"Authority is passed on {MAX_DEPTH} times at most.")
        own = frozenset(nearest.capabilities)
    if own is not None and (beyond := sorted(set(wish.capabilities) - own)):
        raise DelegationDenied(f"The grant would go beyond the authority it comes from: {', '.join(beyond)}.")
    assert task.deadline_at is not None
    wished = now + (MAX_SECONDS if wish.seconds is None else wish.seconds) * SECOND
    return len(chain) + 1, min(wished, task.deadline_at, *(grant.expires_at for grant in chain))


def authority(chain: Sequence[Grant], tasks: Sequence[Task | None], now: int) -> Authority:
    """What a grant still gives: nothing once it, one that it comes from, or the task of any of them has ended.

    `tasks` are those of the chain, in its order. Fails closed.
    """
    if not chain or not all(grant.live(task, now) for grant, task in zip(chain, tasks, strict=True)):
        return NOTHING
    return Authority(capabilities=frozenset(chain[0].capabilities))
