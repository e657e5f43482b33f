"""The request that a bearer token came with: for receipts whose holder proves each request, and where it came from."""

from __future__ import annotations

from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.auth.authority.proof import ProofRequest

HEADER = "receipt-proof"
REQUEST: ContextVar[ProofRequest | None] = ContextVar("presented", default=None)
PEER: ContextVar[str | None] = ContextVar("peer", default=None)
"""The address that the request came from. A client of the protocol makes several requests from there with one token."""


class Presented:
    """Lets the verifier of tokens see method, target and body of a request that brings a proof.

    A body above `max_body` bytes is not taken together; the transport refuses it.
    """

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        token = PEER.set(f"mcp {client[0]}" if client else None)
        try:
            await self._proved(scope, receive, send)
        finally:
            PEER.reset(token)

    async def _proved(self, scope: Scope, receive: Receive, send: Send) -> None:
        proof = Headers(scope=scope).get(HEADER) if scope["type"] == "http" else None
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

        token = REQUEST.set(asked)
        try:
            await self._app(scope, again, send)
        finally:
            REQUEST.reset(token)

    async def _taken(self, receive: Receive) -> list[Message]:
        messages: list[Message] = []
        size = 0
        while size <= self._max_body:
            messages.append(await receive())
            size += len(messages[-1].get("body", b""))
            if not messages[-1].get("more_body", False):
                break
        return messages
