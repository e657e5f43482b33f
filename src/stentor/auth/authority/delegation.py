"""Passing authority on: each hop signs a receipt that is narrower than its own.

Who may sign a child is the holder whose key the parent names (`cnf.jkt`), and nobody else: not the issuer, and not the
bearer of a receipt without a key. A child names a key itself, so a chain is never good for who merely copied it. A
chain is written as its receipts joined by `~`, the issuer's first.
"""

from __future__ import annotations

from joserfc.jwk import OKPKey

from stentor.auth.authority import claims as claims_of
from stentor.auth.authority import compact
from stentor.auth.authority.claims import Claims
from stentor.auth.authority.compact import Compact, digest
from stentor.auth.authority.context import is_namespace, narrower
from stentor.auth.authority.flaw import Flaw
from stentor.auth.authority.keys import public_jwk, read_public, thumbprint
from stentor.core import ids
from stentor.core.errors import InvalidRequest

TYPE = "receipt+jwt"
JOINT = "~"
DEEPEST = 4
"""Hops after the issuer's receipt."""


def split(chain: str) -> list[str]:
    """The receipts of a chain, the issuer's first. Raises Flaw for a chain that is too deep."""
    if len(chain) > (DEEPEST + 1) * (compact.LONGEST + 1):
        raise Flaw("it is too long")
    links = chain.split(JOINT)
    if len(links) > DEEPEST + 1:
        raise Flaw(f"the authority was passed on more than {DEEPEST} times")
    return links


def check(link: str, parent: Compact, granted: Claims) -> tuple[Compact, Claims]:
    """One hop: the child, read and verified. Raises Flaw unless the parent's holder signed something narrower."""
    child = compact.parse(link)
    compact.require_header(child, TYPE, "jwk")
    key = read_public(child.header["jwk"])
    if granted.jkt is None or thumbprint(key) != granted.jkt:
        raise Flaw("a child was not signed by the holder whom its parent names")
    compact.verify(child, key)
    asked = claims_of.read(child.claims)
    if asked.parent != digest(parent.text):
        raise Flaw("a child does not belong to the parent before it")
    check_narrower(asked, granted)
    return child, asked


def check_narrower(child: Claims, parent: Claims) -> None:
    """Raises Flaw for whatever the child has that its parent has not."""
    if child.jkt is None:
        raise Flaw("a child names no key of its holder")
    if (child.iss, child.aud, child.tenant) != (parent.sub, parent.aud, parent.tenant):
        raise Flaw("a child is not issued by its parent's principal, or for another audience or tenant")
    above, _, name = child.sub.rpartition("/")
    if above != parent.sub or not is_namespace(name):
        raise Flaw("a child names a principal that is not below its parent's")
    if child.iat < parent.iat or child.exp > parent.exp:
        raise Flaw("a child begins before its parent or lives longer")
    if not set(child.cap) <= set(parent.cap):
        raise Flaw("a child has a capability that its parent has not")
    if not narrower(child.ns, parent.ns):
        raise Flaw("a child reaches a namespace that its parent does not")


def delegate(
    chain: str,
    holder: OKPKey,
    to: OKPKey,
    name: str,
    *,
    namespaces: tuple[str, ...] | None = None,
    capabilities: tuple[str, ...] | None = None,
    lifetime: int = claims_of.LIFETIME,
    now: int,
) -> str:
    """The chain with one more hop, for clients. Raises InvalidRequest when it would not be taken.

    `holder` is the private key that the last receipt names, `to` the public key of the next holder, whose principal is
    the parent's with `/name` added. What is None is passed on whole. `lifetime` in seconds, `now` in microseconds.
    """
    try:
        last = compact.parse(split(chain)[-1])
        granted = claims_of.read(last.claims)
        begins = max(now // 1_000_000, granted.iat)
        child = Claims(
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
            parent=digest(last.text),
        )
        link = compact.sign({"typ": TYPE, "jwk": public_jwk(holder)}, claims_of.write(child), holder)
        check(link, last, granted)
        split(longer := chain + JOINT + link)
    except Flaw as flaw:
        raise InvalidRequest(f"The authority cannot be passed on like this: {flaw}.") from None
    return longer
