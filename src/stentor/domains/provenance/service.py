"""What the routes ask: the tree of a run, proofs, checkpoints."""

from __future__ import annotations

from stentor.core.db import Database, Tx
from stentor.core.db.driver import Row
from stentor.core.errors import Conflict, InvalidRequest, NotFound, ServiceUnavailable
from stentor.core.runlog import encode_event_row, leaf_hash
from stentor.domains.provenance import store, tree
from stentor.domains.provenance.checkpoints import Checkpoints
from stentor.domains.provenance.model import Consistency, Inclusion, Run, event_of
from stentor.domains.provenance.sequencer import Sequencer
from stentor.domains.provenance.store import Stored, Tiles

MAX_EVENTS = 1_000
MAX_ID = 255
MAX_HOPS = 100
"""Parents followed at most to find a run's root."""


class Provenance:
    def __init__(self, db: Database, sequencer: Sequencer, checkpoints: Checkpoints) -> None:
        self.sequencer = sequencer
        self.checkpoints = checkpoints
        self._db = db

    async def run(self, tenant: str, given: str) -> Run:
        """The whole run that a provenance id or task id is of. Raises NotFound, CorruptRecord."""
        return await self._db.read(lambda tx: _run(tx, tenant, _event(tx, tenant, given)))

    async def inclusion(self, tenant: str, given: str, size: int | None) -> Inclusion:
        """The proof for an event, or for the first event of a task, in the tree of that size.

        Without a size it is that of a checkpoint, if one covers the event. Raises NotFound, Conflict, InvalidRequest.
        """
        return await self._db.read(lambda tx: _inclusion(tx, _event(tx, tenant, given), size))

    async def consistency(self, old: int, new: int) -> Consistency:
        """Raises InvalidRequest, RunLogDamaged."""
        return await self._db.read(lambda tx: _consistency(tx, old, new))

    async def checkpoint(self) -> Stored:
        """The newest one. Raises NotFound."""
        found = await self._db.read(store.newest_checkpoint)
        if found is None:
            raise NotFound("The run log has no checkpoint yet.")
        return found

    async def publish(self) -> Stored:
        """A checkpoint of all that is recorded now. Raises RunLogDamaged, ServiceUnavailable."""
        await self.sequencer.drain()
        made = await self.checkpoints.publish()
        if self.checkpoints.undelivered:
            raise ServiceUnavailable(
                f"It is stored, but {self.checkpoints.undelivered}; the log of the service says why."
            )
        return made


def _event(tx: Tx, tenant: str, given: str) -> Row:
    usable = 0 < len(given) <= MAX_ID and "\0" not in given
    row = (store.find(tx, tenant, given) or store.first_of_task(tx, tenant, given)) if usable else None
    if row is None:
        raise NotFound("No event and no task has this id.")
    return row


def _run(tx: Tx, tenant: str, row: Row) -> Run:
    """From its root on, event by event; the later events of a task come with its first one."""
    root = _root(tx, tenant, row)
    found: dict[str, Row] = {}
    todo, tasks = [root], set[str]()
    while todo and len(found) <= MAX_EVENTS:
        event = todo.pop()
        found[event[0]] = event
        if event[2] is not None and event[2] not in tasks:
            tasks.add(event[2])
            todo += [r for r in store.of_task(tx, tenant, event[2], MAX_EVENTS + 1) if r[0] not in found]
        todo += [r for r in store.led_to(tx, tenant, event[0], MAX_EVENTS + 1) if r[0] not in found]
    events = [event_of(found[event_id]) for event_id in sorted(found)[:MAX_EVENTS]]
    numbers = {e.event_id: n for e in events if (n := store.number_of(tx, e.event_id)) is not None}
    return Run(root[0], events, numbers, len(found) > MAX_EVENTS)


def _root(tx: Tx, tenant: str, row: Row) -> Row:
    """By the parents; a parent that is not there ends it, which is for the verification to say."""
    for _ in range(MAX_HOPS):
        parent = store.first_of_task(tx, tenant, row[2]) if row[2] is not None else None
        if parent is None or parent[0] == row[0]:
            parent = store.find(tx, tenant, row[4]) if row[4] is not None else None
        if parent is None:
            break
        row = parent
    return row


def _inclusion(tx: Tx, row: Row, size: int | None) -> Inclusion:
    event_id, whole = row[0], store.size_of(tx)
    number = store.number_of(tx, event_id)
    if number is None:
        raise Conflict("The event has no number yet; ask again in a second.", {"event_id": event_id})
    checkpoint = store.covering_checkpoint(tx, number + 1)
    if size is None:
        size = checkpoint.size if checkpoint else whole
    if not number < size <= whole:
        raise InvalidRequest(f"size: must be from {number + 1} to {whole}.", {"fields": {"query.size": "out of range"}})
    if checkpoint is None or checkpoint.size != size:
        exact = store.covering_checkpoint(tx, size)
        checkpoint = exact if exact and exact.size == size else None
    tiles = Tiles(tx)
    path, root = tree.inclusion_path(tiles, number, size), tree.subtree(tiles, 0, size)
    note = checkpoint.note if checkpoint else None
    return Inclusion(event_id, number, size, encode_event_row(row), leaf_hash(row), path, root, note)


def _consistency(tx: Tx, old: int, new: int) -> Consistency:
    whole = store.size_of(tx)
    if not 1 <= old <= new <= whole:
        text = f"from and to must be sizes of the tree, from 1 to {whole}, and from not above to."
        raise InvalidRequest(text, {"fields": {"query.from": "out of range", "query.to": "out of range"}})
    tiles = Tiles(tx)
    roots = tree.subtree(tiles, 0, old), tree.subtree(tiles, 0, new)
    return Consistency(old, new, *roots, tree.consistency_path(tiles, old, new))
