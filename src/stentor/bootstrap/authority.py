"""Wires the authority boundary: trusted issuers, the service's own key, the memory of what was presented."""

from __future__ import annotations

from stentor.auth.authority import issuers, keys
from stentor.auth.authority.receipts import ReceiptVerifier, ReplayGuard
from stentor.core.clock import Clock
from stentor.core.db import Database
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings


def open_verifier(settings: Settings, db: Database, clock: Clock, redactor: Redactor | None = None) -> ReceiptVerifier:
    """The boundary over a database whose schema is up to date. Makes the service's own key. Raises StartRefused."""
    key = keys.ensure_signing_key(settings.data_dir)
    if redactor is not None:
        redactor.add_secret(str(key.as_dict(private=True)["d"]))
    table = issuers.load_issuers(settings.authority_issuers, key)
    return ReceiptVerifier(table, settings.authority_audience, ReplayGuard(db), clock)
