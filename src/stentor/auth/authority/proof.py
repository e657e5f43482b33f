"""Proof of possession: the holder signs each request with the key that its receipt names (after RFC 9449).

For clients of `/mcp` and other programs that hold a receipt: it signs each request that httpx sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    import httpx
    from joserfc.jwk import OKPKey


PROOF_TYPE = "receipt-proof+jwt"
MAX_AGE_S = 60
"""Seconds that a proof may be old."""
_CLAIMS = frozenset("jti iat htm htu digest receipt".split())


@dataclass(frozen=True, repr=False)
class ProofRequest:
    """The request that came with a receipt, as the service received it.

    `path` is its target: the path as sent, and `?query` when there is one. `proof` is None when none was sent.
    There is no `repr`, because proof and body are the caller's own.
    """

    method: str
    path: str
    body: bytes = b""
    proof: str | None = None


@dataclass(frozen=True)
class VerifiedProof:
    """A proof that holds, and has yet to be counted: once, until `until` (seconds since the epoch)."""

    jkt: str
    jti: str
    expires_at_s: int


def prove(holder: OKPKey, receipt: str, method: str, path: str, body: bytes = b"", *, now: int) -> str:
    """The proof for one request with a bound receipt, for clients. `now` in microseconds."""
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
    """Raises Flaw unless the key of this thumbprint signed this request with this receipt just now."""
    if not request.proof:
        raise ReceiptError("the receipt is bound to a key, and there is no proof")
    sent = jws.parse(request.proof)
    jws.require_header(sent, PROOF_TYPE, "jwk")
    key = parse_public_jwk(sent.header["jwk"])
    if thumbprint(key) != jkt:
        raise ReceiptError("the proof was signed with another key than the receipt names")
    jws.verify(sent, key)
    return _check_claims(sent, request, receipt, jkt, now)


def _check_claims(sent: UnverifiedJws, request: ProofRequest, receipt: str, jkt: str, now: int) -> VerifiedProof:
    claims: dict[str, Any] = sent.claims
    if set(claims) != _CLAIMS:
        raise ReceiptError("the proof has claims that are missing, or that are not taken")
    made = read_time_claim(claims, "iat")
    if not -CLOCK_LEEWAY_S <= now / 1_000_000 - made <= MAX_AGE_S + CLOCK_LEEWAY_S:
        raise ReceiptError("the proof is too old, or from the future")
    if (claims["htm"], claims["htu"]) != (request.method, request.path):
        raise ReceiptError("the proof is for another method or path")
    if read_hash_claim(claims, "digest") != sha256_base64url(request.body):
        raise ReceiptError("the proof is for another body")
    if read_hash_claim(claims, "receipt") != sha256_base64url(receipt):
        raise ReceiptError("the proof is for another receipt")
    return VerifiedProof(jkt, read_text_claim(claims, "jti", 128), made + MAX_AGE_S)


PROOF_HEADER = "Receipt-Proof"


class ReceiptAuth:
    """The `auth` of an httpx client (or one of httpx2, which the MCP SDK uses).

    `receipt` is asked for each request, so that it can answer a new receipt before the old one expires. With the
    `holder`'s private key each request brings a proof, which a receipt that is bound to that key needs.
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
