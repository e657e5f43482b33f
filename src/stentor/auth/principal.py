"""The caller after authentication, and what it may do.

Which keys belong to people, by their names. Rows hold names of keys, never the keys, and not their roles.
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
    """A key's holder. `name` is the key's name, never the key."""

    name: str
    role: Role
    permissions: frozenset[str]
    tenant: str = DEFAULT_TENANT

    def may(self, permission: str) -> bool:
        """`admin` covers the others."""
        return permission in self.permissions or "admin" in self.permissions

    def require(self, permission: str) -> None:
        """Fails closed. Raises Forbidden, naming the missing permission."""
        if not self.may(permission):
            raise Forbidden(f"This needs the permission {permission!r}, which the key {self.name!r} does not have.")

    @property
    def is_bound_agent(self) -> bool:
        """Whether it may act only for the agents that were registered with its key's name."""
        return self.role == "agent" and "admin" not in self.permissions


class RoleRegistry:
    """Filled at the start with every key that the service knows."""

    def __init__(self) -> None:
        self._people: set[tuple[str, str]] = set()
        self._admins: set[tuple[str, str]] = set()
        self._agents_with_admin: set[tuple[str, str]] = set()

    def register(self, principals: Iterable[Principal]) -> None:
        """Take in the keys of this start, and the service's own principals that act for a person."""
        for principal in principals:
            if principal.role == "admin":
                self._people.add((principal.tenant, principal.name))
                if principal.may("admin"):
                    self._admins.add((principal.tenant, principal.name))
            elif principal.may("admin"):
                self._agents_with_admin.add((principal.tenant, principal.name))

    def is_person(self, tenant: str, name: str) -> bool:
        """Whether the key has the role admin. Fails closed: a name that is not known is an agent's."""
        return (tenant, name) in self._people

    def is_agent_with_admin(self, tenant: str, name: str) -> bool:
        """Whether it is the key of an agent that has the permission admin, and so may register agents."""
        return (tenant, name) in self._agents_with_admin

    def is_only_admin(self, principal: Principal) -> bool:
        """Whether no other person of the tenant has the permission admin, so that nobody else could be asked."""
        admins = {name for tenant, name in self._admins if tenant == principal.tenant}
        return admins == {principal.name}
