"""Delegation: the holder of a receipt signs a narrower one for another principal.

Only the holder whose key the parent names (`cnf.jkt`) may sign a child: neither the issuer nor the bearer of a receipt
without a key. A child names a key as well, so a copied chain is useless. A chain is its receipts joined by `~`, the
issuer's first. `decode_chain` shows a chain to people and verifies nothing.
"""

from __future__ import annotations

from joserfc.jwk import OKPKey

from stentor.auth.authority import claims as claims_of
from stentor.auth.authority import jws
from stentor.auth.authority.claims import ReceiptClaims, ReceiptError
from stentor.auth.authority.context import is_namespace, is_narrower
from stentor.auth.authority.jws import UnverifiedJws, sha256_base64url
from stentor.auth.authority.keys import parse_public_jwk, public_jwk, thumbprint
from stentor.core import ids
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject

RECEIPT_TYPE = "receipt+jwt"
CHAIN_SEPARATOR = "~"
MAX_HOPS = 4
"""Maximum number of hops after the issuer's receipt."""


def split_chain(chain: str) -> list[str]:
    """Return the receipts of a chain, the issuer's first. Raises ReceiptError for one that is too long."""
    if len(chain) > (MAX_HOPS + 1) * (jws.MAX_LENGTH + 1):
        raise ReceiptError("it is too long")
    links = chain.split(CHAIN_SEPARATOR)
    if len(links) > MAX_HOPS + 1:
        raise ReceiptError(f"the authority was delegated more than {MAX_HOPS} times")
    return links


def verify_hop(link: str, parent: UnverifiedJws, granted: ReceiptClaims) -> tuple[UnverifiedJws, ReceiptClaims]:
    """Parse and verify one hop. Raises ReceiptError unless the parent's holder signed it and it is not wider."""
    child = jws.parse(link)
    jws.require_header(child, RECEIPT_TYPE, "jwk")
    key = parse_public_jwk(child.header["jwk"])
    if granted.jkt is None or thumbprint(key) != granted.jkt:
        raise ReceiptError("a child is not signed by the holder that its parent names")
    jws.verify(child, key)
    claims = claims_of.parse_claims(child.claims)
    if claims.parent != sha256_base64url(parent.text):
        raise ReceiptError("a child does not belong to the parent before it")
    require_narrower(claims, granted)
    return child, claims


def require_narrower(child: ReceiptClaims, parent: ReceiptClaims) -> None:
    """Raise ReceiptError if the child grants anything that its parent does not."""
    if child.jkt is None:
        raise ReceiptError("a child does not name its holder's key")
    # The issuer of a child is the holder of its parent, not the issuer of the chain.
    if (child.iss, child.aud, child.tenant) != (parent.sub, parent.aud, parent.tenant):
        raise ReceiptError("a child is not issued by its parent's principal, or for another audience or tenant")
    parent_principal, _, name = child.sub.rpartition("/")
    if parent_principal != parent.sub or not is_namespace(name):
        raise ReceiptError("a child's principal is not its parent's with one name added")
    if child.iat < parent.iat or child.exp > parent.exp:
        raise ReceiptError("a child is valid before or after its parent")
    if not set(child.cap) <= set(parent.cap):
        raise ReceiptError("a child has a capability that its parent does not have")
    if not is_narrower(child.ns, parent.ns):
        raise ReceiptError("a child covers a namespace that its parent does not")


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
    """Return the chain with one more hop. For clients; raises InvalidRequest if no verifier would accept it.

    `holder` is the private key that the last receipt names, `to` the public key of the next holder, whose principal is
    the parent's with `/name` added. None for namespaces or capabilities delegates all of them. `lifetime` in seconds
    (shortened to the parent's), `now` in microseconds.
    """
    try:
        last = jws.parse(split_chain(chain)[-1])
        granted = claims_of.parse_claims(last.claims)
        issued_at = max(now // 1_000_000, granted.iat)
        child = ReceiptClaims(
            iss=granted.sub,
            aud=granted.aud,
            sub=f"{granted.sub}/{name}",
            tenant=granted.tenant,
            ns=granted.ns if namespaces is None else namespaces,
            cap=granted.cap if capabilities is None else capabilities,
            iat=issued_at,
            exp=min(issued_at + lifetime, granted.exp),
            jti=ids.new_id(),
            jkt=thumbprint(to),
            parent=sha256_base64url(last.text),
        )
        link = jws.sign({"typ": RECEIPT_TYPE, "jwk": public_jwk(holder)}, claims_of.claims_to_json(child), holder)
        # Applies the verifier's own rules to the result, so that a client learns at once what the service would refuse.
        verify_hop(link, last, granted)
        split_chain(delegated := chain + CHAIN_SEPARATOR + link)
    except ReceiptError as error:
        raise InvalidRequest(f"The authority cannot be delegated: {error}.") from None
    return delegated


def decode_chain(chain: str) -> list[JsonObject]:
    """Return `{header, claims}` of each receipt, the issuer's first, without verifying any. Raises InvalidRequest."""
    try:
        links = [jws.parse(link) for link in split_chain(chain)]
    except ReceiptError as error:
        raise InvalidRequest(f"The receipt cannot be read: {error}.") from None
    return [{"header": link.header, "claims": link.claims} for link in links]
