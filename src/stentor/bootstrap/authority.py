"""Wires the authority boundary: trusted issuers, the service's own key, the memory of what was presented."""

from __future__ import annotations

from stentor.auth.authority import issuers, own_key
from stentor.auth.authority.receipts import Verifier
from stentor.auth.authority.replay import Replay
from stentor.core.clock import Clock
from stentor.core.db import Database
from stentor.core.redaction import Redactor
from stentor.core.settings import Settings


def open_verifier(settings: Settings, db: Database, clock: Clock, redactor: Redactor | None = None) -> Verifier:
    """The boundary over a database whose schema is up to date. Makes the service's own key. Raises StartRefused."""
    key = own_key.find_or_make(settings.data_dir)
    if redactor is not None:
        redactor.add(str(key.as_dict(private=True)["d"]))
    table = issuers.load(settings.authority_issuers, key)
    return Verifier(table, settings.authority_audience, Replay(db), clock)
