"""Receipts: issued by the service or a trusted issuer, verified into an authority context."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from joserfc.jwk import OKPKey

from stentor.auth.authority import claims as claims_of
from stentor.auth.authority import compact, delegation, proof
from stentor.auth.authority.claims import Claims
from stentor.auth.authority.context import AuthorityContext
from stentor.auth.authority.flaw import Flaw
from stentor.auth.authority.issuers import OWN, Issuers
from stentor.auth.authority.keys import thumbprint
from stentor.auth.authority.proof import ProofRequest
from stentor.auth.authority.replay import Replay
from stentor.auth.authority.uris import strip_uri
from stentor.core import ids
from stentor.core.clock import SECOND, Clock
from stentor.core.errors import AuthorityDenied, AuthorityRefused, InvalidRequest, StoreUnavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Examined:
    """A chain whose signatures and claims hold; whether it may be presented now is another question."""

    claims: Claims
    issuer: str
    delegated_by: tuple[str, ...]

    def context(self) -> AuthorityContext:
        """What crosses the boundary. Names that are URIs lose their credentials here, because logs, events and answers
        repeat them; principals that differ in nothing else are one. Fails closed: a name of which nothing is left is
        blank, and denied.
        """
        return AuthorityContext(
            principal=strip_uri(self.claims.sub),
            tenant=self.claims.tenant,
            namespaces=self.claims.ns,
            capabilities=frozenset(self.claims.cap),
            issuer=self.issuer,
            receipt_id=strip_uri(self.claims.jti),
            expires_at=datetime.fromtimestamp(self.claims.exp, UTC),
            delegated_by=tuple(map(strip_uri, self.delegated_by)),
        )


def own_claims(
    names: dict[str, str],
    namespaces: tuple[str, ...],
    capabilities: tuple[str, ...],
    lifetime: int,
    jkt: str | None = None,
    *,
    now: int,
) -> Claims:
    """Claims of the service's own issuer. `names`: aud, sub, tenant; `lifetime` in seconds, `now` in microseconds."""
    begins = now // SECOND
    return Claims(
        iss=OWN,
        ns=namespaces,
        cap=capabilities,
        iat=begins,
        exp=begins + lifetime,
        jti=ids.new_id(),
        jkt=jkt,
        **names,
    )


def issue(claims: Claims, key: OKPKey) -> str:
    """A receipt signed by this key, whose thumbprint is its `kid`. Raises InvalidRequest for what nobody would take."""
    try:
        claims_of.read(claims_of.write(claims))
        if claims.parent is not None:
            raise Flaw("a receipt of an issuer has no parent")
        receipt = compact.sign({"typ": delegation.TYPE, "kid": thumbprint(key)}, claims_of.write(claims), key)
        compact.parse(receipt)
    except Flaw as flaw:
        raise InvalidRequest(f"No such receipt can be issued: {flaw}.") from None
    return receipt


def examine(receipt: str, issuers: Issuers, audience: str, now: int) -> Examined:
    """Everything that can be told without a request and without a memory. `now` in microseconds. Raises Flaw."""
    first, *hops = delegation.split(receipt)
    parent = compact.parse(first)
    compact.require_header(parent, delegation.TYPE, "kid")
    issuer = issuers.find(parent.header["kid"])
    compact.verify(parent, issuer.key)
    granted = claims_of.read(parent.claims)
    _check_root(granted, issuer.name, audience)
    if not issuer.may_name(granted.tenant):
        raise Flaw("the issuer may not name this tenant")
    claims_of.check_time(granted, now)
    delegated_by: list[str] = []
    for hop in hops:
        delegated_by.append(granted.sub)
        parent, granted = delegation.check(hop, parent, granted)
        claims_of.check_time(granted, now)
    return Examined(granted, issuer.name, tuple(delegated_by))


def _check_root(claims: Claims, issuer: str, audience: str) -> None:
    if claims.iss != issuer:
        raise Flaw("iss is not the name of the issuer whose key signed it")
    if claims.aud != audience:
        raise Flaw("it is for another audience")
    if claims.parent is not None:
        raise Flaw("it names a parent, and there is none before it")


def peek(receipt: str, issuers: Issuers, audience: str, now: int) -> AuthorityContext:
    """As `Verifier.verify`, but it counts no use and asks for no proof: for operators. Raises AuthorityRefused."""
    try:
        return examine(receipt, issuers, audience, now).context()
    except Exception as error:  # noqa: BLE001 - fails closed
        reason = _reason(error)
    log.debug("a receipt was refused: %s", reason)
    raise AuthorityRefused


def _reason(error: Exception) -> str:
    """For the debug log: never the text of an error that is not ours, which may hold parts of the receipt."""
    if isinstance(error, Flaw):
        return str(error)
    return error.message if isinstance(error, AuthorityDenied) else f"it could not be examined ({type(error).__name__})"


class Verifier:
    """The boundary: a receipt, and the request that it came with, to what its holder may do."""

    def __init__(self, issuers: Issuers, audience: str, replay: Replay, clock: Clock) -> None:
        self._issuers = issuers
        self._audience = audience
        self._replay = replay
        self._clock = clock

    async def verify(
        self, receipt: str, request: ProofRequest | None = None, session: str | None = None
    ) -> AuthorityContext:
        """Counts the use: a receipt without a key is good for one call, one with a key for one call per proof.

        `session` names where a conversation of many requests comes from, such as the client's address: there a receipt
        without a key is good until it expires, and nowhere else from its first use on.

        Raises AuthorityRefused for everything that is wrong, and StoreUnavailable when uses cannot be counted.
        """
        try:
            return await self._verify(receipt, request, session)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - fails closed
            reason = _reason(error)
        log.debug("a receipt was refused: %s", reason)
        raise AuthorityRefused

    async def _verify(self, receipt: str, request: ProofRequest | None, session: str | None) -> AuthorityContext:
        now = self._clock.now()
        examined = examine(receipt, self._issuers, self._audience, now)
        context, claims = examined.context(), examined.claims
        sent = request if request is not None else ProofRequest("", "")
        if claims.jkt is not None:
            proved = proof.check(sent, receipt, claims.jkt, now)
            await self._replay.use("proof", proved.jkt, proved.jti, proved.until, now)
        elif sent.proof:
            raise Flaw("there is a proof, and the receipt names no key")
        else:
            await self._replay.use("receipt", examined.issuer, claims.jti, claims.exp, now, session)
        return context
