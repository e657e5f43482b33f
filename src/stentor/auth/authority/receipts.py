"""Issue and verify receipts (short-lived signed authorization tokens), and reject replays.

A verified receipt becomes an `AuthorityContext`, the only form in which the rest of the service sees it. Used receipts
and proofs are stored as hashes in the database until they have expired. Chains of receipts are in `delegation`, proofs
of possession in `proof`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from joserfc.jwk import OKPKey

from stentor.auth.authority import delegation, jws, proof, use_store
from stentor.auth.authority.claims import (
    CLOCK_LEEWAY_S,
    ReceiptClaims,
    ReceiptError,
    check_validity,
    claims_to_json,
    parse_claims,
)
from stentor.auth.authority.context import AuthorityContext
from stentor.auth.authority.credential_detection import strip_uri_credentials
from stentor.auth.authority.issuers import OWN_ISSUER, Issuers
from stentor.auth.authority.jws import sha256_base64url
from stentor.auth.authority.keys import thumbprint
from stentor.auth.authority.proof import ProofRequest
from stentor.core import ids
from stentor.core.clock import HOUR, SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import AuthorityDenied, AuthorityRefused, InvalidRequest, StoreUnavailable

RETENTION_MARGIN_US = HOUR
"""How long a use is stored beyond its expiry, because the clock of another process may be behind."""
PURGE_INTERVAL_US = 60 * SECOND

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VerifiedChain:
    """A chain with valid signatures and claims. Its use was not recorded and its proof not checked."""

    claims: ReceiptClaims
    issuer: str
    delegated_by: tuple[str, ...]

    def context(self) -> AuthorityContext:
        """Return the context that the rest of the service sees.

        Credentials in names that are URIs are stripped, because logs, events and responses repeat names. Principals
        that differ only in credentials become the same. Fails closed: a name that becomes blank is denied.
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
    """Return claims of the built-in issuer. `names`: aud, sub, tenant; `lifetime` in seconds, `now` in microseconds."""
    issued_at = now // SECOND
    return ReceiptClaims(
        iss=OWN_ISSUER,
        ns=namespaces,
        cap=capabilities,
        iat=issued_at,
        exp=issued_at + lifetime,
        jti=ids.new_id(),
        jkt=jkt,
        **names,
    )


def issue_receipt(claims: ReceiptClaims, key: OKPKey) -> str:
    """Sign a receipt; its `kid` is the key's thumbprint. Raises InvalidRequest if no verifier would accept it."""
    try:
        parse_claims(claims_to_json(claims))
        if claims.parent is not None:
            raise ReceiptError("an issuer's receipt must not have a parent")
        receipt = jws.sign({"typ": delegation.RECEIPT_TYPE, "kid": thumbprint(key)}, claims_to_json(claims), key)
        jws.parse(receipt)
    except ReceiptError as error:
        raise InvalidRequest(f"The receipt cannot be issued: {error}.") from None
    return receipt


def verify_chain(receipt: str, issuers: Issuers, audience: str, now: int) -> VerifiedChain:
    """Verify signatures, claims and validity of a chain, but neither proof nor earlier uses.

    `now` in microseconds. Raises ReceiptError.
    """
    first, *hops = delegation.split_chain(receipt)
    parent = jws.parse(first)
    jws.require_header(parent, delegation.RECEIPT_TYPE, "kid")
    issuer = issuers.find(parent.header["kid"])
    jws.verify(parent, issuer.key)
    granted = parse_claims(parent.claims)
    _check_root(granted, issuer.name, audience)
    if not issuer.may_issue_for(granted.tenant):
        raise ReceiptError("the issuer may not issue for this tenant")
    check_validity(granted, now)
    delegated_by: list[str] = []
    for hop in hops:
        delegated_by.append(granted.sub)
        parent, granted = delegation.verify_hop(hop, parent, granted)
        check_validity(granted, now)
    return VerifiedChain(granted, issuer.name, tuple(delegated_by))


def _check_root(claims: ReceiptClaims, issuer: str, audience: str) -> None:
    if claims.iss != issuer:
        raise ReceiptError("iss is not the issuer whose key signed it")
    if claims.aud != audience:
        raise ReceiptError("it is for another audience")
    if claims.parent is not None:
        raise ReceiptError("it names a parent, but is the first of its chain")


def inspect_receipt(receipt: str, issuers: Issuers, audience: str, now: int) -> AuthorityContext:
    """Verify a receipt for an operator, without recording its use or checking a proof. Raises AuthorityRefused."""
    try:
        return verify_chain(receipt, issuers, audience, now).context()
    except Exception as error:  # noqa: BLE001 - fails closed
        reason = _reason(error)
    log.debug("authority: receipt rejected reason=%s", reason)
    raise AuthorityRefused


def _reason(error: Exception) -> str:
    """Return the reason for the debug log. Messages of other exceptions are left out: they may quote the receipt."""
    if isinstance(error, ReceiptError):
        return str(error)
    return error.message if isinstance(error, AuthorityDenied) else f"verification failed ({type(error).__name__})"


class ReceiptVerifier:
    """Turns the receipt of a request into an authority context, or refuses it."""

    def __init__(self, issuers: Issuers, audience: str, replay: ReplayGuard, clock: Clock) -> None:
        self._issuers = issuers
        self._audience = audience
        self._replay = replay
        self._clock = clock

    async def verify(
        self, receipt: str, request: ProofRequest | None = None, session: str | None = None
    ) -> AuthorityContext:
        """Verify a receipt and record its use.

        A receipt without a key is valid for one call, one with a key for one call per proof. With `session`, which
        identifies the origin of many requests (such as the client's address), a receipt without a key is valid until
        it expires, but only in the session of its first use.

        Raises AuthorityRefused for everything that is wrong, and StoreUnavailable if the use cannot be recorded.
        """
        try:
            return await self._verify(receipt, request, session)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - fails closed
            reason = _reason(error)
        log.debug("authority: receipt rejected reason=%s", reason)
        raise AuthorityRefused

    async def _verify(self, receipt: str, request: ProofRequest | None, session: str | None) -> AuthorityContext:
        now = self._clock.now()
        chain = verify_chain(receipt, self._issuers, self._audience, now)
        context, claims = chain.context(), chain.claims
        # Recording the use comes last: a request that fails verification must not consume the receipt.
        sent = request if request is not None else ProofRequest("", "")
        if claims.jkt is not None:
            verified = proof.verify_proof(sent, receipt, claims.jkt, now)
            await self._replay.record_use("proof", verified.jkt, verified.jti, verified.expires_at_s, now)
        elif sent.proof:
            raise ReceiptError("there is a proof, but the receipt names no key")
        else:
            await self._replay.record_use("receipt", chain.issuer, claims.jti, claims.exp, now, session)
        return context


class ReplayGuard:
    """Records used receipts and proofs in the database, as hashes that reveal nothing about them."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._purged_at = 0

    async def record_use(
        self, kind: str, owner: str, jti: str, until_s: int, now_us: int, session: str | None = None
    ) -> None:
        """Record the single use of an id durably; after `until_s` it may be forgotten.

        Ids are counted per `owner`, so that no issuer or holder can use up another's. With a `session` the first use
        opens it, and further uses in the same session are allowed. Raises ReceiptError for any other second use, and
        StoreUnavailable.
        """
        use_hash = _hash(kind, owner, jti)
        session_hash = (
            None if session is None else _hash(f"{kind} in a session", owner, f"{len(jti)}\n{jti}\n{session}")
        )
        expires_at = (until_s + CLOCK_LEEWAY_S) * SECOND

        def write(tx: Tx) -> bool:
            if now_us - self._purged_at >= PURGE_INTERVAL_US:
                use_store.delete_expired(tx, now_us - RETENTION_MARGIN_US)
                # Only after the commit: a purge that was rolled back must be tried again at the next use.
                tx.after_commit(lambda: self._mark_purged(now_us))
            if use_store.insert_use(tx, use_hash, expires_at):
                if session_hash is not None:
                    use_store.insert_use(tx, session_hash, expires_at)
                return True
            return session_hash is not None and use_store.has_use(tx, session_hash)

        if not await self._db.write(write):
            raise ReceiptError("it was already used")

    def _mark_purged(self, now: int) -> None:
        self._purged_at = now


def _hash(kind: str, owner: str, jti: str) -> str:
    # The length prefix keeps (owner, jti) pairs apart whose concatenations are equal.
    return sha256_base64url(f"{kind}\n{len(owner)}\n{owner}\n{jti}")
