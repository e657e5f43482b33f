"""Proof of possession: the holder signs each request with the key that its receipt names (after RFC 9449)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joserfc.jwk import OKPKey

from stentor.auth.authority import compact
from stentor.auth.authority.claims import LEEWAY, hash_text, moment, text
from stentor.auth.authority.compact import Compact, digest
from stentor.auth.authority.flaw import Flaw
from stentor.auth.authority.keys import public_jwk, read_public, thumbprint
from stentor.core import ids

TYPE = "receipt-proof+jwt"
FRESH = 60
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
class Proof:
    """A proof that holds, and has yet to be counted: once, until `until` (seconds since the epoch)."""

    jkt: str
    jti: str
    until: int


def prove(holder: OKPKey, receipt: str, method: str, path: str, body: bytes = b"", *, now: int) -> str:
    """The proof for one request with a bound receipt, for clients. `now` in microseconds."""
    claims = {
        "jti": ids.new_id(),
        "iat": now // 1_000_000,
        "htm": method,
        "htu": path,
        "digest": digest(body),
        "receipt": digest(receipt),
    }
    return compact.sign({"typ": TYPE, "jwk": public_jwk(holder)}, claims, holder)


def check(request: ProofRequest, receipt: str, jkt: str, now: int) -> Proof:
    """Raises Flaw unless the key of this thumbprint signed this request with this receipt just now."""
    if not request.proof:
        raise Flaw("the receipt is bound to a key, and there is no proof")
    sent = compact.parse(request.proof)
    compact.require_header(sent, TYPE, "jwk")
    key = read_public(sent.header["jwk"])
    if thumbprint(key) != jkt:
        raise Flaw("the proof was signed with another key than the receipt names")
    compact.verify(sent, key)
    return _check_claims(sent, request, receipt, jkt, now)


def _check_claims(sent: Compact, request: ProofRequest, receipt: str, jkt: str, now: int) -> Proof:
    claims: dict[str, Any] = sent.claims
    if set(claims) != _CLAIMS:
        raise Flaw("the proof has claims that are missing, or that are not taken")
    made = moment(claims, "iat")
    if not -LEEWAY <= now / 1_000_000 - made <= FRESH + LEEWAY:
        raise Flaw("the proof is too old, or from the future")
    if (claims["htm"], claims["htu"]) != (request.method, request.path):
        raise Flaw("the proof is for another method or path")
    if hash_text(claims, "digest") != digest(request.body):
        raise Flaw("the proof is for another body")
    if hash_text(claims, "receipt") != digest(receipt):
        raise Flaw("the proof is for another receipt")
    return Proof(jkt, text(claims, "jti", 128), made + FRESH)
