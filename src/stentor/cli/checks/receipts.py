"""Whose receipts the service would take."""

from __future__ import annotations

from collections.abc import Iterator

from stentor.auth.authority.issuers import load_trusted_issuers
from stentor.cli.checks.finding import Finding, Situation
from stentor.core.errors import StartRefused


def issuers(situation: Situation) -> Iterator[Finding]:
    try:
        names = load_trusted_issuers(situation.settings).names
    except StartRefused as error:
        yield Finding("problem", "receipts", error.message)
        return
    if names:
        yield Finding("ok", "receipts", f"Receipts of {', '.join(names)} are taken.")
    else:
        yield Finding("ok", "receipts", "None was issued yet; the first one makes the service's own key.")
