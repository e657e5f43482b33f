"""How the run log vouches for events whose bodies have left the database. Their leaves stay.

Without it anybody who deletes an event could call it archived. Pure.
"""

from __future__ import annotations

import hashlib

import msgspec

from stentor.core.jsontext import JsonObject


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
    """Return the record in the metadata of an event `tasks_archived`; None if there is none."""
    try:
        return msgspec.json.decode(metadata, type=ArchiveRecord)
    except msgspec.MsgspecError:
        return None


def record_metadata(record: ArchiveRecord) -> JsonObject:
    metadata: JsonObject = msgspec.to_builtins(record)
    return metadata
