"""Who a bearer token stands for: the holder of a key of the service, or of a signed receipt.

The request that a bearer token came with: for receipts whose holder proves each request, and where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Protocol

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from pydantic import ConfigDict
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.auth.api_keys import KeyRing, MemoryAccess
from stentor.auth.authority.context import ALL_NAMESPACES, NAMED_VAULT_PREFIX, VAULT_NAMESPACE, AuthorityContext
from stentor.auth.authority.proof import ProofRequest
from stentor.auth.principal import Principal
from stentor.core.errors import AuthorityDenied, AuthorityRefused, StoreUnavailable
from stentor.domains.memory.governed.authorization import READ_CAPABILITY, WRITE_CAPABILITY
from stentor.surfaces.memory_mcp.server import McpRequestContext

SHARED_NAMESPACE = "shared"
"""The namespace that every key of the service reaches, beside that of its own name."""
DEFAULT_ADMIN_NAMESPACES = (ALL_NAMESPACES, VAULT_NAMESPACE, f"{VAULT_NAMESPACE}/Tasks", f"{VAULT_NAMESPACE}/Memory")
KEY_ISSUER = "key"


class VerifiesReceipts(Protocol):
    async def verify(
        self, receipt: str, request: ProofRequest | None = None, session: str | None = None
    ) -> AuthorityContext:
        """Raises AuthorityRefused, without a reason."""
        ...


class BearerToken(AccessToken):
    """What is known of the caller; the token itself is not kept."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    context: AuthorityContext | None


class BearerTokenVerifier:
    """The SDK's TokenVerifier: audience and expiry of receipts are checked here. `vaults` are the named ones."""

    def __init__(
        self,
        ring: KeyRing,
        receipts: VerifiesReceipts | None,
        access: Mapping[str, MemoryAccess] = MappingProxyType({}),
        vaults: Sequence[str] = (),
    ) -> None:
        self._ring = ring
        self._receipts = receipts
        self._access = access
        self._vaults = vaults

    async def verify_token(self, token: str) -> BearerToken | None:
        """None for a token that stands for nobody."""
        if token.count(".") >= 2 and self._receipts is not None:
            return await self._of_receipt(token, self._receipts)
        principal = self._ring.find(token)
        if principal is None:
            return None
        return _to_bearer_token(self._of_key(principal))  # blank: the gate denies it, and records it

    def _of_key(self, principal: Principal) -> AuthorityContext | None:
        """What a key was given, never more than its permissions. Without an access of its own an administrator's key
        reaches everything, another the namespace of its name and `shared`.
        """
        granted = frozenset(
            capability
            for name, capability in (("read", READ_CAPABILITY), ("write", WRITE_CAPABILITY))
            if principal.may(name)
        )
        everything = (*DEFAULT_ADMIN_NAMESPACES, *(NAMED_VAULT_PREFIX + name for name in self._vaults))
        spaces = everything if principal.may("admin") else (principal.name, SHARED_NAMESPACE)
        access = self._access.get(principal.name) or MemoryAccess(spaces, spaces)
        try:
            return AuthorityContext(
                principal.name, principal.tenant, access.namespaces, granted, KEY_ISSUER, "", None,
                writable=access.writable,
            )  # fmt: skip
        except AuthorityDenied:
            return None

    async def _of_receipt(self, token: str, receipts: VerifiesReceipts) -> BearerToken | None:
        try:
            return _to_bearer_token(await receipts.verify(token, CURRENT_PROOF_REQUEST.get(), CURRENT_PEER.get()))
        except AuthorityRefused:
            return None
        except StoreUnavailable:
            return _to_bearer_token(None)  # its use cannot be counted: the gate denies it, or tells of the outage


def get_request_authority(context: McpRequestContext) -> AuthorityContext | None:
    """Whose HTTP request a call came with."""
    user = None if context.request is None else context.request.scope.get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else None
    return token.context if isinstance(token, BearerToken) else None


def _to_bearer_token(context: AuthorityContext | None) -> BearerToken:
    if context is None:
        return BearerToken(token="", client_id="", scopes=[], context=None)
    return BearerToken(
        token="",
        client_id=context.principal,
        scopes=sorted(context.capabilities),
        subject=context.principal,
        # The verifier checked the time already, with the leeway for clocks that the SDK's own check does not have.
        expires_at=None,
        claims={"iss": context.issuer, "tenant": context.tenant},
        context=context,
    )


PROOF_HEADER = "receipt-proof"
CURRENT_PROOF_REQUEST: ContextVar[ProofRequest | None] = ContextVar("presented", default=None)
CURRENT_PEER: ContextVar[str | None] = ContextVar("peer", default=None)
"""The address that the request came from. A client of the protocol makes several requests from there with one token."""


class ProofRequestMiddleware:
    """Lets the verifier of tokens see method, target and body of a request that brings a proof.

    A body above `max_body` bytes is not taken together; the transport refuses it.
    """

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        token = CURRENT_PEER.set(f"mcp {client[0]}" if client else None)
        try:
            await self._proved(scope, receive, send)
        finally:
            CURRENT_PEER.reset(token)

    async def _proved(self, scope: Scope, receive: Receive, send: Send) -> None:
        proof = Headers(scope=scope).get(PROOF_HEADER) if scope["type"] == "http" else None
        if proof is None:
            await self._app(scope, receive, send)
            return
        messages = await self._taken(receive)
        body = b"".join(message.get("body", b"") for message in messages)
        target = bytes(scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        query = scope.get("query_string", b"").decode("latin-1")
        asked = ProofRequest(scope["method"], f"{target}?{query}" if query else target, body, proof)
        waiting = iter(messages)

        async def again() -> Message:
            return next(waiting, None) or await receive()

        token = CURRENT_PROOF_REQUEST.set(asked)
        try:
            await self._app(scope, again, send)
        finally:
            CURRENT_PROOF_REQUEST.reset(token)

    async def _taken(self, receive: Receive) -> list[Message]:
        messages: list[Message] = []
        size = 0
        while size <= self._max_body:
            messages.append(await receive())
            size += len(messages[-1].get("body", b""))
            if not messages[-1].get("more_body", False):
                break
        return messages
