"""What is answered about a run: its events as a tree, and proofs. Pure."""

from __future__ import annotations

import msgspec

from stentor.core import jsontext
from stentor.core.db.driver import Row
from stentor.core.errors import CorruptRecord
from stentor.core.runlog import RunLogEvent


class RunTrace(msgspec.Struct, frozen=True):
    """A run: what its root led to, oldest first, the root among them; `numbers` are of those that have one."""

    root: str
    events: list[RunLogEvent]
    numbers: dict[str, int]
    truncated: bool


class InclusionProof(msgspec.Struct, frozen=True):
    """That an event has its number (from 0) in the tree of this size and root, of which `checkpoint` is the note."""

    event_id: str
    number: int
    size: int
    canonical: bytes
    leaf_hash: bytes
    hashes: list[bytes]
    root: bytes
    checkpoint: str | None


class ConsistencyProof(msgspec.Struct, frozen=True):
    """That the tree of size `new` begins with that of size `old`."""

    old_size: int
    new_size: int
    old_root: bytes
    new_root: bytes
    hashes: list[bytes]


def parse_event(row: Row) -> RunLogEvent:
    """Raises CorruptRecord."""
    *fields, metadata = row
    try:
        return RunLogEvent(*fields, metadata=jsontext.load(metadata))  # type: ignore[misc]
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"The event {row[0]} of the run log is malformed.") from error
