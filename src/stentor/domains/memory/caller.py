"""Who calls the memory, and what for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stentor.auth.principal import Principal
from stentor.domains.memory.caches import CallerIdentity

MaySearch = Callable[[str], bool]
"""Whether the notes of a folder of the default vault may be found."""


def _may_write_none(path: str) -> bool:
    return False


class MemoryCaller(msgspec.Struct, frozen=True):
    """The caller, and the task or else the event that the call belongs to.

    `is_governed`: the governed memory authorized the call. `may_write` tells of an agent which other notes of the vault
    it may write; it is asked before its mark takes notes out of searches, and denies without being set.
    """

    principal: Principal
    agent_id: str | None = None
    task_id: str | None = None
    parent_event_id: str | None = None
    is_governed: bool = False
    may_write: Callable[[str], bool] = _may_write_none

    @property
    def identity(self) -> CallerIdentity:
        return self.principal.tenant, self.principal.name, self.agent_id

    @property
    def author(self) -> str:
        """The name at marks: the key of a person; of an agent its id if that is verified, else the key's name."""
        if self.principal.is_person:
            return self.principal.name
        # A key with admin may name any agent, so that only the key is certain.
        verified = self.agent_id if self.principal.is_bound_agent else None
        return f"agent:{verified or self.principal.name}"
