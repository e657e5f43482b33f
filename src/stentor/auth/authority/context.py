"""The authority of a verified caller: the only part of a receipt that code behind the boundary sees. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from stentor.core.errors import AuthorityDenied

ALL_NAMESPACES = "*"
"""The pattern that covers every namespace of the tenant except vaults."""
VAULT_NAMESPACE = "vault"
"""The namespace of the default vault: `vault/Projects` are the notes in its folder Projects."""
NAMED_VAULT_PREFIX = f"{VAULT_NAMESPACE}:"
"""Prefix of the namespaces of a named vault: `vault:archive/2025` is the folder 2025 of the vault `archive`."""
TASKS_NAMESPACE = f"{VAULT_NAMESPACE}/tasks"
MAX_DESCRIBED = 20
"""How many namespaces a text for their holder names."""
_GUARDED = frozenset({TASKS_NAMESPACE, f"{VAULT_NAMESPACE}/memory"})
"""Folders with task notes and with the records of other namespaces: a grant of `vault` does not cover them."""


@dataclass(frozen=True)
class AuthorityContext:
    """The principal that acts, its tenant, its capabilities, and the namespaces that it may access.

    `namespaces` are patterns: `team/notes` covers itself and everything below it, `*` everything except vaults.
    `writable` is the subset that it may write to (None: all); writing also needs a capability. `delegated_by` are the
    delegating principals, the first holder first. `expires_at` is None for a context from the launch configuration.
    Raises AuthorityDenied for a blank principal, tenant or capability, or without capabilities, so that every existing
    context is usable.
    """

    principal: str
    tenant: str
    namespaces: tuple[str, ...]
    capabilities: frozenset[str]
    issuer: str
    receipt_id: str
    expires_at: datetime | None
    delegated_by: tuple[str, ...] = ()
    writable: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if is_blank(self.principal):
            raise AuthorityDenied("The evidence of the principal is blank.")
        if is_blank(self.tenant):
            raise AuthorityDenied("The evidence of the tenant is blank.")
        if not self.capabilities or any(is_blank(capability) for capability in self.capabilities):
            raise AuthorityDenied("The set of capabilities is blank.")

    def has_capability(self, capability: str) -> bool:
        """Return whether exactly this capability was granted; none implies another."""
        return capability in self.capabilities

    def can_reach(self, namespace: str) -> bool:
        """Return whether a pattern covers the namespace; never for an invalid one, such as `a/../b`."""
        return is_within(namespace, self.namespaces)

    def can_write(self, namespace: str) -> bool:
        """Return whether the namespace may be written to; a capability is needed as well."""
        return self.can_reach(namespace) and (self.writable is None or is_within(namespace, self.writable))

    def describe_namespaces(self) -> str:
        """Return the namespaces as text for the caller, who may not know them."""
        more = "" if len(self.namespaces) <= MAX_DESCRIBED else ", and more"
        return (", ".join(self.namespaces[:MAX_DESCRIBED]) or "none") + more


def is_blank(text: str) -> bool:
    """Return whether the text has no visible character: only whitespace, control or zero-width characters."""
    return not any(character.isprintable() and not character.isspace() for character in text)


def is_namespace(text: str) -> bool:
    """Return whether the text is segments joined by `/`, none of them blank, `.`, `..` or with `\\` or `*`."""
    return all(_is_segment(segment) for segment in text.split("/"))


def is_pattern(text: str) -> bool:
    return text == ALL_NAMESPACES or is_namespace(text)


def covers(pattern: str, namespace: str) -> bool:
    """Return whether the namespace is the pattern or below it, by complete segments; `*` covers all.

    A pattern never covers another realm: `*` covers no vault, `vault` no named vault and no guarded folder.
    """
    if not (is_pattern(pattern) and is_namespace(namespace)) or realm(pattern) != realm(namespace):
        return False
    return pattern == ALL_NAMESPACES or namespace == pattern or namespace.startswith(pattern + "/")


def realm(namespace: str) -> str:
    """Return the part of the memory that a grant must name: a guarded folder, a vault, or "" for everything else.

    A guarded folder is recognized in any case, because some file systems ignore case.
    """
    first, *rest = namespace.split("/")
    if first.startswith(NAMED_VAULT_PREFIX):
        return first
    if first != VAULT_NAMESPACE:
        return ""
    folder = f"{VAULT_NAMESPACE}/{rest[0].casefold()}" if rest else VAULT_NAMESPACE
    return folder if folder in _GUARDED else VAULT_NAMESPACE


def is_within(namespace: str, patterns: Iterable[str]) -> bool:
    return any(covers(pattern, namespace) for pattern in patterns)


def is_narrower(child: Iterable[str], parent: Iterable[str]) -> bool:
    """Return whether each of the child's patterns is covered by one of the parent's; `*` only by `*`."""
    allowed = tuple(parent)
    return all(
        ALL_NAMESPACES in allowed if pattern == ALL_NAMESPACES else is_within(pattern, allowed) for pattern in child
    )


def _is_segment(text: str) -> bool:
    if text in (".", "..") or text != text.strip() or is_blank(text):
        return False
    # The vault stores names in NFC: other forms of the same name would be other namespaces for the same folder.
    return text.isprintable() and not set(text) & set("\\*") and unicodedata.is_normalized("NFC", text)
