"""The verification itself: one pass over leaves, events and tiles, then what the pass cannot see.

What one pass over the numbers cannot see: events without a number, upper tiles, chains of parents.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from stentor.core.db import Tx
from stentor.core.db.driver import Driver, Row
from stentor.core.db.sqlite import SqliteConnection
from stentor.core.errors import StoreUnavailable
from stentor.core.runlog import leaf_hash
from stentor.domains.provenance import merkle
from stentor.domains.provenance.audit import store
from stentor.domains.provenance.audit.checkpoint_claims import CheckpointClaim, ClaimChecker, read_stored_claims
from stentor.domains.provenance.audit.findings import AuditFinding, AuditReport, Mismatch, classify_mismatches
from stentor.domains.provenance.merkle import TILE_WIDTH, StreamingTree
from stentor.domains.provenance.signed_note import NoteVerifier

PAGE_SIZE = 16 * TILE_WIDTH
MAX_MISMATCHES = 100_000
Progress = Callable[[int, int], None]


class WitnessPolicy(NamedTuple):
    """Which witnesses' signatures are asked for, and how many of them must have signed a checkpoint that holds."""

    witnesses: Sequence[NoteVerifier] = ()
    quorum: int = 0


NO_WITNESSES = WitnessPolicy()


def verify_run_log(
    driver: Driver,
    verifiers: list[NoteVerifier],
    external_claims: Sequence[CheckpointClaim] = (),
    progress: Progress | None = None,
    witness_policy: WitnessPolicy = NO_WITNESSES,
) -> AuditReport:
    """Recompute everything in one view of the database. `outside` are checkpoints that were kept elsewhere.

    Raises StoreUnavailable.
    """
    connection = driver.reader()
    try:
        return verify_snapshot(Tx(connection, connection.begin()), verifiers, external_claims, progress, witness_policy)
    except StoreUnavailable:
        if not isinstance(connection, SqliteConnection):
            raise
        # A row may hold what is no text any more; to read it all takes longer, so it comes second.
        connection.rollback()
        connection.allow_invalid_utf8()
        return verify_snapshot(Tx(connection, connection.begin()), verifiers, external_claims, progress, witness_policy)
    finally:
        connection.close()


def verify_snapshot(
    tx: Tx,
    verifiers: list[NoteVerifier],
    external_claims: Sequence[CheckpointClaim],
    progress: Progress | None,
    witness_policy: WitnessPolicy = NO_WITNESSES,
) -> AuditReport:
    claims = heapq.merge(
        read_stored_claims(tx, verifiers, witness_policy.witnesses), sorted(external_claims, key=_size), key=_size
    )
    strays = find_unnumbered_events(tx)
    walk = TreeWalk(tx, ClaimChecker(claims), strays)
    end = store.count_numbers(tx)
    for first in range(0, end, PAGE_SIZE):
        walk.process_page(first, min(end, first + PAGE_SIZE))
        if progress is not None:
            progress(min(end, first + PAGE_SIZE), end)
    checking = walk.checking
    checking.check_remaining(end)
    found = attach_tasks(tx, classify_mismatches(walk.mismatches, checking.verified_size))
    found += check_unnumbered(tx, strays, walk.mismatches, end)
    found += walk.findings + check_upper_tiles(tx, walk.actual, walk.recorded)
    waiting, late = check_waiting(tx)
    return AuditReport(
        events=store.count_events(tx),
        waiting=waiting,
        size=end,
        root=walk.actual.root(walk.tail).hex(),
        covered=checking.verified_size,
        findings=[*found, *late, *checking.findings, *_unwitnessed(checking, witness_policy), *check_parents(tx)],
        checkpoints=checking.states,
        checkpoints_checked=checking.checked_count,
        key_known=bool(verifiers),
        witnessed={one.name: checking.witnessed.get(one.text, 0) for one in witness_policy.witnesses},
    )


def _unwitnessed(checking: ClaimChecker, witnessing: WitnessPolicy) -> list[AuditFinding]:
    if len(checking.witnessed) >= witnessing.quorum:
        return []
    missing = ", ".join(one.name for one in witnessing.witnesses if one.text not in checking.witnessed)
    text = f"{len(checking.witnessed)} witnesses signed a checkpoint that holds, {witnessing.quorum} must; missing: "
    return [AuditFinding("witness", text + missing)]


def _size(claim: CheckpointClaim) -> int:
    return claim.size


class TreeWalk:
    """Two trees side by side: of the events as they are, and of the hashes that were recorded.

    They are one object until something differs.
    """

    def __init__(self, tx: Tx, checking: ClaimChecker, strays: dict[bytes, Row]) -> None:
        self._tx = tx
        self._strays = strays
        self.checking = checking
        self.actual = self.recorded = StreamingTree()
        self.tail: list[bytes] = []
        self.mismatches: list[Mismatch] = []
        self.findings: list[AuditFinding] = []
        self._meet([], [])

    def process_page(self, first: int, end: int) -> None:
        rows = store.read_page(self._tx, first, end)
        by_tile = {at: list(found) for at, found in groupby(rows, lambda row: int(row[0]) // TILE_WIDTH)}
        for position in range(first // TILE_WIDTH, -(-end // TILE_WIDTH)):
            count = min(end, (position + 1) * TILE_WIDTH) - position * TILE_WIDTH
            self._tile(position, count, by_tile.get(position, []))

    def _tile(self, position: int, count: int, rows: list[Row]) -> None:
        recorded = store.read_tile(self._tx, position)
        hashes = [computed for row in rows if (computed := _hash_row(row)) is not None]
        whole = len(rows) == len(hashes) == count
        if whole and b"".join(hashes) == recorded and "".join([str(row[2]) for row in rows]) == recorded.hex():
            self._take(hashes, hashes)
            return
        before = len(self.mismatches)
        self._compare(position * TILE_WIDTH, count, {row[0]: row for row in rows}, merkle.split_hashes(recorded))
        if len(self.mismatches) == before < MAX_MISMATCHES:
            text = f"tile {position} of the tree has a form that no tile has"
            self.findings.append(
                AuditFinding("hashes", text, position * TILE_WIDTH, last=position * TILE_WIDTH + count - 1)
            )

    def _compare(self, first: int, count: int, rows: dict[int, Row], recorded: list[bytes]) -> None:
        """Number by number. An event whose leaf is gone is known by its hash."""
        ours, theirs = list[bytes](), list[bytes]()
        for number in range(first, first + count):
            row = rows.get(number)
            event, leaf = (_hash_row(row), _decode_hex(row[2])) if row else (None, None)
            written = recorded[number - first] if number - first < len(recorded) else None
            if row is None and written in self._strays:
                stray = self._strays[written]
                row, event = (number, stray[0], None, *stray), written
            if (event is None or not event == leaf == written) and len(self.mismatches) < MAX_MISMATCHES:
                event_id, task_id = (row[1], row[5]) if row else (None, None)
                self.mismatches.append(Mismatch(number, event_id, task_id, event, leaf, written))
            ours.append(event or ZERO_HASH)
            theirs.append(written or leaf or event or ZERO_HASH)
        self._take(ours, theirs)

    def _take(self, actual: list[bytes], recorded: list[bytes]) -> None:
        if self.recorded is self.actual and actual != recorded:
            self.recorded = self.actual.copy()
        self._meet(actual, recorded)
        if len(actual) < TILE_WIDTH:
            self.tail = actual
            return
        self.actual.append_tile(actual)
        if self.recorded is not self.actual:
            self.recorded.append_tile(recorded)

    def _meet(self, actual: list[bytes], recorded: list[bytes]) -> None:
        """The checkpoints that end among these leaves."""
        base = self.actual.size
        while (size := self.checking.next_size) is not None and size <= base + len(actual):
            part = max(0, size - base)
            self.checking.check_next(self.actual.root(actual[:part]), self.recorded.root(recorded[:part]))


def _hash_row(row: Row) -> bytes | None:
    """The hash of a leaf's event; None when it is missing. A value of a type that no event has makes another hash."""
    event = row[3:]
    if event[0] is None:
        return None
    return hash_event(event)


def _decode_hex(text: object) -> bytes | None:
    try:
        return bytes.fromhex(text) if isinstance(text, str) else ZERO_HASH
    except ValueError:
        return ZERO_HASH


ZERO_HASH = bytes(32)
"""Stands for an event of which nothing is left, or which no event can be."""
MAX_FINDINGS = 1_000
"""Findings of one kind at most: whoever changed more changed everything."""


def hash_event(event: Row) -> bytes:
    """The hash of an event as a leaf; a value that no event can have makes it the hash of nothing."""
    if bytes in map(type, event):
        return ZERO_HASH
    try:
        return leaf_hash(event)
    except UnicodeEncodeError:
        return ZERO_HASH


def find_unnumbered_events(tx: Tx) -> dict[bytes, Row]:
    """Events that have no number and wait for none, by their hashes."""
    return {hash_event(row): row for row in store.list_unnumbered_events(tx, MAX_FINDINGS)}


def check_unnumbered(tx: Tx, strays: dict[bytes, Row], misfits: Iterable[Mismatch], end: int) -> list[AuditFinding]:
    """Events and rows of the tree that are outside of all numbers."""
    known = {one.event for one in misfits if one.leaf is None}
    text = "it has no number in the tree and waits for none"
    found = [AuditFinding("inserted", text, None, row[0], row[2]) for key, row in strays.items() if key not in known]
    for number, event_id in store.list_stray_leaves(tx, end):
        found.append(AuditFinding("hashes", f"its leaf has the number {number}, which cannot be", None, event_id))
    for (position,) in store.list_stray_tiles(tx, end):
        found.append(AuditFinding("hashes", f"the tree has a tile of leaves at {position}, where none can be"))
    return found


def attach_tasks(tx: Tx, judged: list[AuditFinding]) -> list[AuditFinding]:
    """An event that is gone is known to be of the task of what it led to."""
    if not any(finding.kind == "removed" for finding in judged):
        return judged
    tasks = {parent: task_id for _, task_id, parent in store.list_orphans(tx, MAX_FINDINGS)}
    return [_attach_task(finding, tasks) for finding in judged]


def _attach_task(finding: AuditFinding, tasks: dict[str, str | None]) -> AuditFinding:
    if finding.kind != "removed" or finding.task_id is not None or finding.event_id not in tasks:
        return finding
    return msgspec.structs.replace(finding, task_id=tasks[finding.event_id])


def check_upper_tiles(tx: Tx, actual: StreamingTree, recorded: StreamingTree) -> list[AuditFinding]:
    """The tiles above those of leaves, against both trees."""
    ours = actual.upper_tiles()
    theirs = ours if recorded is actual else recorded.upper_tiles()
    there = {(level, position): hashes for level, position, hashes in store.read_upper_tiles(tx)}
    found: list[AuditFinding] = []
    for level, position in sorted(ours.keys() | there.keys()):
        key = level, position
        if there.get(key) in (ours.get(key), theirs.get(key)):
            continue
        row, good = merkle.split_hashes(there.get(key, b"")), merkle.split_hashes(ours.get(key, b""))
        wrong = [n for n in range(max(len(row), len(good))) if row[n : n + 1] != good[n : n + 1]]
        if len(found) < MAX_FINDINGS and wrong:
            found.append(_upper_tile_finding(level, position, wrong[0], wrong[-1]))
        elif wrong == []:
            found.append(AuditFinding("hashes", f"tile {position} of level {level} has a form that no tile has"))
    return found


def _upper_tile_finding(level: int, position: int, first: int, last: int) -> AuditFinding:
    span = merkle.TILE_WIDTH**level
    start = position * merkle.TILE_WIDTH * span
    text = f"level {level} of the tree says something else about them: it was changed, or they with all their hashes"
    return AuditFinding("hashes", text, start + first * span, last=start + (last + 1) * span - 1)


def check_waiting(tx: Tx) -> tuple[int, list[AuditFinding]]:
    """How many events wait for a number, and those that are not what their marks say."""
    count, after, found = 0, "", list[AuditFinding]()
    while rows := store.list_waiting(tx, after, MAX_FINDINGS):
        count, after = count + len(rows), rows[-1][0]
        for event_id, leaf, *event in rows:
            if event[0] is None:
                found.append(AuditFinding("removed", "the event is gone before it got a number", None, event_id))
            elif leaf is not None and hash_event(tuple(event)).hex() != leaf:
                text = "the event is not what was recorded, before it got a number"
                found.append(AuditFinding("changed", text, None, event_id, event[2]))
    for event_id, number in store.list_numbered_and_waiting(tx, MAX_FINDINGS):
        found.append(AuditFinding("hashes", "it has a number and a mark that it waits for one", number, event_id))
    return count, found


def check_parents(tx: Tx) -> list[AuditFinding]:
    """Each event's parent is in the log of its tenant, and each task's first and last event."""
    found = [
        AuditFinding(
            "chain", f"its parent {parent} is not in the log", store.number_of(tx, event_id), event_id, task_id
        )
        for event_id, task_id, parent in store.list_orphans(tx, MAX_FINDINGS)
    ]
    for task_id, first, last in store.list_tasks_with_missing_events(tx, MAX_FINDINGS):
        text = f"the first event of the task, {first}, or its last, {last}, is not in the log"
        found.append(AuditFinding("chain", text, None, None, task_id))
    return found
