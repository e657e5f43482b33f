"""A check of the newest events and of the last signature, cheap enough for a page. `audit` verifies everything."""

from __future__ import annotations

import msgspec

from stentor.core.db import Tx
from stentor.core.errors import RunLogDamaged
from stentor.domains.provenance import archived_store, store
from stentor.domains.provenance.audit.store import read_page
from stentor.domains.provenance.audit.verification import hash_event
from stentor.domains.provenance.signing.signed_note import NoteError, NoteVerifier, open_note

MAX_CHECKED_EVENTS = 1_000
MAX_PROBLEMS = 5


class LogProblem(msgspec.Struct, frozen=True):
    """`event_id` is the event that is not as recorded; None if the problem is not one event."""

    text: str
    tenant: str | None = None
    event_id: str | None = None


class RecentCheck(msgspec.Struct, frozen=True):
    """How many of the newest events were compared, and what does not fit, MAX_PROBLEMS at most."""

    events: int
    problems: list[LogProblem]


def check_recent(tx: Tx, verifier: NoteVerifier | None) -> RecentCheck:
    """Compare the newest events with their hashes in the tree, and the tree with the newest signed checkpoint.

    The signature is checked only with a verifier.
    """
    end = store.tree_size(tx)
    first = max(0, end - MAX_CHECKED_EVENTS)
    try:
        problems = [*_check_signature(tx, verifier), *_check_events(tx, first, end)]
    except RunLogDamaged as error:
        problems = [LogProblem(error.message)]
    return RecentCheck(end - first, problems[:MAX_PROBLEMS])


def _check_signature(tx: Tx, verifier: NoteVerifier | None) -> list[LogProblem]:
    checkpoint = store.newest_checkpoint(tx)
    if checkpoint is None or verifier is None:
        return []
    try:
        signed = open_note(checkpoint.note, [verifier])
    except NoteError as error:
        return [LogProblem(f"The last signed checkpoint is invalid: {error}.")]
    if signed.size > store.tree_size(tx):
        return [LogProblem(f"{signed.size:,} events were signed, but fewer are in the log: some were removed.")]
    if store.root_at(tx, signed.size) != signed.root:
        return [LogProblem("The hashes of the log are not those that were signed.")]
    return []


def _check_events(tx: Tx, first: int, end: int) -> list[LogProblem]:
    rows = {row[0]: row for row in read_page(tx, first, end)}
    archived = archived_store.list_numbers(tx, first, end)
    leaf = store.TileReader(tx)
    problems = []
    for number in range(first, end):
        row = rows.get(number)
        if row is not None and row[3] is None and number in archived:
            continue  # only its leaf is here; `audit` compares the leaves of an archive with its record
        if row is None or row[3] is None:
            problems.append(LogProblem(f"Event {number:,} was removed."))
        elif hash_event(row[3:]) != leaf(0, number):
            problems.append(LogProblem(f"Event {number:,} was changed.", str(row[4]), str(row[3])))
    return problems
