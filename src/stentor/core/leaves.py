"""What the Merkle tree of the run log is made of: an event's canonical bytes and their hash.

The bytes are RFC 8785 over an object of all columns of the row. `metadata` stands in it as the text that is stored,
so that every byte of the row counts and no number can be outside of what RFC 8785 writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

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


class _Members(msgspec.Struct):
    """In the order of RFC 8785."""

    agent_id: Any
    component: Any
    duration_ms: Any
    event_id: Any
    event_type: Any
    happened_at: Any
    message: Any
    metadata: Any
    parent_id: Any
    task_id: Any
    tenant: Any


_encode = msgspec.json.Encoder().encode


def canonical(row: Iterable[Any]) -> bytes:
    """RFC 8785 of one row of the run log, its values in the order of COLUMNS."""
    event_id, tenant, task_id, agent_id, parent_id, at, kind, component, message, duration, metadata = row
    return _encode(
        _Members(agent_id, component, duration, event_id, kind, at, message, metadata, parent_id, task_id, tenant)
    )


def leaf_hash(row: Iterable[Any]) -> bytes:
    """The hash of the row as a leaf (RFC 6962): 32 bytes."""
    return sha256(b"\0" + canonical(row)).digest()
