"""Queries about provenance: the events of a run, inclusion and consistency proofs, checkpoints.

Proofs come from the stored tiles; whether these match the events is the business of `audit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache, partial
from heapq import heappop, heappush

import msgspec

from stentor.core.db import Database, Tx
from stentor.core.db.sql import Row
from stentor.core.errors import Conflict, InvalidRequest, NotFound, ServiceUnavailable
from stentor.core.runlog import RunLogEvent, encode_event_row, leaf_hash
from stentor.domains.provenance import archived_store, merkle, store
from stentor.domains.provenance.archived_store import ArchivedEvent, archived_error
from stentor.domains.provenance.model import (
    ArchiveRecord,
    ConsistencyProof,
    InclusionProof,
    RunTrace,
    parse_event,
    parse_record,
)
from stentor.domains.provenance.sequencer import Sequencer
from stentor.domains.provenance.signing.checkpoints import CheckpointPublisher
from stentor.domains.provenance.store import StoredCheckpoint, TileReader

ArchivedBodyReader = Callable[[ArchiveRecord, str], Row | None]
"""Returns an archived event (columns EVENT_COLUMNS) by the record of its archive and its id, None if it cannot be read.

Reads files: called in a thread."""
CanReadTask = Callable[[Tx, str], bool]
"""Returns whether the caller may read the task with this id, and so what its events say of its content."""
TASK_CONTENT = frozenset({"stderr", "waits_for"})
"""Metadata only for callers who may read the task: a program's error output, a question or the name of a signal."""
MAX_EVENTS = 1_000
MAX_ID = 255
MAX_HOPS = 100
"""Limit of the parents that are followed to find the root of a run."""
LEADER_WAIT_SECONDS = 10.0
"""How long a request to sign waits for the process that numbers events; usually that takes about a second."""


def no_archived_body(archive: ArchiveRecord, event_id: str) -> Row | None:
    """Read no archive: for a service that has none."""
    return None


class ProvenanceService:
    """Reads runs and proofs, and signs checkpoints on request."""

    def __init__(
        self,
        db: Database,
        sequencer: Sequencer,
        checkpoints: CheckpointPublisher,
        read_archived: ArchivedBodyReader = no_archived_body,
    ) -> None:
        self.sequencer = sequencer
        self.checkpoints = checkpoints
        self._db = db
        self._read_archived = read_archived

    async def read_run(self, tenant: str, provenance_id: str, can_read: CanReadTask) -> RunTrace:
        """Return the whole run that a provenance id or task id belongs to. Raises NotFound, CorruptRecord.

        The events of tasks that the caller may not read are without TASK_CONTENT.
        """

        def read(tx: Tx) -> RunTrace:
            run = _read_run(tx, tenant, _find_event(tx, tenant, provenance_id))
            can_read_task = cache(partial(can_read, tx))
            return msgspec.structs.replace(run, events=[_hide_content(event, can_read_task) for event in run.events])

        return await self._db.read(read)

    async def prove_inclusion(
        self, tenant: str, provenance_id: str, size: int | None, can_read: CanReadTask
    ) -> InclusionProof:
        """Prove that an event, or the first event of a task, is in the tree of that size.

        Without a size the tree is that of the first checkpoint that covers the event, or else the whole tree.
        Of an archived event the proof has the body only if the recorded file can be read here, and of one with
        TASK_CONTENT only if the caller may read the task.
        Raises NotFound, TaskArchived for the id of an archived task, Conflict, InvalidRequest, RunLogDamaged.
        """

        def read(tx: Tx) -> tuple[InclusionProof, Row | None, ArchiveRecord | None]:
            archived = _find_archived(tx, tenant, provenance_id)
            if archived is not None:
                leaf = bytes.fromhex(archived.leaf)
                record = None if archived.metadata is None else parse_record(archived.metadata)
                return _prove_leaf(tx, provenance_id, archived.number, leaf, size), None, record
            row = _find_event(tx, tenant, provenance_id)
            return _prove_inclusion(tx, row, size), row, None

        proof, body, archive = await self._db.read(read)
        if archive is not None:
            body = await asyncio.to_thread(self._read_archived, archive, provenance_id)
        # A body that differs from the recorded one proves nothing: it is left out, and `stentor archive verify` reports
        # it.
        if body is None or leaf_hash(body) != proof.leaf_hash:
            return proof
        if _has_content(body) and not await self._db.read(lambda tx: can_read(tx, body[2])):
            return proof
        return msgspec.structs.replace(proof, canonical=encode_event_row(body))

    async def prove_consistency(self, old: int, new: int) -> ConsistencyProof:
        """Prove that the tree of size `new` extends the tree of size `old`. Raises InvalidRequest, RunLogDamaged."""
        return await self._db.read(lambda tx: _prove_consistency(tx, old, new))

    async def newest_checkpoint(self) -> StoredCheckpoint:
        """Return the newest checkpoint. Raises NotFound."""
        checkpoint = await self._db.read(store.newest_checkpoint)
        if checkpoint is None:
            raise NotFound("The run log has no checkpoint yet.")
        return checkpoint

    async def publish(self) -> StoredCheckpoint:
        """Number all recorded events and sign a checkpoint of them. Raises RunLogDamaged, ServiceUnavailable."""
        await self.sequencer.drain(LEADER_WAIT_SECONDS)
        checkpoint = await self.checkpoints.publish()
        if self.checkpoints.delivery_problem:
            raise ServiceUnavailable(
                f"The checkpoint is stored, but {self.checkpoints.delivery_problem}. See the log of the service."
            )
        return checkpoint


def _find_event(tx: Tx, tenant: str, provenance_id: str) -> Row:
    row: Row | None = None
    if _is_storable(provenance_id):
        row = store.find_event(tx, tenant, provenance_id) or store.first_task_event(tx, tenant, provenance_id)
        if row is None and (event := archived_store.find_event(tx, tenant, provenance_id)):
            raise archived_error("The event", provenance_id, event.archive, event.archived_at)
        if row is None and (task := archived_store.find_task(tx, tenant, provenance_id)):
            raise archived_error("The task", provenance_id, task.archive, task.archived_at)
    if row is None:
        raise NotFound("No event and no task has this id.")
    return row


def _find_archived(tx: Tx, tenant: str, provenance_id: str) -> ArchivedEvent | None:
    """Return an event whose body is in an archive only."""
    if not _is_storable(provenance_id) or store.find_event(tx, tenant, provenance_id):
        return None
    return archived_store.find_event(tx, tenant, provenance_id)


def _is_storable(provenance_id: str) -> bool:
    # PostgreSQL rejects a text with NUL.
    return 0 < len(provenance_id) <= MAX_ID and "\0" not in provenance_id


def _read_run(tx: Tx, tenant: str, row: Row) -> RunTrace:
    """Collect the events of a run from its root on; all events of a task come with its first one."""
    root = _find_root(tx, tenant, row)
    rows: dict[str, Row] = {}
    # A heap by event id: what an event led to has later ids, so these are the first events of the run.
    pending, tasks = [root], set[str]()
    # One more than is returned, so that `truncated` is right when exactly MAX_EVENTS were found.
    while pending and len(rows) <= MAX_EVENTS:
        event = heappop(pending)
        event_id, task_id = event[0], event[2]
        if event_id in rows:
            continue
        rows[event_id] = event
        found = store.child_events(tx, tenant, event_id, MAX_EVENTS + 1)
        if task_id is not None and task_id not in tasks:
            tasks.add(task_id)
            found += store.task_events(tx, tenant, task_id, MAX_EVENTS + 1)
        for row in found:
            heappush(pending, row)
    events = [parse_event(rows[event_id]) for event_id in sorted(rows)[:MAX_EVENTS]]
    numbers = {e.event_id: n for e in events if (n := store.number_of(tx, e.event_id)) is not None}
    return RunTrace(root[0], events, numbers, len(rows) > MAX_EVENTS)


def _has_content(row: Row) -> bool:
    # Not parsed: an event whose metadata is damaged has a proof too.
    return row[2] is not None and any(f'"{name}"' in str(row[-1]) for name in TASK_CONTENT)


def _hide_content(event: RunLogEvent, can_read: Callable[[str], bool]) -> RunLogEvent:
    if event.task_id is None or TASK_CONTENT.isdisjoint(event.metadata) or can_read(event.task_id):
        return event
    metadata = {name: value for name, value in event.metadata.items() if name not in TASK_CONTENT}
    # The message of an event that begins a wait quotes what it waits for.
    message = "Waits." if "waits_for" in event.metadata else event.message
    return msgspec.structs.replace(event, metadata=metadata, message=message)


def _find_root(tx: Tx, tenant: str, row: Row) -> Row:
    """Follow the parents to the first event. A missing parent ends the search; the audit reports it."""
    for _ in range(MAX_HOPS):
        parent = store.first_task_event(tx, tenant, row[2]) if row[2] is not None else None
        if parent is None or parent[0] == row[0]:
            parent = store.find_event(tx, tenant, row[4]) if row[4] is not None else None
        if parent is None:
            break
        row = parent
    return row


def _prove_inclusion(tx: Tx, row: Row, size: int | None) -> InclusionProof:
    event_id = row[0]
    number = store.number_of(tx, event_id)
    if number is None:
        raise Conflict("The event has no number yet; retry in a second.", {"event_id": event_id})
    return _prove_leaf(tx, event_id, number, leaf_hash(row), size)


def _prove_leaf(tx: Tx, event_id: str, number: int, leaf: bytes, size: int | None) -> InclusionProof:
    """Return the proof without the bytes of the event."""
    tree_size = store.tree_size(tx)
    checkpoint = store.covering_checkpoint(tx, number + 1)
    if size is None:
        size = checkpoint.size if checkpoint else tree_size
    if not number < size <= tree_size:
        text = f"size: must be from {number + 1} to {tree_size}."
        raise InvalidRequest(text, {"fields": {"query.size": "out of range"}})
    if checkpoint is None or checkpoint.size != size:
        exact = store.covering_checkpoint(tx, size)
        checkpoint = exact if exact and exact.size == size else None
    tiles = TileReader(tx)
    path, root = merkle.inclusion_proof(tiles, number, size), merkle.subtree_hash(tiles, 0, size)
    note = checkpoint.note if checkpoint else None
    return InclusionProof(event_id, number, size, None, leaf, path, root, note)


def _prove_consistency(tx: Tx, old: int, new: int) -> ConsistencyProof:
    tree_size = store.tree_size(tx)
    if not 1 <= old <= new <= tree_size:
        text = f"from and to must be sizes of the tree, from 1 to {tree_size}, and from not above to."
        raise InvalidRequest(text, {"fields": {"query.from": "out of range", "query.to": "out of range"}})
    tiles = TileReader(tx)
    roots = merkle.subtree_hash(tiles, 0, old), merkle.subtree_hash(tiles, 0, new)
    return ConsistencyProof(old, new, *roots, merkle.consistency_proof(tiles, old, new))
