"""Receipts: issued by the service or a trusted issuer, verified into an authority context.

What may be presented once is remembered until nobody would take it any more, in the database.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from joserfc.jwk import OKPKey

from stentor.auth.authority import claims as claims_of
from stentor.auth.authority import delegation, jws, proof
from stentor.auth.authority.claims import CLOCK_LEEWAY_S, ReceiptClaims, ReceiptError
from stentor.auth.authority.context import AuthorityContext
from stentor.auth.authority.credential_detection import strip_uri_credentials
from stentor.auth.authority.issuers import OWN_ISSUER, Issuers
from stentor.auth.authority.jws import sha256_base64url
from stentor.auth.authority.keys import thumbprint
from stentor.auth.authority.proof import ProofRequest
from stentor.core import ids
from stentor.core.clock import HOUR, SECOND, Clock
from stentor.core.db import Database, Sql, Tx
from stentor.core.errors import AuthorityDenied, AuthorityRefused, InvalidRequest, StoreUnavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerifiedChain:
    """A chain whose signatures and claims hold; whether it may be presented now is another question."""

    claims: ReceiptClaims
    issuer: str
    delegated_by: tuple[str, ...]

    def context(self) -> AuthorityContext:
        """What crosses the boundary. Names that are URIs lose their credentials here, because logs, events and answers
        repeat them; principals that differ in nothing else are one. Fails closed: a name of which nothing is left is
        blank, and denied.
        """
        return AuthorityContext(
            principal=strip_uri_credentials(self.claims.sub),
            tenant=self.claims.tenant,
            namespaces=self.claims.ns,
            capabilities=frozenset(self.claims.cap),
            issuer=self.issuer,
            receipt_id=strip_uri_credentials(self.claims.jti),
            expires_at=datetime.fromtimestamp(self.claims.exp, UTC),
            delegated_by=tuple(map(strip_uri_credentials, self.delegated_by)),
        )


def create_own_claims(
    names: dict[str, str],
    namespaces: tuple[str, ...],
    capabilities: tuple[str, ...],
    lifetime: int,
    jkt: str | None = None,
    *,
    now: int,
) -> ReceiptClaims:
    """Claims of the service's own issuer. `names`: aud, sub, tenant; `lifetime` in seconds, `now` in microseconds."""
    begins = now // SECOND
    return ReceiptClaims(
        iss=OWN_ISSUER,
        ns=namespaces,
        cap=capabilities,
        iat=begins,
        exp=begins + lifetime,
        jti=ids.new_id(),
        jkt=jkt,
        **names,
    )


def issue_receipt(claims: ReceiptClaims, key: OKPKey) -> str:
    """A receipt signed by this key, whose thumbprint is its `kid`. Raises InvalidRequest for what nobody would take."""
    try:
        claims_of.parse_claims(claims_of.claims_to_json(claims))
        if claims.parent is not None:
            raise ReceiptError("a receipt of an issuer has no parent")
        receipt = jws.sign(
            {"typ": delegation.RECEIPT_TYPE, "kid": thumbprint(key)}, claims_of.claims_to_json(claims), key
        )
        jws.parse(receipt)
    except ReceiptError as flaw:
        raise InvalidRequest(f"No such receipt can be issued: {flaw}.") from None
    return receipt


def verify_chain(receipt: str, issuers: Issuers, audience: str, now: int) -> VerifiedChain:
    """Everything that can be told without a request and without a memory. `now` in microseconds. Raises Flaw."""
    first, *hops = delegation.split_chain(receipt)
    parent = jws.parse(first)
    jws.require_header(parent, delegation.RECEIPT_TYPE, "kid")
    issuer = issuers.find(parent.header["kid"])
    jws.verify(parent, issuer.key)
    granted = claims_of.parse_claims(parent.claims)
    _check_root(granted, issuer.name, audience)
    if not issuer.may_issue_for(granted.tenant):
        raise ReceiptError("the issuer may not name this tenant")
    claims_of.check_validity(granted, now)
    delegated_by: list[str] = []
    for hop in hops:
        delegated_by.append(granted.sub)
        parent, granted = delegation.verify_hop(hop, parent, granted)
        claims_of.check_validity(granted, now)
    return VerifiedChain(granted, issuer.name, tuple(delegated_by))


def _check_root(claims: ReceiptClaims, issuer: str, audience: str) -> None:
    if claims.iss != issuer:
        raise ReceiptError("iss is not the name of the issuer whose key signed it")
    if claims.aud != audience:
        raise ReceiptError("it is for another audience")
    if claims.parent is not None:
        raise ReceiptError("it names a parent, and there is none before it")


def inspect_receipt(receipt: str, issuers: Issuers, audience: str, now: int) -> AuthorityContext:
    """As `Verifier.verify`, but it counts no use and asks for no proof: for operators. Raises AuthorityRefused."""
    try:
        return verify_chain(receipt, issuers, audience, now).context()
    except Exception as error:  # noqa: BLE001 - fails closed
        reason = _reason(error)
    log.debug("a receipt was refused: %s", reason)
    raise AuthorityRefused


def _reason(error: Exception) -> str:
    """For the debug log: never the text of an error that is not ours, which may hold parts of the receipt."""
    if isinstance(error, ReceiptError):
        return str(error)
    return error.message if isinstance(error, AuthorityDenied) else f"it could not be examined ({type(error).__name__})"


class ReceiptVerifier:
    """The boundary: a receipt, and the request that it came with, to what its holder may do."""

    def __init__(self, issuers: Issuers, audience: str, replay: ReplayGuard, clock: Clock) -> None:
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
        examined = verify_chain(receipt, self._issuers, self._audience, now)
        context, claims = examined.context(), examined.claims
        sent = request if request is not None else ProofRequest("", "")
        if claims.jkt is not None:
            proved = proof.verify_proof(sent, receipt, claims.jkt, now)
            await self._replay.record_use("proof", proved.jkt, proved.jti, proved.expires_at_s, now)
        elif sent.proof:
            raise ReceiptError("there is a proof, and the receipt names no key")
        else:
            await self._replay.record_use("receipt", examined.issuer, claims.jti, claims.exp, now, session)
        return context


RETENTION_MARGIN_US = HOUR
"""Beyond its end: another process over the same database may have a clock that is behind."""
PURGE_INTERVAL_US = 60 * SECOND

_REMEMBER = Sql(
    "insert into authority_uses (use_hash, expires_at) values (:use_hash, :expires_at) "
    "on conflict (use_hash) do nothing"
)
_KNOWN = Sql("select 1 from authority_uses where use_hash = :use_hash")
_FORGET = Sql("delete from authority_uses where expires_at <= :before")


class ReplayGuard:
    """Remembers hashes, so that the table tells nothing about receipts."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._purged_at = 0

    async def record_use(
        self, kind: str, owner: str, jti: str, until: int, now: int, session: str | None = None
    ) -> None:
        """Count the one use of an id, durably. `until` in seconds, `now` in microseconds of the verifier's clock.

        The id is its owner's, so that nobody uses up another's. With a `session` the first use opens it, and further
        uses in the same session count as that one. Raises Flaw for any other second use, StoreUnavailable when it
        cannot be told.
        """
        use_hash = _hash(kind, owner, jti)
        opened = None if session is None else _hash(f"{kind} in a session", owner, f"{len(jti)}\n{jti}\n{session}")
        expires_at = (until + CLOCK_LEEWAY_S) * SECOND

        def write(tx: Tx) -> bool:
            if now - self._purged_at >= PURGE_INTERVAL_US:
                tx.run(_FORGET, before=now - RETENTION_MARGIN_US)
                tx.after_commit(lambda: self._mark(now))
            if tx.run(_REMEMBER, use_hash=use_hash, expires_at=expires_at) == 1:
                if opened is not None:
                    tx.run(_REMEMBER, use_hash=opened, expires_at=expires_at)
                return True
            return opened is not None and tx.row(_KNOWN, use_hash=opened) is not None

        if not await self._db.write(write):
            raise ReceiptError("it was presented before")

    def _mark(self, now: int) -> None:
        self._purged_at = now


def _hash(kind: str, owner: str, jti: str) -> str:
    return sha256_base64url(f"{kind}\n{len(owner)}\n{owner}\n{jti}")
