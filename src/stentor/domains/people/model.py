"""A person who signs in with a provider, and what follows from the claims of an ID token. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from stentor.auth.principal import PERMISSIONS, ROLE_PERMISSIONS, Permission, Principal, Role
from stentor.core.errors import SignInRefused
from stentor.core.jsontext import JsonObject
from stentor.core.settings.installation import SignInSettings

MAX_SESSIONS = 20
"""Per person; a further sign-in ends the oldest one."""
EVERYBODY = "*"
_ROLES_BY_RANK: tuple[Role, ...] = ("viewer", "operator", "approver", "admin")
_SEPARATORS = frozenset(":,*/\\")
"""Characters that mean something else where names stand: in budgets, in the access to namespaces."""


class PersonSession(msgspec.Struct, frozen=True):
    """One sign-in. Only the SHA-256 digest of its secret is stored, in hex. Times in microseconds.

    `rules` is the digest of the settings that gave the role; the session counts only under the same ones.
    """

    digest: str
    created_at: int
    expires_at: int
    address: str = ""
    rules: str = ""


class Person(msgspec.Struct, frozen=True):
    """`subject` is the provider's own id of the person, None while the name is released. `version` counts changes.

    A person keeps the name, which records hold; role, permissions and team are those of the last sign-in. There are no
    permissions after one that was refused because no group gave a role. `member_of` are the groups of the last sign-in
    that gave roles, None for a sign-in before they were stored.
    """

    name: str
    tenant: str
    issuer: str
    subject: str | None
    role: Role
    permissions: tuple[str, ...]
    sessions: tuple[PersonSession, ...]
    created_at: int
    updated_at: int
    version: int
    last_sign_in_at: int
    blocked_at: int | None = None
    blocked_by: str | None = None
    team: str = ""
    member_of: tuple[str, ...] | None = None

    @property
    def principal(self) -> Principal:
        return Principal(self.name, self.role, frozenset(self.permissions), self.tenant, team=self.team)

    def sessions_at(self, now: int) -> tuple[PersonSession, ...]:
        """Return the sessions that have not expired, oldest first."""
        return tuple(session for session in self.sessions if session.expires_at > now)


class Granted(msgspec.Struct, frozen=True):
    """What a person's groups allow, the groups that gave it, and the team to which they belong; empty for none."""

    role: Role
    permissions: tuple[Permission, ...]
    member_of: tuple[str, ...]
    team: str = ""


def grant(groups: Iterable[str], roles: Sequence[str], teams: Sequence[str] = ()) -> Granted | None:
    """Return the union of what the roles of the groups allow; None for no role.

    `roles` are the entries of SERVICE_OIDC_ROLES. The name of the role is the widest of them. `teams` are those of
    SERVICE_OIDC_TEAMS, of which the first with one of the groups counts.
    """
    known = {*groups, EVERYBODY}
    entries = [(group, role) for group, _, role in (entry.rpartition("=") for entry in roles) if group in known]
    granted = {cast(Role, role) for _, role in entries}
    if not granted:
        return None
    allowed = {permission for role in granted for permission in ROLE_PERMISSIONS[role]}
    team = next((team for group, _, team in (entry.rpartition("=") for entry in teams) if group in known), "")
    role = max(granted, key=_ROLES_BY_RANK.index)
    member_of = tuple(sorted({group for group, _ in entries}))
    return Granted(role, tuple(p for p in PERMISSIONS if p in allowed), member_of, team)


def under_settings(person: Person, settings: SignInSettings) -> Person:
    """Return the person with the role and permissions that the settings of now give to the groups of the last sign-in.

    A person of another provider or tenant has no permissions. Nobody gets back what a refused sign-in took.
    """
    if (person.issuer, person.tenant) != (settings.issuer, settings.tenant):
        return msgspec.structs.replace(person, permissions=())
    if person.member_of is None or not person.permissions:
        return person
    granted = grant(person.member_of, settings.roles)
    if granted is None:
        return msgspec.structs.replace(person, permissions=())
    return msgspec.structs.replace(person, role=granted.role, permissions=granted.permissions)


def read_groups(claims: JsonObject, path: str) -> list[str]:
    """Return the groups in a claim, which may be a list, one text, or inside an object as in `realm_access.roles`."""
    value = _find(claims, path)
    values = value if isinstance(value, list) else [value]
    return [group for group in values if isinstance(group, str)]


def has_claim(claims: JsonObject, path: str) -> bool:
    return _find(claims, path) is not None


def _find(claims: JsonObject, path: str) -> Any:
    """Return the value of a claim; a claim whose own name has dots, as in URLs, wins over the way into an object."""
    # Such as `https://example.com/roles`, as Auth0 names its claims.
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def read_name(claims: JsonObject, claim: str) -> str:
    """Return the name under which a person acts, such as anna@example.com. Raises SignInRefused.

    A name without `@` gets the provider's host, so that no person ever has the name of a key.
    """
    value = _find(claims, claim)
    if not isinstance(value, str) or not value.strip():
        raise SignInRefused(
            f"The provider sent no claim {claim!r}: add a scope that includes it to SERVICE_OIDC_SCOPES, or name "
            "another claim in SERVICE_OIDC_NAME_CLAIM."
        )
    # Absent is fine: many providers never send it. False means that anybody could have typed the address, and so may
    # every other value; Cognito's user info has it as a text.
    verified = claims.get("email_verified")
    if claim == "email" and verified is not None and str(verified).lower() != "true":
        raise SignInRefused("The provider has not verified this e-mail address.")
    name = value.strip().lower()
    if "@" not in name:
        name = f"{name}@{urlsplit(str(claims.get('iss'))).hostname}"
    if len(name) > 200 or not name.isprintable() or any(c.isspace() or c in _SEPARATORS for c in name):
        raise SignInRefused(f"The claim {claim!r} is not a valid name: set SERVICE_OIDC_NAME_CLAIM to another claim.")
    return name
