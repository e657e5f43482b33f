"""Passing authority on: each hop signs a receipt that is narrower than its own.

Who may sign a child is the holder whose key the parent names (`cnf.jkt`), and nobody else: not the issuer, and not the
bearer of a receipt without a key. A child names a key itself, so a chain is never good for who merely copied it. A
chain is written as its receipts joined by `~`, the issuer's first.

What a receipt says of itself, for people. Nothing of it may be believed.
"""

from __future__ import annotations

from typing import Any

from joserfc.jwk import OKPKey

from stentor.auth.authority import claims as claims_of
from stentor.auth.authority import jws
from stentor.auth.authority.claims import ReceiptClaims, ReceiptError
from stentor.auth.authority.context import is_namespace, is_narrower
from stentor.auth.authority.jws import UnverifiedJws, sha256_base64url
from stentor.auth.authority.keys import parse_public_jwk, public_jwk, thumbprint
from stentor.core import ids
from stentor.core.errors import InvalidRequest

RECEIPT_TYPE = "receipt+jwt"
CHAIN_SEPARATOR = "~"
MAX_HOPS = 4
"""Hops after the issuer's receipt."""


def split_chain(chain: str) -> list[str]:
    """The receipts of a chain, the issuer's first. Raises Flaw for a chain that is too deep."""
    if len(chain) > (MAX_HOPS + 1) * (jws.MAX_LENGTH + 1):
        raise ReceiptError("it is too long")
    links = chain.split(CHAIN_SEPARATOR)
    if len(links) > MAX_HOPS + 1:
        raise ReceiptError(f"the authority was passed on more than {MAX_HOPS} times")
    return links


def verify_hop(link: str, parent: UnverifiedJws, granted: ReceiptClaims) -> tuple[UnverifiedJws, ReceiptClaims]:
    """One hop: the child, read and verified. Raises Flaw unless the parent's holder signed something narrower."""
    child = jws.parse(link)
    jws.require_header(child, RECEIPT_TYPE, "jwk")
    key = parse_public_jwk(child.header["jwk"])
    if granted.jkt is None or thumbprint(key) != granted.jkt:
        raise ReceiptError("a child was not signed by the holder whom its parent names")
    jws.verify(child, key)
    asked = claims_of.parse_claims(child.claims)
    if asked.parent != sha256_base64url(parent.text):
        raise ReceiptError("a child does not belong to the parent before it")
    require_narrower(asked, granted)
    return child, asked


def require_narrower(child: ReceiptClaims, parent: ReceiptClaims) -> None:
    """Raises Flaw for whatever the child has that its parent has not."""
    if child.jkt is None:
        raise ReceiptError("a child names no key of its holder")
    if (child.iss, child.aud, child.tenant) != (parent.sub, parent.aud, parent.tenant):
        raise ReceiptError("a child is not issued by its parent's principal, or for another audience or tenant")
    above, _, name = child.sub.rpartition("/")
    if above != parent.sub or not is_namespace(name):
        raise ReceiptError("a child names a principal that is not below its parent's")
    if child.iat < parent.iat or child.exp > parent.exp:
        raise ReceiptError("a child begins before its parent or lives longer")
    if not set(child.cap) <= set(parent.cap):
        raise ReceiptError("a child has a capability that its parent has not")
    if not is_narrower(child.ns, parent.ns):
        raise ReceiptError("a child reaches a namespace that its parent does not")


def delegate(
    chain: str,
    holder: OKPKey,
    to: OKPKey,
    name: str,
    *,
    namespaces: tuple[str, ...] | None = None,
    capabilities: tuple[str, ...] | None = None,
    lifetime: int = claims_of.MAX_LIFETIME_S,
    now: int,
) -> str:
    """The chain with one more hop, for clients. Raises InvalidRequest when it would not be taken.

    `holder` is the private key that the last receipt names, `to` the public key of the next holder, whose principal is
    the parent's with `/name` added. What is None is passed on whole. `lifetime` in seconds, `now` in microseconds.
    """
    try:
        last = jws.parse(split_chain(chain)[-1])
        granted = claims_of.parse_claims(last.claims)
        begins = max(now // 1_000_000, granted.iat)
        child = ReceiptClaims(
            iss=granted.sub,
            aud=granted.aud,
            sub=f"{granted.sub}/{name}",
            tenant=granted.tenant,
            ns=granted.ns if namespaces is None else namespaces,
            cap=granted.cap if capabilities is None else capabilities,
            iat=begins,
            exp=min(begins + lifetime, granted.exp),
            jti=ids.new_id(),
            jkt=thumbprint(to),
            parent=sha256_base64url(last.text),
        )
        link = jws.sign({"typ": RECEIPT_TYPE, "jwk": public_jwk(holder)}, claims_of.claims_to_json(child), holder)
        verify_hop(link, last, granted)
        split_chain(longer := chain + CHAIN_SEPARATOR + link)
    except ReceiptError as flaw:
        raise InvalidRequest(f"The authority cannot be passed on like this: {flaw}.") from None
    return longer


def decode_chain(chain: str) -> list[dict[str, Any]]:
    """`{header, claims}` of each receipt of the chain, the issuer's first. Raises InvalidRequest."""
    try:
        links = [jws.parse(link) for link in split_chain(chain)]
    except ReceiptError as flaw:
        raise InvalidRequest(f"This cannot be read as a receipt: {flaw}.") from None
    return [{"header": link.header, "claims": link.claims} for link in links]
