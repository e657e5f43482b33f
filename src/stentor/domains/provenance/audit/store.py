"""SQL of the verification, which reads everything once, by number.

It trusts no row: in SQLite any column may have a value of any type, and numbers may be missing or out of range.
"""

from __future__ import annotations

from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Row
from stentor.core.ids import UUID_LENGTH
from stentor.core.runlog import EVENT_COLUMNS
from stentor.domains.provenance.merkle import HASH_BYTES, TILE_WIDTH

_EVENT = ", ".join(f"e.{name}" for name in EVENT_COLUMNS)
_PAGE = Sql(
    f"""select l.number, l.event_id, l.hash, {_EVENT} from provenance_leaves l
    left join events e on e.event_id = l.event_id
    where l.number >= :first and l.number < :end order by l.number"""
)
_TILE = Sql("select hashes from provenance_tiles where level = :level and position = :position")
_TILES = Sql("select level, position, hashes from provenance_tiles where level > 0 order by level, position")
_TILE_COUNT = Sql("select count(*) from provenance_tiles where level = 0")
_LEAF_COUNT = Sql("select count(distinct number) from provenance_leaves")
_COUNT = Sql("select count(*) from events")
_STRAY_LEAVES = Sql(
    "select number, event_id from provenance_leaves where number is null or number < 0 or number >= :end"
)
_STRAY_TILES = Sql(
    "select position from provenance_tiles where level = 0 and (position is null or position < 0 or position >= :end)"
)
_NOTES = Sql("select size, root, note from provenance_checkpoints where size > :after order by size limit :limit")
_HASH, _ID = 2 * HASH_BYTES, UUID_LENGTH
# The events of pending entries, one row each. By their lengths, so that it ends for any value.
_WAITING_EVENTS = f"""with recursive waiting (entry, event_id, leaf, others) as (
    select event_id, event_id, substr(leaf, 1, {_HASH}), substr(leaf, {_HASH + 2}) from {{entries}}
    union all select entry, substr(others, 1, {_ID}), substr(others, {_ID + 2}, {_HASH}),
        substr(others, {_ID + _HASH + 3}) from waiting where length(others) > 0
)"""
_ALL_WAITING = _WAITING_EVENTS.format(entries="events_waiting")
_SOME_WAITING = _WAITING_EVENTS.format(
    entries="(select * from events_waiting where event_id > :after order by event_id limit :limit) as entries"
)
_UNNUMBERED = Sql(
    f"""{_ALL_WAITING} select {_EVENT} from events e
    where not exists (select 1 from provenance_leaves l where l.event_id = e.event_id)
    and e.event_id not in (select event_id from waiting where event_id is not null)
    order by e.event_id limit :limit"""
)
_WAITING = Sql(
    f"""{_SOME_WAITING} select w.entry, w.event_id, w.leaf, {_EVENT} from waiting w
    left join events e on e.event_id = w.event_id order by w.entry, w.event_id"""
)
_NUMBERED_AND_WAITING = Sql(
    f"""{_ALL_WAITING} select w.event_id, l.number from waiting w
    join provenance_leaves l on l.event_id = w.event_id order by l.number limit :limit"""
)
_ORPHANS = Sql(
    """select e.event_id, e.task_id, e.parent_id from events e where e.parent_id is not null
    and not exists (select 1 from events p where p.event_id = e.parent_id and p.tenant = e.tenant)
    and not exists (select 1 from provenance_leaves l join archived_events a on a.number = l.number
        where l.event_id = e.parent_id)
    order by e.event_id limit :limit"""
)
_INCOMPLETE_TASKS = Sql(
    """select t.task_id, t.provenance_id, t.head_id from tasks t
    where not exists (select 1 from events e where e.event_id = t.provenance_id and e.task_id = t.task_id)
    or not exists (select 1 from events e where e.event_id = t.head_id and e.task_id = t.task_id)
    order by t.task_id limit :limit"""
)


def read_page(tx: Tx, first: int, end: int) -> list[Row]:
    """Return leaves with their events: number, event id, hash, and EVENT_COLUMNS, all None for a missing event."""
    return tx.rows(_PAGE, first=first, end=end)


def read_tile(tx: Tx, position: int) -> bytes:
    """Return the recorded hashes of 256 leaves; empty when the tile is missing."""
    row = tx.row(_TILE, level=0, position=position)
    return row[0] if row and isinstance(row[0], bytes) else b""


def read_upper_tiles(tx: Tx) -> list[tuple[int, int, bytes]]:
    return [(level, position, hashes) for level, position, hashes in tx.rows(_TILES) if isinstance(hashes, bytes)]


def count_numbers(tx: Tx) -> int:
    """Return the end of the numbers by counting leaves and tiles, because the largest number may be forged."""
    leaves, tiles = int(tx.rows(_LEAF_COUNT)[0][0]), int(tx.rows(_TILE_COUNT)[0][0])
    recorded = tiles and (tiles - 1) * TILE_WIDTH + len(read_tile(tx, tiles - 1)) // HASH_BYTES
    return max(leaves, recorded)


def count_events(tx: Tx) -> int:
    return int(tx.rows(_COUNT)[0][0])


def list_stray_leaves(tx: Tx, end: int) -> list[Row]:
    """Return leaves with a number out of range: number, event id."""
    return tx.rows(_STRAY_LEAVES, end=end)


def list_stray_tiles(tx: Tx, end: int) -> list[Row]:
    """Return the positions of level 0 tiles that are out of range."""
    # Rounded up: the last tile may be partly filled.
    return tx.rows(_STRAY_TILES, end=-(-end // TILE_WIDTH))


def list_notes(tx: Tx, after: int, limit: int) -> list[Row]:
    """Return checkpoints by size: size, root, note."""
    return tx.rows(_NOTES, after=after, limit=limit)


def list_unnumbered_events(tx: Tx, limit: int) -> list[Row]:
    """Return events that have neither a number nor a pending entry, with the columns EVENT_COLUMNS."""
    return tx.rows(_UNNUMBERED, limit=limit)


def list_waiting(tx: Tx, after: str, limit: int) -> list[Row]:
    """Return the events of pending entries: key of the entry, event id, hash in hex or None, and EVENT_COLUMNS."""
    return tx.rows(_WAITING, after=after, limit=limit)


def list_numbered_and_waiting(tx: Tx, limit: int) -> list[Row]:
    """Return events that have a number and a pending entry: event id, number."""
    return tx.rows(_NUMBERED_AND_WAITING, limit=limit)


def list_orphans(tx: Tx, limit: int) -> list[Row]:
    """Return events whose parent is not in the log of their tenant: event id, task id, parent."""
    return tx.rows(_ORPHANS, limit=limit)


def list_tasks_with_missing_events(tx: Tx, limit: int) -> list[Row]:
    """Return tasks whose first or last event is not in the log: task id, first, last."""
    return tx.rows(_INCOMPLETE_TASKS, limit=limit)
