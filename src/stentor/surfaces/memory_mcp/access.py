"""Authentication of bearer tokens: API keys of the service and signed receipts.

The SDK passes only the token to its verifier, so `ProofRequestMiddleware` provides the request and the client's address
in context variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Protocol

import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from pydantic import ConfigDict
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.auth.api_keys import KeyRing
from stentor.auth.authority.context import AuthorityContext
from stentor.auth.authority.proof import ProofRequest
from stentor.auth.principal import Principal
from stentor.core.errors import AuthorityRefused, StoreUnavailable
from stentor.domains.memory.governed.key_access import FindAccess, default_access, key_authority
from stentor.surfaces.memory_mcp.server import McpRequestContext

PROOF_HEADER = "receipt-proof"
CURRENT_PROOF_REQUEST: ContextVar[ProofRequest | None] = ContextVar("proof_request", default=None)
CURRENT_PEER: ContextVar[str | None] = ContextVar("peer", default=None)
"""The client's address. An MCP client makes several requests with one token; they count as one session."""


class VerifiesReceipts(Protocol):
    """The part of `ReceiptVerifier` that is used here."""

    async def verify(
        self, receipt: str, request: ProofRequest | None = None, session: str | None = None
    ) -> AuthorityContext:
        """Raises AuthorityRefused without a reason, and StoreUnavailable."""
        ...


class BearerToken(AccessToken):
    """The SDK's access token with the authority of the caller. The token itself is not stored.

    `context` is None for an authenticated caller whose calls are all denied.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    context: AuthorityContext | None


class BearerTokenVerifier:
    """The SDK's TokenVerifier for API keys and receipts. `vaults` are the named vaults.

    `access` returns what a key may access, by its name; None means the default of its permissions. `may_write` is false
    for a key that may only read, whatever its access.
    """

    def __init__(
        self,
        ring: KeyRing,
        receipts: VerifiesReceipts | None,
        access: FindAccess = default_access,
        vaults: Sequence[str] = (),
        may_write: Callable[[Principal], bool] = lambda principal: True,
    ) -> None:
        self._ring = ring
        self._may_write = may_write
        self._receipts = receipts
        self._access = access
        self._vaults = vaults

    async def verify_token(self, token: str) -> BearerToken | None:
        """Return the authority of a token, or None for an unknown token."""
        # The keys first: one that an operator chose may have dots too.
        principal = self._ring.find(token)
        # A receipt has parts joined by dots, as every JWT.
        if principal is None and self._receipts is not None and token.count(".") >= 2:
            return await self._verify_receipt(token, self._receipts)
        principal = principal or await self._ring.find_recent(token)
        if principal is None:
            return None
        if not self._may_write(principal):
            principal = msgspec.structs.replace(principal, permissions=principal.permissions - {"write"})
        # Without authority the caller is still let in: the memory denies its calls and records the denial.
        return _to_bearer_token(key_authority(principal, self._access, self._vaults))

    async def _verify_receipt(self, token: str, receipts: VerifiesReceipts) -> BearerToken | None:
        try:
            return _to_bearer_token(await receipts.verify(token, CURRENT_PROOF_REQUEST.get(), CURRENT_PEER.get()))
        except AuthorityRefused:
            return None
        except StoreUnavailable:
            # The use cannot be recorded: the memory denies the call, or reports the outage.
            return _to_bearer_token(None)


def get_request_authority(context: McpRequestContext) -> AuthorityContext | None:
    """Return the authority of the HTTP request that a call came with; None if there is none."""
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
        # The verifier has checked the expiry, with a clock leeway that the SDK's own check does not have.
        expires_at=None,
        claims={"iss": context.issuer, "tenant": context.tenant},
        context=context,
    )


class ProofRequestMiddleware:
    """Makes method, target and body of a request with a proof available to the token verifier.

    Different Authorization headers count as none: a proxy may have checked another one than the SDK would take.
    A body above `max_body` bytes is not buffered completely; the transport rejects it.
    """

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len({value for name, value in scope["headers"] if name == b"authorization"}) > 1:
            scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"authorization"]}
        client = scope.get("client")
        token = CURRENT_PEER.set(f"mcp {client[0]}" if client else None)
        try:
            await self._call_with_proof(scope, receive, send)
        finally:
            CURRENT_PEER.reset(token)

    async def _call_with_proof(self, scope: Scope, receive: Receive, send: Send) -> None:
        proof = Headers(scope=scope).get(PROOF_HEADER) if scope["type"] == "http" else None
        if proof is None:
            await self._app(scope, receive, send)
            return
        messages = await self._buffer_body(receive)
        body = b"".join(message.get("body", b"") for message in messages)
        target = bytes(scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        query = scope.get("query_string", b"").decode("latin-1")
        request = ProofRequest(scope["method"], f"{target}?{query}" if query else target, body, proof)
        buffered = iter(messages)

        async def replay() -> Message:
            # After the buffered messages, `receive` reports the disconnect.
            return next(buffered, None) or await receive()

        token = CURRENT_PROOF_REQUEST.set(request)
        try:
            await self._app(scope, replay, send)
        finally:
            CURRENT_PROOF_REQUEST.reset(token)

    async def _buffer_body(self, receive: Receive) -> list[Message]:
        messages: list[Message] = []
        size = 0
        while size <= self._max_body:
            messages.append(await receive())
            size += len(messages[-1].get("body", b""))
            if not messages[-1].get("more_body", False):
                break
        return messages
