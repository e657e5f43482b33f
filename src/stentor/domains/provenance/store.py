"""SQL of the Merkle tree: pending entries, leaves, tiles and checkpoints; and queries of the run log.

For the queries of a verification, which trusts no row, see `audit.store`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stentor.core.db import AppendOnlyTable, Sql, Tx
from stentor.core.db.sql import Row
from stentor.core.errors import RunLogDamaged
from stentor.core.runlog import EVENT_COLUMNS, leaf_hash
from stentor.domains.provenance import merkle
from stentor.domains.provenance.merkle import FULL_TILE_BYTES, HASH_BYTES, TILE_HEIGHT, TreeFrontier

VERIFY_HINT = "Run `stentor provenance verify` to see what was changed."
_EVENT = ", ".join(EVENT_COLUMNS)
_LEAVES = AppendOnlyTable("provenance_leaves", ("number", "event_id", "hash"))
_PENDING = "(select event_id, leaf from events_waiting where leaf is not null order by event_id limit :limit) as marks"
_WAITING = {
    # One row with all entries: fetching a row costs more than the entry in it.
    "sqlite": Sql(f"select group_concat(event_id || ' ' || leaf, ' '), count(*) from {_PENDING}"),
    "postgresql": Sql(f"select string_agg(event_id || ' ' || leaf, ' '), count(*) from {_PENDING}"),
}
_UNHASHED = Sql("select event_id from events_waiting where leaf is null order by event_id limit 1")
_BACKLOG = Sql(
    f"""select {", ".join(f"e.{name}" for name in EVENT_COLUMNS)} from events_waiting w
    join events e on e.event_id = w.event_id where w.leaf is null order by w.event_id limit :limit"""
)
_DELETE_WAITING = Sql(
    """delete from events_waiting
    where event_id in (select event_id from provenance_leaves where number >= :first)"""
)
_HAS_WAITING = Sql("select 1 from events_waiting limit 1")
# Those without a hash are numbered first.
_LAST_WAITING = Sql(
    """select coalesce((select max(event_id) from events_waiting where leaf is not null),
    (select max(event_id) from events_waiting))"""
)
_IS_WAITING = Sql("select 1 from events_waiting where event_id = :event_id")
# Each event of an entry after its first one adds two words.
_LAG = Sql(
    """select coalesce(sum(1 + coalesce(length(leaf) - length(replace(leaf, ' ', '')), 0) / 2), 0), min(event_id)
    from events_waiting"""
)
_TIME = Sql("select happened_at from events where event_id = :event_id")
_LAST = Sql("select max(number) from provenance_leaves")
_LEAF_HASH = Sql(
    """select l.hash from provenance_leaves l join events e on e.event_id = l.event_id
    where e.tenant = :tenant and l.event_id = :event_id"""
)
_NUMBER = Sql("select number from provenance_leaves where event_id = :event_id")
_LIST_NUMBERED = Sql(
    """select l.number, e.event_id, e.tenant, e.task_id, e.event_type from provenance_leaves l
    join events e on e.event_id = l.event_id where l.number > :after order by l.number limit :limit"""
)
_EVENT_OF_NUMBER = Sql("select event_id from provenance_leaves where number = :number")
_TILE = Sql("select hashes from provenance_tiles where level = :level and position = :position")
_LAST_TILE = Sql("select position, hashes from provenance_tiles where level = :level order by position desc limit 1")
_PUT_TILE = Sql.insert("provenance_tiles", ("level", "position", "hashes"), key=("level", "position"))
_CHECKPOINT = "select size, root, note, made_at from provenance_checkpoints"
_NEWEST = Sql(f"{_CHECKPOINT} order by size desc limit 1")
_NEWEST_ONES = Sql(f"{_CHECKPOINT} order by size desc limit :limit")
_PUT_NOTE = Sql("update provenance_checkpoints set note = :note where size = :size")
_COVERING = Sql(f"{_CHECKPOINT} where size >= :size order by size limit 1")
_PUT_CHECKPOINT = Sql(
    """insert into provenance_checkpoints (size, root, note, made_at) values (:size, :root, :note, :made_at)
    on conflict (size) do nothing"""
)
_ROOTS_FROM = Sql("select size, root from provenance_checkpoints where size >= :size")
_DELETE_CHECKPOINT = Sql("delete from provenance_checkpoints where size = :size")
_FIND = Sql(f"select {_EVENT} from events where event_id = :event_id and tenant = :tenant")
_OF_TASK = Sql(
    f"select {_EVENT} from events where tenant = :tenant and task_id = :task_id order by event_id limit :limit"
)
_PAGE_OF_SPAN = Sql(
    f"""select {_EVENT} from events where tenant = :tenant and event_id > :after
    and happened_at >= :since and happened_at < :before order by event_id limit :limit"""
)
_PAGE_OF_TASK = Sql(
    f"""select {_EVENT} from events where tenant = :tenant and task_id = :task_id and event_id > :after
    order by event_id limit :limit"""
)
# The other events of a task have parents within it, and are read with the task.
_LED_TO = Sql(
    f"""select {_EVENT} from events where tenant = :tenant and parent_id = :parent_id
    and (task_id is null or event_type = 'prompt_received') order by event_id limit :limit"""
)


class NumberedEvent(msgspec.Struct, frozen=True):
    """An event with its number in the run log."""

    number: int
    event_id: str
    tenant: str
    task_id: str | None
    event_type: str


class NumberingConflict(Exception):
    """Another process numbered events at the same time, or a pending entry is gone: read again and retry."""


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """A stored checkpoint; `root` is in hex, `note` the signed text, the time in microseconds."""

    size: int
    root: str
    note: str
    made_at: int


class NumberingLag(msgspec.Struct, frozen=True):
    """How many events have no number, and the time of the oldest one in microseconds."""

    events: int
    oldest_at: int | None


class TileReader:
    """A `merkle.NodeReader` that computes subtree hashes from the stored tiles, each read once.

    Raises RunLogDamaged for a missing or short tile.
    """

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._tiles: dict[tuple[int, int], bytes] = {}

    def __call__(self, level: int, index: int) -> bytes:
        # The node is above a run of hashes in the tile whose level is the next multiple of 8 below.
        tile_level, height = divmod(level, TILE_HEIGHT)
        first = index << height
        position, start = divmod(first, merkle.TILE_WIDTH)
        hashes = merkle.split_hashes(self._tile(tile_level, position))[start : start + (1 << height)]
        if len(hashes) < 1 << height:
            raise RunLogDamaged(f"Tile {position} of level {tile_level} of the run log's tree is short. {VERIFY_HINT}")
        return merkle.compute_root(hashes)

    def _tile(self, level: int, position: int) -> bytes:
        key = level, position
        if key not in self._tiles:
            row = self._tx.row(_TILE, level=level, position=position)
            if row is None:
                raise RunLogDamaged(f"Tile {position} of level {level} of the run log's tree is missing. {VERIFY_HINT}")
            self._tiles[key] = bytes(row[0])
        return self._tiles[key]


def list_numbered(tx: Tx, after: int, limit: int) -> list[NumberedEvent]:
    """List events of all tenants by their numbers, from the one after `after`. For background jobs only."""
    return [NumberedEvent(*row) for row in tx.rows(_LIST_NUMBERED, after=after, limit=limit)]


def find_event_id(tx: Tx, number: int) -> str | None:
    """Return the id of the event with a number."""
    row = tx.row(_EVENT_OF_NUMBER, number=number)
    return str(row[0]) if row else None


def has_waiting(tx: Tx) -> bool:
    return tx.row(_HAS_WAITING) is not None


def find_last_waiting(tx: Tx) -> str | None:
    """Return the first event of the pending entry that will be the last to be numbered; None without any."""
    row = tx.row(_LAST_WAITING)
    return None if row is None or row[0] is None else str(row[0])


def is_waiting(tx: Tx, event_id: str) -> bool:
    """Return whether there is a pending entry with this first event."""
    return tx.row(_IS_WAITING, event_id=event_id) is not None


def list_waiting(tx: Tx, dialect: str, limit: int) -> tuple[list[tuple[str, bytes]], int]:
    """Return the events of up to `limit` pending entries with their hashes, by id, and the number of entries.

    Those from before the tree existed come first. Raises RunLogDamaged for a malformed pending entry.
    """
    # Entries without a hash are of events from before the tree existed: their hash is computed from the event.
    if tx.row(_UNHASHED) and (rows := tx.rows(_BACKLOG, limit=limit)):
        return [(row[0], leaf_hash(row)) for row in rows], len(rows)
    text, entries = tx.rows(_WAITING[dialect], limit=limit)[0]
    words = text.split(" ") if text else []
    try:
        batch = [(event_id, bytes.fromhex(leaf)) for event_id, leaf in zip(words[::2], words[1::2], strict=True)]
    except ValueError:
        batch = [("", b"")]
    if any(len(leaf) != HASH_BYTES for _, leaf in batch):
        raise RunLogDamaged(f"A row of the table events_waiting is malformed. {VERIFY_HINT}")
    return sorted(batch), int(entries)


def append_leaves(
    tx: Tx, size: int, batch: list[tuple[str, bytes]], entries: int, tiles: Iterable[tuple[int, int, bytes]]
) -> None:
    """Insert a batch of `entries` entries with the numbers from `size` on.

    Raises NumberingConflict, which must roll back.
    """
    if tree_size(tx) != size:
        raise NumberingConflict
    tx.append(_LEAVES, *[(number, event_id, leaf.hex()) for number, (event_id, leaf) in enumerate(batch, size)])
    # After the leaves: their primary key is the fence, and of two leaders the second one fails there.
    tx.many(_PUT_TILE, ({"level": level, "position": at, "hashes": hashes} for level, at, hashes in tiles))
    # Fewer rows: another process numbered some of these events, or an entry was removed. The exception rolls back.
    if tx.run(_DELETE_WAITING, first=size) != entries:
        raise NumberingConflict


def tree_size(tx: Tx) -> int:
    """Return how many events have a number."""
    row = tx.row(_LAST)
    return 0 if row is None or row[0] is None else int(row[0]) + 1


def count_after(tx: Tx, number: int) -> int:
    """Return how many events follow the one with a number, with those that have no number yet."""
    return max(0, tree_size(tx) - number - 1) + numbering_lag(tx).events


def read_frontier(tx: Tx) -> TreeFrontier:
    """Return the frontier of the stored tree. Raises RunLogDamaged when its leaves and tiles are inconsistent."""
    size = tree_size(tx)
    partial_tiles: list[bytes] = []
    level, count = 0, size
    while count:
        row = tx.row(_LAST_TILE, level=level)
        position, hashes = (int(row[0]), bytes(row[1])) if row else (0, b"")
        # On such tiles the next batch would build a tree that fits no checkpoint any more.
        if position * merkle.TILE_WIDTH + len(hashes) // HASH_BYTES != count or len(hashes) % HASH_BYTES:
            raise RunLogDamaged(
                f"The leaves of the run log's tree do not match its tiles of level {level}. {VERIFY_HINT}"
            )
        partial_tiles.append(hashes if len(hashes) < FULL_TILE_BYTES else b"")
        level, count = level + 1, count >> TILE_HEIGHT
    return TreeFrontier(size, tuple(partial_tiles))


def root_at(tx: Tx, size: int) -> bytes:
    """Return the root over the first `size` events according to the stored tiles. Raises RunLogDamaged."""
    return merkle.subtree_hash(TileReader(tx), 0, size)


def numbering_lag(tx: Tx) -> NumberingLag:
    row = tx.row(_LAG)
    count, oldest = (int(row[0]), row[1]) if row else (0, None)
    time = tx.row(_TIME, event_id=oldest) if oldest else None
    return NumberingLag(count, int(time[0]) if time else None)


def newest_checkpoint(tx: Tx) -> StoredCheckpoint | None:
    row = tx.row(_NEWEST)
    return StoredCheckpoint(*row) if row else None


def covering_checkpoint(tx: Tx, size: int) -> StoredCheckpoint | None:
    """Return the smallest checkpoint of at least that size."""
    row = tx.row(_COVERING, size=size)
    return StoredCheckpoint(*row) if row else None


def insert_checkpoint(tx: Tx, checkpoint: StoredCheckpoint) -> bool:
    """Insert the checkpoint; False when there is one of that size already."""
    return tx.run(_PUT_CHECKPOINT, **msgspec.structs.asdict(checkpoint)) == 1


def is_extended(tx: Tx, size: int, root: str) -> bool:
    """Return whether the tree extends the tree of that size and root (hex). Raises RunLogDamaged."""
    return size <= tree_size(tx) and root_at(tx, size).hex() == root


def delete_unfit_checkpoints(tx: Tx, size: int) -> None:
    """Delete the checkpoints of at least that size that the tree does not extend. Raises RunLogDamaged."""
    for stored, root in tx.rows(_ROOTS_FROM, size=size):
        if not is_extended(tx, stored, root):
            tx.run(_DELETE_CHECKPOINT, size=stored)


def list_newest_checkpoints(tx: Tx, limit: int) -> list[StoredCheckpoint]:
    """Return the newest checkpoints, the newest one first."""
    return [StoredCheckpoint(*row) for row in tx.rows(_NEWEST_ONES, limit=limit)]


def update_note(tx: Tx, size: int, note: str) -> None:
    """Replace the note of a stored checkpoint, to add signatures."""
    tx.run(_PUT_NOTE, size=size, note=note)


def number_of(tx: Tx, event_id: str) -> int | None:
    row = tx.row(_NUMBER, event_id=event_id)
    return int(row[0]) if row else None


def find_leaf_hash(tx: Tx, tenant: str, event_id: str) -> str | None:
    """Return the hash, in hex, that an event was numbered with; None before it has a number."""
    row = tx.row(_LEAF_HASH, tenant=tenant, event_id=event_id)
    return None if row is None else str(row[0])


def find_event(tx: Tx, tenant: str, event_id: str) -> Row | None:
    """Return the row of an event with the columns EVENT_COLUMNS."""
    return tx.row(_FIND, tenant=tenant, event_id=event_id)


def first_task_event(tx: Tx, tenant: str, task_id: str) -> Row | None:
    rows = task_events(tx, tenant, task_id, 1)
    return rows[0] if rows else None


def task_events(tx: Tx, tenant: str, task_id: str, limit: int) -> list[Row]:
    """Return the events of a task, oldest first."""
    return tx.rows(_OF_TASK, tenant=tenant, task_id=task_id, limit=limit)


def child_events(tx: Tx, tenant: str, parent_id: str, limit: int) -> list[Row]:
    """Return what an event led to: children without a task, and the first events of tasks.

    Later events of a task are left out: `task_events` returns them.
    """
    return tx.rows(_LED_TO, tenant=tenant, parent_id=parent_id, limit=limit)


def page_of_task(tx: Tx, tenant: str, task_id: str, after: str, limit: int) -> list[Row]:
    """Return the events of a task after an event id, oldest first."""
    return tx.rows(_PAGE_OF_TASK, tenant=tenant, task_id=task_id, after=after, limit=limit)


def page_of_span(tx: Tx, tenant: str, since: int, before: int, after: str, limit: int) -> list[Row]:
    """Return the events of a range of time (microseconds, its end excluded) after an event id, oldest first."""
    return tx.rows(_PAGE_OF_SPAN, tenant=tenant, since=since, before=before, after=after, limit=limit)
