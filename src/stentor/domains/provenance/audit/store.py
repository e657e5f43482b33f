"""SQL of the verification. It reads everything once, in the order of the numbers."""

from __future__ import annotations

from stentor.core.db import Sql, Tx
from stentor.core.db.driver import Row
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
_LEAF_COUNT = Sql("select count(*) from provenance_leaves")
_COUNT = Sql("select count(*) from events")
_STRAY_LEAVES = Sql(
    "select number, event_id from provenance_leaves where number is null or number < 0 or number >= :end"
)
_STRAY_TILES = Sql(
    "select position from provenance_tiles where level = 0 and (position is null or position < 0 or position >= :end)"
)
_NOTES = Sql("select size, root, note from provenance_checkpoints where size > :after order by size limit :limit")
_STRANGERS = Sql(
    f"""select {_EVENT} from events e
    where not exists (select 1 from provenance_leaves l where l.event_id = e.event_id)
    and not exists (select 1 from events_waiting w where w.event_id = e.event_id)
    order by e.event_id limit :limit"""
)
_WAITING = Sql(
    f"""select w.event_id, w.leaf, {_EVENT} from events_waiting w
    left join events e on e.event_id = w.event_id where w.event_id > :after order by w.event_id limit :limit"""
)
_TWICE = Sql(
    """select w.event_id, l.number from events_waiting w
    join provenance_leaves l on l.event_id = w.event_id order by l.number limit :limit"""
)
_ORPHANS = Sql(
    """select e.event_id, e.task_id, e.parent_id from events e where e.parent_id is not null
    and not exists (select 1 from events p where p.event_id = e.parent_id and p.tenant = e.tenant)
    order by e.event_id limit :limit"""
)
_ENDS = Sql(
    """select t.task_id, t.provenance_id, t.head_id from tasks t
    where not exists (select 1 from events e where e.event_id = t.provenance_id and e.task_id = t.task_id)
    or not exists (select 1 from events e where e.event_id = t.head_id and e.task_id = t.task_id)
    order by t.task_id limit :limit"""
)
_NUMBER = Sql("select number from provenance_leaves where event_id = :event_id")


def read_page(tx: Tx, first: int, end: int) -> list[Row]:
    """Leaves with their events: number, event id, hash, and the event's columns, all None where it is missing."""
    return tx.rows(_PAGE, first=first, end=end)


def read_tile(tx: Tx, position: int) -> bytes:
    """The recorded hashes of 256 leaves; empty when the tile is missing."""
    row = tx.row(_TILE, level=0, position=position)
    return row[0] if row and isinstance(row[0], bytes) else b""


def read_upper_tiles(tx: Tx) -> list[tuple[int, int, bytes]]:
    return [(level, position, hashes) for level, position, hashes in tx.rows(_TILES) if isinstance(hashes, bytes)]


def count_numbers(tx: Tx) -> int:
    """The end of the numbers, by how many leaves and tiles there are: a number by itself may be any."""
    leaves, tiles = int(tx.rows(_LEAF_COUNT)[0][0]), int(tx.rows(_TILE_COUNT)[0][0])
    recorded = tiles and (tiles - 1) * TILE_WIDTH + len(read_tile(tx, tiles - 1)) // HASH_BYTES
    return max(leaves, recorded)


def count_events(tx: Tx) -> int:
    return int(tx.rows(_COUNT)[0][0])


def list_stray_leaves(tx: Tx, end: int) -> list[Row]:
    """Leaves with a number that cannot be: number, event id."""
    return tx.rows(_STRAY_LEAVES, end=end)


def list_stray_tiles(tx: Tx, end: int) -> list[Row]:
    """Tiles of leaves at a position that cannot be."""
    return tx.rows(_STRAY_TILES, end=-(-end // TILE_WIDTH))


def list_notes(tx: Tx, after: int, limit: int) -> list[Row]:
    """Checkpoints by size: size, root, note."""
    return tx.rows(_NOTES, after=after, limit=limit)


def list_unnumbered_events(tx: Tx, limit: int) -> list[Row]:
    """Events that have no number and wait for none, in the order of COLUMNS."""
    return tx.rows(_STRANGERS, limit=limit)


def list_waiting(tx: Tx, after: str, limit: int) -> list[Row]:
    """Marks with their events: event id, hash in hex or None, and the event's columns."""
    return tx.rows(_WAITING, after=after, limit=limit)


def list_numbered_and_waiting(tx: Tx, limit: int) -> list[Row]:
    """Events that have a number and wait for one: event id, number."""
    return tx.rows(_TWICE, limit=limit)


def list_orphans(tx: Tx, limit: int) -> list[Row]:
    """Events whose parent is not in the log of their tenant: event id, task id, parent."""
    return tx.rows(_ORPHANS, limit=limit)


def list_tasks_with_missing_events(tx: Tx, limit: int) -> list[Row]:
    """Tasks whose first or last event is not in the log: task id, first, last."""
    return tx.rows(_ENDS, limit=limit)


def number_of(tx: Tx, event_id: str) -> int | None:
    row = tx.row(_NUMBER, event_id=event_id)
    return int(row[0]) if row else None
