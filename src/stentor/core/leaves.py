"""What the Merkle tree of the run log is made of: an event's canonical bytes and their hash.

The bytes are RFC 8785 over an object of all columns of the row. `metadata` stands in it as the text that is stored,
so that every byte of the row counts and no number can be outside of what RFC 8785 writes.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from stentor.core.canonical import writer

COLUMNS = (
    "event_id",
    "tenant",
    "task_id",
    "agent_id",
    "parent_id",
    "happened_at",
    "event_type",
    "component",
    "message",
    "duration_ms",
    "metadata",
)
"""The order in which rows are given here."""

canonical = writer(COLUMNS)
"""RFC 8785 of one row of the run log, its values in the order of COLUMNS."""


def leaf_hash(row: tuple[Any, ...]) -> bytes:
    """The hash of the row as a leaf (RFC 6962): 32 bytes."""
    return sha256(b"\0" + canonical(row)).digest()
