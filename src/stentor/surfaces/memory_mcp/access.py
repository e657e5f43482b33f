"""Who a bearer token stands for: the holder of a key of the service, or of a signed receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from pydantic import ConfigDict

from stentor.auth.api_keys import KeyRing, MemoryAccess
from stentor.auth.authority.context import ALL_NAMESPACES, NAMED_VAULT_PREFIX, VAULT_NAMESPACE, AuthorityContext
from stentor.auth.authority.proof import ProofRequest
from stentor.auth.principal import Principal
from stentor.core.errors import AuthorityDenied, AuthorityRefused, StoreUnavailable
from stentor.domains.memory.governed.authorization import READ_CAPABILITY, WRITE_CAPABILITY
from stentor.surfaces.memory_mcp.presented import PEER, REQUEST
from stentor.surfaces.memory_mcp.server import Context

SHARED = "shared"
"""The namespace that every key of the service reaches, beside that of its own name."""
EVERYTHING = (ALL_NAMESPACES, VAULT_NAMESPACE, f"{VAULT_NAMESPACE}/Tasks", f"{VAULT_NAMESPACE}/Memory")
KEY_ISSUER = "key"


class Receipts(Protocol):
    async def verify(
        self, receipt: str, request: ProofRequest | None = None, session: str | None = None
    ) -> AuthorityContext:
        """Raises AuthorityRefused, without a reason."""
        ...


class Bearer(AccessToken):
    """What is known of the caller; the token itself is not kept."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    context: AuthorityContext | None


class Verifier:
    """The SDK's TokenVerifier: audience and expiry of receipts are checked here. `vaults` are the named ones."""

    def __init__(
        self,
        ring: KeyRing,
        receipts: Receipts | None,
        access: Mapping[str, MemoryAccess] = MappingProxyType({}),
        vaults: Sequence[str] = (),
    ) -> None:
        self._ring = ring
        self._receipts = receipts
        self._access = access
        self._vaults = vaults

    async def verify_token(self, token: str) -> Bearer | None:
        """None for a token that stands for nobody."""
        if token.count(".") >= 2 and self._receipts is not None:
            return await self._of_receipt(token, self._receipts)
        principal = self._ring.find(token)
        if principal is None:
            return None
        return _bearer(self._of_key(principal))  # blank: the gate denies it, and records it

    def _of_key(self, principal: Principal) -> AuthorityContext | None:
        """What a key was given, never more than its permissions. Without an access of its own an administrator's key
        reaches everything, another the namespace of its name and `shared`.
        """
        granted = frozenset(
            capability
            for name, capability in (("read", READ_CAPABILITY), ("write", WRITE_CAPABILITY))
            if principal.may(name)
        )
        everything = (*EVERYTHING, *(NAMED_VAULT_PREFIX + name for name in self._vaults))
        spaces = everything if principal.may("admin") else (principal.name, SHARED)
        access = self._access.get(principal.name) or MemoryAccess(spaces, spaces)
        try:
            return AuthorityContext(
                principal.name, principal.tenant, access.namespaces, granted, KEY_ISSUER, "", None,
                writable=access.writable,
            )  # fmt: skip
        except AuthorityDenied:
            return None

    async def _of_receipt(self, token: str, receipts: Receipts) -> Bearer | None:
        try:
            return _bearer(await receipts.verify(token, REQUEST.get(), PEER.get()))
        except AuthorityRefused:
            return None
        except StoreUnavailable:
            return _bearer(None)  # its use cannot be counted: the gate denies it, or tells of the outage


def of_request(context: Context) -> AuthorityContext | None:
    """Whose HTTP request a call came with."""
    user = None if context.request is None else context.request.scope.get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else None
    return token.context if isinstance(token, Bearer) else None


def _bearer(context: AuthorityContext | None) -> Bearer:
    if context is None:
        return Bearer(token="", client_id="", scopes=[], context=None)
    return Bearer(
        token="",
        client_id=context.principal,
        scopes=sorted(context.capabilities),
        subject=context.principal,
        # The verifier checked the time already, with the leeway for clocks that the SDK's own check does not have.
        expires_at=None,
        claims={"iss": context.issuer, "tenant": context.tenant},
        context=context,
    )
