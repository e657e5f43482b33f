"""Which keys belong to people, by their names. Rows hold names of keys, never the keys, and not their roles."""

from __future__ import annotations

from collections.abc import Iterable

from stentor.auth.principal import Principal


class Roles:
    """Filled at the start with every key that the service knows."""

    def __init__(self) -> None:
        self._people: set[tuple[str, str]] = set()

    def learn(self, principals: Iterable[Principal]) -> None:
        """Take in the keys of this start, and the service's own principals that act for a person."""
        self._people |= {(principal.tenant, principal.name) for principal in principals if principal.role == "admin"}

    def is_person(self, tenant: str, name: str) -> bool:
        """Whether the key has the role admin. Fails closed: a name that is not known is an agent's."""
        return (tenant, name) in self._people
