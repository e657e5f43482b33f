"""What a key may access of the governed memory, and which folders are searched for it where no namespace is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from stentor.auth.api_keys import MemoryAccess
from stentor.auth.authority.context import (
    ALL_NAMESPACES,
    NAMED_VAULT_PREFIX,
    VAULT_NAMESPACE,
    AuthorityContext,
    realm,
)
from stentor.auth.principal import Principal, RoleRegistry
from stentor.core.errors import AuthorityDenied
from stentor.domains.memory.governed import records
from stentor.domains.memory.governed.authorization import READ_CAPABILITY, WRITE_CAPABILITY
from stentor.domains.memory.model import MaySearch

SHARED_NAMESPACE = "shared"
"""The namespace that every API key may access, besides the one of its own name."""
DEFAULT_ADMIN_NAMESPACES = (ALL_NAMESPACES, VAULT_NAMESPACE, f"{VAULT_NAMESPACE}/Tasks", f"{VAULT_NAMESPACE}/Memory")
KEY_ISSUER = "key"
FindAccess = Callable[[str], MemoryAccess | None]
"""Returns what a key may access, by its name; None for the default of its permissions."""


def default_access(name: str) -> MemoryAccess | None:
    return None


def key_authority(
    principal: Principal, find_access: FindAccess = default_access, vaults: Sequence[str] = ()
) -> AuthorityContext | None:
    """Return the authority of an API key, never more than its permissions; None without any capability.

    Without a configured access an admin's key may access everything, any other key the namespace of its name and
    `shared`; a key named `vault` only `shared`. `vaults` are the named vaults.
    """
    capabilities = frozenset(
        capability
        for name, capability in (("read", READ_CAPABILITY), ("write", WRITE_CAPABILITY))
        if principal.may(name)
    )
    everything = (*DEFAULT_ADMIN_NAMESPACES, *(NAMED_VAULT_PREFIX + name for name in vaults))
    # A vault must be granted by name: that a key is called `vault` grants nothing.
    own = (SHARED_NAMESPACE,) if realm(principal.name) else (principal.name, SHARED_NAMESPACE)
    namespaces = everything if principal.may("admin") else own
    access = find_access(principal.name) or MemoryAccess(namespaces, namespaces)
    try:
        return AuthorityContext(
            principal.name, principal.tenant, access.namespaces, capabilities, KEY_ISSUER, "", None,
            writable=access.writable,
        )  # fmt: skip
    except AuthorityDenied:
        return None


class SearchRights:
    """Which folders the librarian and the tools of agents may search: `Tasks` and `Memory` need an authority."""

    def __init__(self, roles: RoleRegistry, find_access: FindAccess) -> None:
        self._roles = roles
        self._find_access = find_access

    def of_submitter(self, tenant: str, name: str) -> MaySearch | None:
        """Return the check for who submitted a task; None for everything.

        A person without a configured access may have every note searched.
        """
        if self._roles.is_person(tenant, name) and self._find_access(name) is None:
            return None
        return self.of_agent(tenant, name)

    def of_agent(self, tenant: str, key_name: str | None) -> MaySearch:
        """Return the check for an agent with this key. Without a key it may search the namespace `shared`."""
        nobody = Principal(SHARED_NAMESPACE, "agent", frozenset(("read",)), tenant)
        principal = nobody if key_name is None else self._roles.find_active(tenant, key_name)
        context = None if principal is None else key_authority(principal, self._find_access)
        return partial(_may_search, context)


def _may_search(context: AuthorityContext | None, folder: str) -> bool:
    namespace = records.namespace_of_folder(folder)
    if realm(namespace) == VAULT_NAMESPACE:
        return True
    return context is not None and context.has_capability(READ_CAPABILITY) and context.can_reach(namespace)
