"""What a verified caller may do: the only thing of a receipt that the gate sees."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from stentor.core.errors import AuthorityDenied

ALL_NAMESPACES = "*"
"""The pattern that covers every namespace of the tenant, but no vault."""
VAULT_NAMESPACE = "vault"
"""The namespace of the whole vault: `vault/Projects` are the notes in the folder Projects."""
NAMED_VAULT_PREFIX = f"{VAULT_NAMESPACE}:"
"""What the namespaces of a named vault begin with: `vault:archive/2025` is the folder 2025 of the vault `archive`."""
TASKS_NAMESPACE = f"{VAULT_NAMESPACE}/tasks"
_GUARDED = frozenset({TASKS_NAMESPACE, f"{VAULT_NAMESPACE}/memory"})
"""Folders with the notes of tasks, and with the records of the other namespaces: `vault` does not cover them."""


@dataclass(frozen=True)
class AuthorityContext:
    """Who acts, for which tenant, with which capabilities, in which namespaces.

    `namespaces` are patterns: `team/notes` covers itself and everything below it, `*` all but vaults. `writable` are
    those of them in which it may write, None for all; a capability is needed besides. `delegated_by` are the
    principals from the first holder to the last who passed the authority on. `expires_at` is None for a context of
    the launch configuration. Raises AuthorityDenied when the principal, the tenant or a capability is blank, or there
    is no capability: a context that exists may be asked.
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
        """Whether exactly this capability was granted; there is none that covers others."""
        return capability in self.capabilities

    def can_reach(self, namespace: str) -> bool:
        """Whether a pattern covers the namespace. What is no namespace, such as `a/../b`, is never reached."""
        return is_within(namespace, self.namespaces)

    def can_write(self, namespace: str) -> bool:
        """The same for those that it may write in."""
        return self.can_reach(namespace) and (self.writable is None or is_within(namespace, self.writable))

    def require(self, capability: str, namespace: str) -> None:
        """Raises AuthorityDenied unless the capability was granted and the namespace is reached."""
        if not self.has_capability(capability):
            raise AuthorityDenied("The authority does not have the capability that this needs.")
        if not self.can_reach(namespace):
            raise AuthorityDenied("The authority does not reach this namespace.")

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def is_blank(text: str) -> bool:
    """Whether nothing of the text can be seen: empty, white space, control or zero-width characters."""
    return not any(character.isprintable() and not character.isspace() for character in text)


def is_namespace(text: str) -> bool:
    """Segments joined by `/`, none of them blank, `.`, `..` or with characters that end or steer a path."""
    return all(_is_segment(segment) for segment in text.split("/"))


def is_pattern(text: str) -> bool:
    return text == ALL_NAMESPACES or is_namespace(text)


def covers(pattern: str, namespace: str) -> bool:
    """Whether the namespace is the pattern or lies below it, by whole segments; `*` covers every one.

    Nothing covers what lies in another realm: not `*` a vault, not `vault` a named one or the guarded folders in it.
    """
    if not (is_pattern(pattern) and is_namespace(namespace)) or realm(pattern) != realm(namespace):
        return False
    return pattern == ALL_NAMESPACES or namespace == pattern or namespace.startswith(pattern + "/")


def realm(namespace: str) -> str:
    """The part of the memory that a grant has to name: a guarded folder, a vault, or none for all the rest.

    Without regard to the case of a guarded folder's name, because some file systems have none.
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
    """Whether every pattern of the child is covered by one of the parent; `*` only by `*`."""
    wide = tuple(parent)
    return all(ALL_NAMESPACES in wide if pattern == ALL_NAMESPACES else is_within(pattern, wide) for pattern in child)


def _is_segment(text: str) -> bool:
    if text in (".", "..") or text != text.strip() or is_blank(text):
        return False
    # The vault writes names in NFC: two spellings of one folder would be two namespaces here.
    return text.isprintable() and not set(text) & set("\\*") and unicodedata.is_normalized("NFC", text)
