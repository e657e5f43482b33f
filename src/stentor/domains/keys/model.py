"""An API key made at runtime, and its checks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from stentor.auth.principal import PERMISSIONS, RESERVED_NAMES, ROLE_PERMISSIONS, Principal, Role
from stentor.core.errors import InvalidRequest
from stentor.core.validation import text_checks

MAX_ACTIVE_KEYS = 1_000
"""Maximum per tenant."""
# Enough to tell keys apart in a list, far too few to guess the rest.
HINT_CHARACTERS = 7
KeyStatus = Literal["active", "expired", "revoked"]


class ApiKey(msgspec.Struct, frozen=True):
    """A key without its secret, of which only the SHA-256 digest in hex is stored. Times in microseconds.

    `hint` is the beginning of the secret, `memory` the access to namespaces as `<namespace>:r` or `<namespace>:rw`
    (empty: the default of its permissions), `budgets` limits such as `usd/month=20`, `models` patterns of the models
    that it may call (empty: all), `team` the team to which its model calls count (empty: none). `version` counts the
    changes.
    `created_by` is empty in a row that only reserves the name of a key of the environment.
    """

    name: str
    tenant: str
    digest: str
    hint: str
    role: Role
    permissions: tuple[str, ...]
    description: str
    memory: str
    budgets: tuple[str, ...]
    models: tuple[str, ...]
    created_by: str
    created_at: int
    updated_at: int
    version: int = 1
    expires_at: int | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None
    last_used_at: int | None = None
    team: str = ""

    def status_at(self, now: int) -> KeyStatus:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"

    @property
    def budget_entries(self) -> list[str]:
        """The budgets as entries of SERVICE_LLM_BUDGETS; none of a revoked key, which makes no calls."""
        return budget_entries(self.name, self.budgets) if self.revoked_at is None else []

    @property
    def principal(self) -> Principal:
        models = () if "*" in self.models else self.models
        return Principal(self.name, self.role, frozenset(self.permissions), self.tenant, models, self.team)


def budget_entries(name: str, budgets: Collection[str]) -> list[str]:
    """Return the budgets of a key as entries of SERVICE_LLM_BUDGETS."""
    return [f"key:{name}:{budget}" for budget in budgets]


def check_name(name: str, configured: Collection[str]) -> None:
    """Raise InvalidRequest for a name that no key may have; `configured` are the names of the environment's keys."""
    text_checks.check_name(name)
    if name in RESERVED_NAMES:
        raise InvalidRequest(f"name: {name!r} is reserved for the service itself; choose another one")
    if name in configured:
        raise InvalidRequest(f"name: {name!r} is a key of the environment; choose another one")


def select_permissions(role: Role, permissions: Iterable[str] | None) -> tuple[str, ...]:
    """Return the permissions of a key, in their usual order: those of its role unless others are given."""
    chosen = set(ROLE_PERMISSIONS[role] if permissions is None else permissions)
    if not chosen:
        raise InvalidRequest(f"permissions: must be one or more of {', '.join(PERMISSIONS)}")
    return tuple(permission for permission in PERMISSIONS if permission in chosen)


def check_models(models: Iterable[str]) -> None:
    """Raise InvalidRequest for a name that is not one of models or of a group, so that it would allow nothing."""
    for name in models:
        if name == "auto" or name.startswith(("auto:", "agent:")):
            raise InvalidRequest(
                f"models: {name!r} is not a model. Name models or groups, such as openai/gpt-*: auto chooses among "
                "them, and agents use their own models"
            )


def check_expiry(expires_at: int | None, now: int) -> None:
    """Raise InvalidRequest for an expiry that is not in the future."""
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("expires_at: must be in the future")
