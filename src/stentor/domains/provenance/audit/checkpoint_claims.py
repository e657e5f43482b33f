"""Checkpoints held against the tree: as they were stored, and as somebody else kept them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from stentor.core.db import Tx
from stentor.domains.provenance.audit import store
from stentor.domains.provenance.audit.findings import AuditFinding, CheckpointState
from stentor.domains.provenance.signed_note import NoteError, NoteVerifier, cosigned_at, open_note, parse_note

PAGE_SIZE = 1_000
STORED = "stored"
MAX_STATES = 100


class CheckpointClaim(msgspec.Struct, frozen=True):
    """What a checkpoint says. `flaw` is why it cannot be believed, `signed` is None where no key is known."""

    size: int
    root: bytes
    source: str
    flaw: str | None = None
    signed: bool | None = None
    witnesses: tuple[str, ...] = ()
    """Verifier keys of the witnesses that signed it."""


def read_stored_claims(
    tx: Tx, verifiers: list[NoteVerifier], witnesses: Sequence[NoteVerifier] = ()
) -> Iterator[CheckpointClaim]:
    """By size, read as they are needed."""
    after = -1
    while rows := store.list_notes(tx, after, PAGE_SIZE):
        for size, root, note in rows:
            claim = parse_claim(note, verifiers, STORED, witnesses)
            if claim.flaw is None and (claim.size, claim.root.hex()) != (size, root):
                claim = msgspec.structs.replace(claim, size=size, flaw="its row says something else than its note")
            yield msgspec.structs.replace(claim, size=size)
        after = rows[-1][0]


def parse_claim(
    note: str, verifiers: list[NoteVerifier], source: str, witnesses: Sequence[NoteVerifier] = ()
) -> CheckpointClaim:
    """A note as a claim; one that cannot be read has the size 0."""
    try:
        checkpoint = open_note(note, verifiers) if verifiers else parse_note(note)[0]
    except (NoteError, TypeError, AttributeError) as error:
        return CheckpointClaim(0, b"", source, str(error) if isinstance(error, NoteError) else "it is no text", False)
    signed_by = tuple(one.text for one in witnesses if cosigned_at(note, one) is not None)
    return CheckpointClaim(checkpoint.size, checkpoint.root, source, None, True if verifiers else None, signed_by)


class ClaimChecker:
    """Takes claims in the order of their sizes, and the roots of the trees at those sizes."""

    def __init__(self, claims: Iterable[CheckpointClaim]) -> None:
        self._claims = deque[CheckpointClaim]()
        self._rest = iter(claims)
        self.states: list[CheckpointState] = []
        self.findings: list[AuditFinding] = []
        self.checked_count = 0
        self.verified_size = 0
        """The largest size for which the events are as a checkpoint says."""
        self.witnessed: dict[str, int] = {}
        """The same for each witness's checkpoints, by its verifier key."""
        self._broken = False

    @property
    def next_size(self) -> int | None:
        if not self._claims and (claim := next(self._rest, None)) is not None:
            self._claims.append(claim)
        return self._claims[0].size if self._claims else None

    def check_next(self, actual: bytes, recorded: bytes) -> None:
        """The next claim, at whose size the events and the recorded hashes have these roots."""
        claim = self._claims.popleft()
        if claim.flaw is not None:
            self._state(claim, False, claim.flaw)
            self.findings.append(_wrong(claim, claim.flaw))
        elif claim.root == actual:
            self.verified_size = claim.size
            self.witnessed |= dict.fromkeys(claim.witnesses, claim.size)
            self._state(claim, True, "holds")
        else:
            self._fails(claim, claim.root == recorded)

    def _fails(self, claim: CheckpointClaim, recorded_holds: bool) -> None:
        text = "the events are not those that were signed"
        text += ", the recorded hashes still are" if recorded_holds else ", and neither are the recorded hashes"
        self._state(claim, False, text)
        if not recorded_holds and not self._broken:  # else the events are named one by one
            self._broken = True
            where = f"something from number {self.verified_size} to {claim.size - 1} is not what was signed"
            self.findings.append(AuditFinding("checkpoint", where, self.verified_size, last=claim.size - 1))

    def check_remaining(self, size: int) -> None:
        """The claims that are left speak of more events than there are."""
        while self.next_size is not None:
            claim = self._claims.popleft()
            if claim.flaw is not None:
                self._state(claim, False, claim.flaw)
                self.findings.append(_wrong(claim, claim.flaw))
                continue
            self._state(claim, False, f"it covers {claim.size} events, and {size} are there")
            if not self._broken:
                self._broken = True
                text = f"a checkpoint covers {claim.size} events, and {size} are there"
                self.findings.append(AuditFinding("removed", text, size, last=claim.size - 1))

    def _state(self, claim: CheckpointClaim, holds: bool, text: str) -> None:
        """All that fail, up to a number, and the newest of those that hold."""
        self.checked_count += 1
        if holds and self.states and self.states[-1].holds:
            self.states.pop()
        if len(self.states) < MAX_STATES or holds:
            self.states.append(CheckpointState(claim.size, claim.source, holds, claim.signed, text))


def _wrong(claim: CheckpointClaim, flaw: str) -> AuditFinding:
    whose = "the stored checkpoint" if claim.source == STORED else f"a checkpoint of {claim.source}"
    return AuditFinding("checkpoint", f"{whose} of size {claim.size} cannot be believed: {flaw}")
