"""The caller after authentication, and what it may do."""

from __future__ import annotations

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
