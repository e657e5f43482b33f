"""Proof of possession: the holder signs each request with the key that its receipt names (after RFC 9449).

`verify_proof` is for the service; `prove` and `ReceiptAuth` (for httpx) are for clients, such as those of `/mcp`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joserfc.jwk import OKPKey

from stentor.auth.authority import jws
from stentor.auth.authority.claims import (
    CLOCK_LEEWAY_S,
    ReceiptError,
    read_hash_claim,
    read_text_claim,
    read_time_claim,
)
from stentor.auth.authority.jws import UnverifiedJws, sha256_base64url
from stentor.auth.authority.keys import parse_public_jwk, public_jwk, thumbprint
from stentor.core import ids
from stentor.core.clock import SystemClock
from stentor.core.jsontext import JsonObject

if TYPE_CHECKING:
    import httpx
    from joserfc.jwk import OKPKey


PROOF_HEADER = "Receipt-Proof"
PROOF_TYPE = "receipt-proof+jwt"
MAX_AGE_S = 60
"""Maximum age of a proof in seconds."""
_CLAIMS = frozenset("jti iat htm htu digest receipt".split())


@dataclass(frozen=True, repr=False)
class ProofRequest:
    """The request that came with a receipt, as the service received it.

    `path` is the request target: the path as sent, with `?query` if there is one. It has no `repr`, because proof
    and body must not get into logs.
    """

    method: str
    path: str
    body: bytes = b""
    proof: str | None = None


@dataclass(frozen=True)
class VerifiedProof:
    """A valid proof. The caller must still record its one use, and remember it until `expires_at_s` (epoch seconds)."""

    jkt: str
    jti: str
    expires_at_s: int


def prove(holder: OKPKey, receipt: str, method: str, path: str, body: bytes = b"", *, now: int) -> str:
    """Return the proof for one request with a receipt that is bound to a key. `now` in microseconds."""
    claims = {
        "jti": ids.new_id(),
        "iat": now // 1_000_000,
        "htm": method,
        "htu": path,
        "digest": sha256_base64url(body),
        "receipt": sha256_base64url(receipt),
    }
    return jws.sign({"typ": PROOF_TYPE, "jwk": public_jwk(holder)}, claims, holder)


def verify_proof(request: ProofRequest, receipt: str, jkt: str, now: int) -> VerifiedProof:
    """Raise ReceiptError unless the key with thumbprint `jkt` recently signed this request with this receipt."""
    if not request.proof:
        raise ReceiptError("the receipt is bound to a key, but the request has no proof")
    token = jws.parse(request.proof)
    jws.require_header(token, PROOF_TYPE, "jwk")
    key = parse_public_jwk(token.header["jwk"])
    if thumbprint(key) != jkt:
        raise ReceiptError("the proof is not signed with the key that the receipt names")
    jws.verify(token, key)
    return _check_claims(token, request, receipt, jkt, now)


def _check_claims(token: UnverifiedJws, request: ProofRequest, receipt: str, jkt: str, now: int) -> VerifiedProof:
    claims: JsonObject = token.claims
    if set(claims) != _CLAIMS:
        raise ReceiptError("the proof has missing or unknown claims")
    issued_at = read_time_claim(claims, "iat")
    if not -CLOCK_LEEWAY_S <= now / 1_000_000 - issued_at <= MAX_AGE_S + CLOCK_LEEWAY_S:
        raise ReceiptError("the proof is too old, or its iat is in the future")
    if (claims["htm"], claims["htu"]) != (request.method, request.path):
        raise ReceiptError("the proof is for another method or path")
    if read_hash_claim(claims, "digest") != sha256_base64url(request.body):
        raise ReceiptError("the proof is for another body")
    if read_hash_claim(claims, "receipt") != sha256_base64url(receipt):
        raise ReceiptError("the proof is for another receipt")
    return VerifiedProof(jkt, read_text_claim(claims, "jti", 128), issued_at + MAX_AGE_S)


class ReceiptAuth:
    """An `auth` for httpx clients (and for httpx2, which the MCP SDK uses) that sends a receipt with each request.

    `receipt` is called for every request, so it can return a new receipt before the old one expires. A receipt that is
    bound to a key also needs `holder`, the private key: each request then carries a proof.
    """

    def __init__(self, receipt: Callable[[], str], holder: OKPKey | None = None) -> None:
        self._receipt = receipt
        self._holder = holder

    def __call__(self, request: httpx.Request) -> httpx.Request:
        token = self._receipt()
        request.headers["Authorization"] = f"Bearer {token}"
        if self._holder is not None:
            target, body = request.url.raw_path.decode("ascii"), request.read()
            now = SystemClock().now()
            request.headers[PROOF_HEADER] = prove(self._holder, token, request.method, target, body, now=now)
        return request
