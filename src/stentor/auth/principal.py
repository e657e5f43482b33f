"""The authenticated caller with its permissions, and the registry of roles by key name.

Database rows hold key names, never keys or roles, so a role is looked up here. Keys are loaded in `api_keys`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from stentor.core.errors import Forbidden

Permission = Literal["read", "write", "delete", "propose", "admin"]
PERMISSIONS: tuple[Permission, ...] = ("read", "write", "delete", "propose", "admin")
Role = Literal["admin", "agent"]
DEFAULT_TENANT = "default"


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller. `name` is the name of its key, never the key itself."""

    name: str
    role: Role
    permissions: frozenset[str]
    tenant: str = DEFAULT_TENANT

    def may(self, permission: str) -> bool:
        """Return whether the permission is granted; `admin` includes all others."""
        return permission in self.permissions or "admin" in self.permissions

    def require(self, permission: str) -> None:
        """Raise Forbidden, which names the permission, unless it is granted."""
        if not self.may(permission):
            raise Forbidden(f"This needs the permission {permission!r}, which the key {self.name!r} does not have.")

    @property
    def is_bound_agent(self) -> bool:
        """Whether the key may act only for the agents registered under its own name."""
        return self.role == "agent" and "admin" not in self.permissions


class RoleRegistry:
    """The roles of all known keys by tenant and name; filled once at startup."""

    def __init__(self) -> None:
        self._people: set[tuple[str, str]] = set()
        self._admins: set[tuple[str, str]] = set()
        self._agents_with_admin: set[tuple[str, str]] = set()

    def register(self, principals: Iterable[Principal]) -> None:
        """Add the configured keys, and the service's internal principals that act for a person."""
        for principal in principals:
            if principal.role == "admin":
                self._people.add((principal.tenant, principal.name))
                if principal.may("admin"):
                    self._admins.add((principal.tenant, principal.name))
            elif principal.may("admin"):
                self._agents_with_admin.add((principal.tenant, principal.name))

    def is_person(self, tenant: str, name: str) -> bool:
        """Return whether the key has the role admin. Fails closed: an unknown name counts as an agent."""
        return (tenant, name) in self._people

    def is_agent_with_admin(self, tenant: str, name: str) -> bool:
        """Return whether the key has the role agent and the permission admin, so that it may register agents."""
        return (tenant, name) in self._agents_with_admin

    def is_only_admin(self, principal: Principal) -> bool:
        """Return whether no other person of the tenant has the permission admin and could approve."""
        admins = {name for tenant, name in self._admins if tenant == principal.tenant}
        return admins == {principal.name}
