"""What the routes ask: the tree of a run, proofs, checkpoints."""

from __future__ import annotations

from stentor.core.db import Database, Tx
from stentor.core.db.driver import Row
from stentor.core.errors import Conflict, InvalidRequest, NotFound, ServiceUnavailable
from stentor.core.runlog import encode_event_row, leaf_hash
from stentor.domains.provenance import merkle, store
from stentor.domains.provenance.checkpoints import CheckpointPublisher
from stentor.domains.provenance.model import ConsistencyProof, InclusionProof, RunTrace, parse_event
from stentor.domains.provenance.sequencer import Sequencer
from stentor.domains.provenance.store import StoredCheckpoint, TileReader

MAX_EVENTS = 1_000
MAX_ID = 255
MAX_HOPS = 100
"""Parents followed at most to find a run's root."""


class ProvenanceService:
    def __init__(self, db: Database, sequencer: Sequencer, checkpoints: CheckpointPublisher) -> None:
        self.sequencer = sequencer
        self.checkpoints = checkpoints
        self._db = db

    async def read_run(self, tenant: str, given: str) -> RunTrace:
        """The whole run that a provenance id or task id is of. Raises NotFound, CorruptRecord."""
        return await self._db.read(lambda tx: _run(tx, tenant, _event(tx, tenant, given)))

    async def prove_inclusion(self, tenant: str, given: str, size: int | None) -> InclusionProof:
        """The proof for an event, or for the first event of a task, in the tree of that size.

        Without a size it is that of a checkpoint, if one covers the event. Raises NotFound, Conflict, InvalidRequest.
        """
        return await self._db.read(lambda tx: _inclusion(tx, _event(tx, tenant, given), size))

    async def prove_consistency(self, old: int, new: int) -> ConsistencyProof:
        """Raises InvalidRequest, RunLogDamaged."""
        return await self._db.read(lambda tx: _consistency(tx, old, new))

    async def newest_checkpoint(self) -> StoredCheckpoint:
        """The newest one. Raises NotFound."""
        found = await self._db.read(store.newest_checkpoint)
        if found is None:
            raise NotFound("The run log has no checkpoint yet.")
        return found

    async def publish(self) -> StoredCheckpoint:
        """A checkpoint of all that is recorded now. Raises RunLogDamaged, ServiceUnavailable."""
        await self.sequencer.drain()
        made = await self.checkpoints.publish()
        if self.checkpoints.delivery_problem:
            raise ServiceUnavailable(
                f"It is stored, but {self.checkpoints.delivery_problem}; the log of the service says why."
            )
        return made


def _event(tx: Tx, tenant: str, given: str) -> Row:
    usable = 0 < len(given) <= MAX_ID and "\0" not in given
    row = (store.find_event(tx, tenant, given) or store.first_task_event(tx, tenant, given)) if usable else None
    if row is None:
        raise NotFound("No event and no task has this id.")
    return row


def _run(tx: Tx, tenant: str, row: Row) -> RunTrace:
    """From its root on, event by event; the later events of a task come with its first one."""
    root = _root(tx, tenant, row)
    found: dict[str, Row] = {}
    todo, tasks = [root], set[str]()
    while todo and len(found) <= MAX_EVENTS:
        event = todo.pop()
        found[event[0]] = event
        if event[2] is not None and event[2] not in tasks:
            tasks.add(event[2])
            todo += [r for r in store.task_events(tx, tenant, event[2], MAX_EVENTS + 1) if r[0] not in found]
        todo += [r for r in store.child_events(tx, tenant, event[0], MAX_EVENTS + 1) if r[0] not in found]
    events = [parse_event(found[event_id]) for event_id in sorted(found)[:MAX_EVENTS]]
    numbers = {e.event_id: n for e in events if (n := store.number_of(tx, e.event_id)) is not None}
    return RunTrace(root[0], events, numbers, len(found) > MAX_EVENTS)


def _root(tx: Tx, tenant: str, row: Row) -> Row:
    """By the parents; a parent that is not there ends it, which is for the verification to say."""
    for _ in range(MAX_HOPS):
        parent = store.first_task_event(tx, tenant, row[2]) if row[2] is not None else None
        if parent is None or parent[0] == row[0]:
            parent = store.find_event(tx, tenant, row[4]) if row[4] is not None else None
        if parent is None:
            break
        row = parent
    return row


def _inclusion(tx: Tx, row: Row, size: int | None) -> InclusionProof:
    event_id, whole = row[0], store.tree_size(tx)
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
    tiles = TileReader(tx)
    path, root = merkle.inclusion_proof(tiles, number, size), merkle.subtree_hash(tiles, 0, size)
    note = checkpoint.note if checkpoint else None
    return InclusionProof(event_id, number, size, encode_event_row(row), leaf_hash(row), path, root, note)


def _consistency(tx: Tx, old: int, new: int) -> ConsistencyProof:
    whole = store.tree_size(tx)
    if not 1 <= old <= new <= whole:
        text = f"from and to must be sizes of the tree, from 1 to {whole}, and from not above to."
        raise InvalidRequest(text, {"fields": {"query.from": "out of range", "query.to": "out of range"}})
    tiles = TileReader(tx)
    roots = merkle.subtree_hash(tiles, 0, old), merkle.subtree_hash(tiles, 0, new)
    return ConsistencyProof(old, new, *roots, merkle.consistency_proof(tiles, old, new))
