"""Results of the provenance service: the events of a run, and proofs. Pure.

Also how the run log vouches for events whose bodies have left the database, while their leaves stay. Without it anybody
who deletes an event could call it archived.
"""

from __future__ import annotations

import hashlib

import msgspec

from stentor.core import jsontext
from stentor.core.db.sql import Row
from stentor.core.errors import CorruptRecord
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLogEvent


class RunTrace(msgspec.Struct, frozen=True):
    """The root event of a run and everything it led to, oldest first.

    `numbers` maps event ids to leaf indices and leaves out events that are not numbered yet.
    """

    root: str
    events: list[RunLogEvent]
    numbers: dict[str, int]
    truncated: bool


class InclusionProof(msgspec.Struct, frozen=True):
    """Proof that an event is the leaf `number` (from 0) of the tree with this size and root.

    `canonical` are the hashed bytes of the event, None if they are in an archive that cannot be read here; `checkpoint`
    is the signed note of that tree, if there is one.
    """

    event_id: str
    number: int
    size: int
    canonical: bytes | None
    leaf_hash: bytes
    hashes: list[bytes]
    root: bytes
    checkpoint: str | None


class ConsistencyProof(msgspec.Struct, frozen=True):
    """Proof that the first `old_size` leaves of the two trees are the same."""

    old_size: int
    new_size: int
    old_root: bytes
    new_root: bytes
    hashes: list[bytes]


def parse_event(row: Row) -> RunLogEvent:
    """Parse a row with the columns EVENT_COLUMNS. Raises CorruptRecord."""
    *fields, metadata = row
    try:
        return RunLogEvent(*fields, metadata=jsontext.load(metadata))
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"The event {row[0]} of the run log is malformed.") from error


class ArchiveRecord(msgspec.Struct, frozen=True):
    """The metadata of the event `tasks_archived`, by which the run log vouches for an archive.

    `leaves` is the digest of the numbers and hashes of its events, `files` the SHA-256 of each file.
    """

    archive: str
    number: int
    tasks: int
    events: int
    leaves: str
    files: dict[str, str]


class LeavesDigest:
    """A digest of leaves in the order of their numbers: SHA-256 over a line with number and hash for each."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.sha256()

    def add(self, number: int, leaf: str) -> None:
        """Add a leaf, whose hash is in hex."""
        self.count += 1
        self._hash.update(f"{number} {leaf}\n".encode())

    @property
    def text(self) -> str:
        return self._hash.hexdigest()


def parse_record(metadata: str) -> ArchiveRecord | None:
    """Return the record in the metadata of an event `tasks_archived`, or None."""
    try:
        return msgspec.json.decode(metadata, type=ArchiveRecord)
    except msgspec.MsgspecError:
        return None


def record_metadata(record: ArchiveRecord) -> JsonObject:
    metadata: JsonObject = msgspec.to_builtins(record)
    return metadata
