"""The SQL of the invalidations of sources. Rows are never deleted: a restored source keeps who marked it and why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stentor.core import ids
from stentor.core.clock import format_iso
from stentor.core.db import Sql, Tx
from stentor.domains.memory.validity.frontmatter_keys import Mark

_INSERT = Sql(
    """insert into memory_invalidations (invalidation_id, source, reason, invalidated_by, invalidated_at)
    values (:id, :source, :reason, :by, :now)"""
)
_RESTORE = Sql(
    """update memory_invalidations set restored_by = :by, restored_at = :now, restore_reason = :reason
    where source = :source and restored_at is null"""
)
_FIND_ACTIVE = Sql("select 1 from memory_invalidations where source = :source and restored_at is null")
MAX_ACTIVE = 10_000
"""Sources that can be invalid at a time: each index has a copy of all."""
_LIST_ACTIVE = Sql(
    f"""select source, reason, invalidated_by, invalidated_at from memory_invalidations where restored_at is null
    order by source limit {MAX_ACTIVE}"""
)
_COUNT_ACTIVE = Sql("select count(*) from memory_invalidations where restored_at is null")
_COUNT_CHANGES = Sql("select count(*) + count(restored_at) from memory_invalidations")


class SourceInvalidation(msgspec.Struct, frozen=True):
    """An invalid source; the time in microseconds."""

    source: str
    reason: str
    invalidated_by: str
    invalidated_at: int

    @property
    def mark(self) -> Mark:
        return Mark(self.reason, self.invalidated_by, format_iso(self.invalidated_at))


def insert(tx: Tx, source: str, reason: str, by: str) -> None:
    tx.run(_INSERT, id=ids.new_id(), source=source, reason=reason, by=by, now=tx.now)


def restore(tx: Tx, source: str, reason: str | None, by: str) -> bool:
    """End the invalidation of a source; return whether there was one."""
    return bool(tx.run(_RESTORE, source=source, reason=reason, by=by, now=tx.now))


def is_active(tx: Tx, source: str) -> bool:
    return tx.row(_FIND_ACTIVE, source=source) is not None


def has_room(tx: Tx) -> bool:
    """Return whether one more source can be invalid."""
    return int(tx.rows(_COUNT_ACTIVE)[0][0]) < MAX_ACTIVE


def list_active(tx: Tx) -> list[SourceInvalidation]:
    """Return the sources that are invalid now."""
    return [SourceInvalidation(*row) for row in tx.rows(_LIST_ACTIVE)]


def read_state(tx: Tx) -> tuple[Sequence[SourceInvalidation], int]:
    """Return the invalid sources, and a number that every change increases."""
    return list_active(tx), int(tx.rows(_COUNT_CHANGES)[0][0])
