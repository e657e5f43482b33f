"""The authenticated caller with its permissions, and the registry of roles by key name.

Database rows hold key names, never keys or roles, so a role is looked up here. Keys of the environment are loaded in
`api_keys`, those made at runtime in the domain `keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from stentor.core.clock import DAY
from stentor.core.errors import Forbidden

Permission = Literal["read", "write", "delete", "propose", "approve", "admin"]
PERMISSIONS: tuple[Permission, ...] = ("read", "write", "delete", "propose", "approve", "admin")
Role = Literal["viewer", "operator", "approver", "admin", "agent"]
ROLE_PERMISSIONS: dict[Role, tuple[Permission, ...]] = {
    "viewer": ("read",),
    "operator": ("read", "write", "delete"),
    "approver": ("read", "propose", "approve"),
    "admin": ("admin",),
    "agent": ("read", "write"),
}
"""The permissions of each role, unless a key names its own. All roles but `agent` are roles of people."""
DEFAULT_TENANT = "default"
RESERVED_NAMES = frozenset(("dashboard", "development", "inbox", "system", "stentor", "shared"))
"""Names in the run log and the memory that mean the service itself, or everybody, and no key."""
COUNTS_AFTER_LOSS = DAY
"""How long a person who may no longer approve still counts as an approver, in microseconds.

Otherwise an admin could take the permission from everybody else, approve alone, and give it back.
"""


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller. `name` is the name of its key, never the key itself.

    `models` are patterns of the models that it may call, such as `openai/gpt-*`; empty means all. `team` is the team to
    which its model calls count, empty for none.
    """

    name: str
    role: Role
    permissions: frozenset[str]
    tenant: str = DEFAULT_TENANT
    models: tuple[str, ...] = ()
    team: str = ""

    def may(self, permission: str) -> bool:
        """Return whether the permission is granted, or one of several joined with ` or `; `admin` includes all."""
        if permission in self.permissions or "admin" in self.permissions:
            return True
        return " or " in permission and any(part in self.permissions for part in permission.split(" or "))

    def require(self, permission: str) -> None:
        """Raise Forbidden, which names the permission, unless it is granted."""
        if not self.may(permission):
            wanted = " or ".join(map(repr, permission.split(" or ")))
            raise Forbidden(f"This needs the permission {wanted}, which {self.name!r} does not have.")

    @property
    def is_person(self) -> bool:
        """Whether the key is a person's, who may act for every agent of the tenant as far as its permissions go."""
        return self.role != "agent"

    @property
    def is_bound_agent(self) -> bool:
        """Whether the key may act only for the agents registered under its own name."""
        return self.role == "agent" and "admin" not in self.permissions

    @property
    def stream_owner(self) -> str:
        """The key under which the caller's open streams are counted."""
        return f"{self.tenant}/{self.name}"


IsActive = Callable[[Principal], bool]
"""Whether a caller may act: not the key of an agent, without `admin`, whose every agent is suspended or quarantined."""


def require_active(principal: Principal, is_active: IsActive, act: str) -> None:
    """Raise Forbidden for the key of stopped agents; `act` is what it may not do, as in "may not {act}"."""
    if not is_active(principal):
        raise Forbidden(f"Every agent of the key {principal.name!r} is suspended or quarantined, so it may not {act}.")


class RoleRegistry:
    """The roles of all known keys by tenant and name: filled at startup, and when keys are made or revoked.

    `now` returns the time in microseconds.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._keys: dict[tuple[str, str], tuple[Principal | None, int | None]] = {}
        """The holder of each key, None for a revoked one, and when it expires."""
        self._people: set[tuple[str, str]] = set()
        self._teams: dict[tuple[str, str], str] = {}
        self._approvers: dict[tuple[str, str], int | None] = {}
        """Until when each person may approve, or when it could for the last time, in microseconds; None for ever."""
        self._agents_with_admin: set[tuple[str, str]] = set()
        self._last_changes: dict[tuple[str, str], tuple[int, str | None]] = {}
        """When each key that was made at runtime last changed, and who made it; None if somebody changed it since."""

    def register(self, principals: Iterable[Principal]) -> None:
        """Add the configured keys, and the service's internal principals that act for a person."""
        for principal in principals:
            self.set_role(principal, is_active=True, expires_at=None)

    def set_role(
        self,
        principal: Principal,
        *,
        is_active: bool,
        expires_at: int | None,
        changed_at: int = 0,
        is_reserved: bool = False,
    ) -> None:
        """Set the role of a key as of `changed_at`. The work of a person's revoked key remains a person's work.
        `is_reserved`: it is or was a key of an environment, and another process may still have it.
        """
        key = (principal.tenant, principal.name)
        if not is_reserved:
            self._keys[key] = principal if is_active else None, expires_at
            # Also of a revoked key, for which tasks may still run: they must not leave the team's budgets.
            self._teams[key] = principal.team
        self._agents_with_admin.discard(key)
        self._people.discard(key)
        if principal.is_person:
            self._people.add(key)
        elif principal.may("admin"):
            self._agents_with_admin.add(key)
        can_approve = principal.is_person and principal.may("approve")
        if can_approve and is_active:
            self._approvers[key] = expires_at
        elif can_approve or key in self._approvers:
            ends = (self._approvers.get(key), expires_at, changed_at)
            self._approvers[key] = min(end for end in ends if end is not None)

    def record_change(self, principal: Principal, changed_at: int, maker: str | None) -> None:
        """Note when a key that was made at runtime last changed; `maker` is None unless that was its making."""
        self._last_changes[principal.tenant, principal.name] = changed_at, maker

    def could_be_held_by(self, principal: Principal, name: str, since: int) -> bool:
        """Return whether the key `name` may have made or changed this key since a time, and so know its secret.

        Also through keys made in between: one that makes a key, which makes a third, knows the third.
        """
        key, seen = principal.name, set[str]()
        while key not in seen:
            seen.add(key)
            changed_at, maker = self._last_changes.get((principal.tenant, key), (-1, None))
            if changed_at < since:
                return False
            if maker is None or maker == name:
                return True
            key = maker
        return True

    def find_active(self, tenant: str, name: str) -> Principal | None:
        """Return the holder of a key by its name, for work that it ordered earlier; None unless the key is valid."""
        principal, expires_at = self._keys.get((tenant, name), (None, None))
        return None if expires_at is not None and expires_at <= self._now() else principal

    def team_of(self, tenant: str, name: str) -> str:
        """Return the team of a key or person, valid or not; empty for none."""
        return self._teams.get((tenant, name), "")

    def is_known(self, tenant: str, name: str) -> bool:
        """Return whether this process knows a key by this name, valid or not."""
        return (tenant, name) in self._keys

    def is_person(self, tenant: str, name: str) -> bool:
        """Return whether the key has a person's role. Fails closed: an unknown name counts as an agent."""
        return (tenant, name) in self._people

    def is_agent_with_admin(self, tenant: str, name: str) -> bool:
        """Return whether the key has the role agent and the permission admin, so that it may register agents."""
        return (tenant, name) in self._agents_with_admin

    def is_only_approver(self, principal: Principal) -> bool:
        """Return whether no other person of the tenant may approve, or could within COUNTS_AFTER_LOSS.

        A restart forgets that a key had another role before.
        """
        since = self._now() - COUNTS_AFTER_LOSS
        approvers = {
            name
            for (tenant, name), until in self._approvers.items()
            if tenant == principal.tenant and (until is None or until > since)
        }
        return approvers == {principal.name}
