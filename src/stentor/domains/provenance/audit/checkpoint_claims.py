"""Compare checkpoints, stored or external, with the recomputed tree. For the pass over the log see `verification`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from stentor.core.db import Tx
from stentor.domains.provenance.audit import store
from stentor.domains.provenance.audit.findings import AuditFinding, CheckpointState
from stentor.domains.provenance.signing.signed_note import NoteError, NoteVerifier, cosigned_at, open_note, parse_note

PAGE_SIZE = 1_000
STORED = "stored"
MAX_STATES = 100
"""Limit of the checkpoints that are reported one by one."""


class CheckpointClaim(msgspec.Struct, frozen=True):
    """What a checkpoint states. `flaw` is why it is invalid; `signed` is None where no key is known.

    `source` is STORED or the file that the checkpoint came from.
    """

    size: int
    root: bytes
    source: str
    flaw: str | None = None
    signed: bool | None = None
    witnesses: tuple[str, ...] = ()
    """Verifier keys of the witnesses that signed it."""


def read_stored_claims(
    tx: Tx, verifiers: list[NoteVerifier], witnesses: Sequence[NoteVerifier]
) -> Iterator[CheckpointClaim]:
    """Read the checkpoints of the database by size, page by page."""
    after = -1
    while rows := store.list_notes(tx, after, PAGE_SIZE):
        for size, root, note in rows:
            claim = parse_claim(note, verifiers, STORED, witnesses)
            # Proofs find checkpoints by these columns, so they must say the same as the note.
            if claim.flaw is None and (claim.size, claim.root.hex()) != (size, root):
                claim = msgspec.structs.replace(claim, size=size, flaw="its row does not match its note")
            yield msgspec.structs.replace(claim, size=size)
        after = rows[-1][0]


def parse_claim(
    note: str, verifiers: list[NoteVerifier], source: str, witnesses: Sequence[NoteVerifier] = ()
) -> CheckpointClaim:
    """Parse a note and check its signature if keys are known. An invalid note becomes a claim of size 0 with a flaw."""
    try:
        checkpoint = open_note(note, verifiers) if verifiers else parse_note(note)[0]
    except NoteError as error:
        return CheckpointClaim(0, b"", source, str(error), False)
    except (TypeError, AttributeError):  # SQLite columns may hold values of any type
        return CheckpointClaim(0, b"", source, "it is not text", False)
    signed_by = tuple(witness.text for witness in witnesses if cosigned_at(note, witness) is not None)
    return CheckpointClaim(checkpoint.size, checkpoint.root, source, None, True if verifiers else None, signed_by)


class ClaimChecker:
    """Compares claims, ordered by size, with the roots of the recomputed tree at those sizes."""

    def __init__(self, claims: Iterable[CheckpointClaim]) -> None:
        self._unread = iter(claims)
        self._next: CheckpointClaim | None = None
        self.states: list[CheckpointState] = []
        self.findings: list[AuditFinding] = []
        self.checked_count = 0
        self.verified_size = 0
        """The largest size at which a checkpoint matches the events."""
        self.witnessed: dict[str, int] = {}
        """The same for each witness's checkpoints, by its verifier key."""
        self._broken = False

    @property
    def next_size(self) -> int | None:
        """The size of the next claim; None after the last one."""
        if self._next is None:
            self._next = next(self._unread, None)
        return self._next.size if self._next else None

    def check_next(self, actual: bytes, recorded: bytes) -> None:
        """Check the next claim against the roots of the events and of the recorded hashes at its size."""
        claim = self._take_claim()
        if claim.flaw is not None:
            self._add_flaw(claim, claim.flaw)
        elif claim.root == actual:
            self.verified_size = claim.size
            self.witnessed |= dict.fromkeys(claim.witnesses, claim.size)
            self._add_state(claim, True, "valid")
        elif claim.root == recorded:
            # The verification reports these events one by one: they do not match the recorded hashes.
            self._add_state(claim, False, "the events differ from those that were signed, the recorded hashes do not")
        else:
            self._add_state(claim, False, "the events and the recorded hashes differ from those that were signed")
            # Once: every later checkpoint covers the same wrong events, and would repeat the finding.
            if not self._broken:
                self._broken = True
                text = f"something from number {self.verified_size} to {claim.size - 1} is not what was signed"
                self.findings.append(AuditFinding("checkpoint", text, self.verified_size, last=claim.size - 1))

    def check_remaining(self, size: int) -> None:
        """Report the claims that are left: they cover more events than the `size` that exist."""
        while self.next_size is not None:
            claim = self._take_claim()
            if claim.flaw is not None:
                self._add_flaw(claim, claim.flaw)
                continue
            self._add_state(claim, False, f"it covers {claim.size} events, but there are {size}")
            if not self._broken:
                self._broken = True
                text = f"a checkpoint covers {claim.size} events, but there are {size}"
                self.findings.append(AuditFinding("removed", text, size, last=claim.size - 1))

    def _take_claim(self) -> CheckpointClaim:
        claim, self._next = self._next, None
        assert claim is not None  # callers read next_size first
        return claim

    def _add_flaw(self, claim: CheckpointClaim, flaw: str) -> None:
        self._add_state(claim, False, flaw)
        name = "the stored checkpoint" if claim.source == STORED else f"a checkpoint of {claim.source}"
        self.findings.append(AuditFinding("checkpoint", f"{name} of size {claim.size} is invalid: {flaw}"))

    def _add_state(self, claim: CheckpointClaim, holds: bool, text: str) -> None:
        """Record all that fail, up to MAX_STATES, and of consecutive valid ones the newest."""
        self.checked_count += 1
        # A checkpoint vouches for all before it, so of valid ones in a row the last says everything.
        if holds and self.states and self.states[-1].holds:
            self.states.pop()
        if len(self.states) < MAX_STATES or holds:
            self.states.append(CheckpointState(claim.size, claim.source, holds, claim.signed, text))
