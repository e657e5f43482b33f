"""The verification: one pass over leaves, events and tiles by number, then what the pass does not cover.

Not covered by the pass are events without a number, tiles above level 0, and the parents of events. `findings` turns
mismatches into findings, `checkpoint_claims` checks the checkpoints on the way.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec

from stentor.core.db import Tx
from stentor.core.db.driver import Driver
from stentor.core.db.sql import Row
from stentor.core.db.sqlite.driver import SqliteConnection
from stentor.core.errors import StoreUnavailable
from stentor.core.runlog import EVENT_COLUMNS, leaf_hash
from stentor.domains.provenance import archived_store, merkle
from stentor.domains.provenance.audit import store
from stentor.domains.provenance.audit.checkpoint_claims import CheckpointClaim, ClaimChecker, read_stored_claims
from stentor.domains.provenance.audit.findings import AuditFinding, AuditReport, Mismatch, classify_mismatches
from stentor.domains.provenance.merkle import TILE_WIDTH, StreamingTree
from stentor.domains.provenance.model import LeavesDigest, parse_record
from stentor.domains.provenance.signing.signed_note import NoteVerifier
from stentor.domains.provenance.store import number_of

PAGE_SIZE = 16 * TILE_WIDTH
MAX_MISMATCHES = 100_000
MAX_FINDINGS = 1_000
"""Limit of the findings of one kind from one query."""
ZERO_HASH = bytes(32)
"""Stands for an event that is missing or has a value that no event can have."""

Progress = Callable[[int, int], None]
"""Called with the numbers verified so far and all numbers."""
ARCHIVED = object()
"""Stands for the id of an event whose body is in an archive, in a row of a page."""
_NO_BODY = (None,) * (len(EVENT_COLUMNS) - 1)


class WitnessPolicy(NamedTuple):
    """The configured witnesses, and how many of them must have signed a valid checkpoint."""

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
    """Recompute everything in one read transaction and return the report.

    `external_claims` are checkpoints from outside the database. Raises StoreUnavailable.
    """
    connection = driver.reader(may_idle=True)
    try:
        return verify_snapshot(Tx(connection, connection.begin()), verifiers, external_claims, progress, witness_policy)
    except StoreUnavailable:
        if not isinstance(connection, SqliteConnection):
            raise
        # A row may have text that is not UTF-8 any more. Reading all text as bytes is slower, so it comes second.
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
    witness_policy: WitnessPolicy,
) -> AuditReport:
    """Verify what one transaction sees; `verify_run_log` without opening the database."""
    claims = heapq.merge(
        read_stored_claims(tx, verifiers, witness_policy.witnesses),
        sorted(external_claims, key=lambda claim: claim.size),
        key=lambda claim: claim.size,
    )
    unnumbered = {hash_event(row): row for row in store.list_unnumbered_events(tx, MAX_FINDINGS)}
    checker = ClaimChecker(claims)
    walk = TreeWalk(tx, checker, unnumbered)
    end = store.count_numbers(tx)
    for first in range(0, end, PAGE_SIZE):
        walk.process_page(first, min(end, first + PAGE_SIZE))
        if progress is not None:
            progress(min(end, first + PAGE_SIZE), end)
    checker.check_remaining(end)
    findings = attach_tasks(tx, classify_mismatches(walk.mismatches, checker.verified_size))
    findings += check_unnumbered(tx, unnumbered, walk.mismatches, end)
    findings += walk.findings + walk.archived.check() + check_upper_tiles(tx, walk.actual, walk.recorded)
    waiting, waiting_findings = check_waiting(tx)
    findings += waiting_findings + checker.findings
    return AuditReport(
        events=store.count_events(tx),
        waiting=waiting,
        size=end,
        root=walk.actual.root(walk.tail).hex(),
        covered=checker.verified_size,
        findings=[*findings, *_check_quorum(checker, witness_policy), *check_parents(tx)],
        checkpoints=checker.states,
        checkpoints_checked=checker.checked_count,
        key_known=bool(verifiers),
        witnessed={key.name: checker.witnessed.get(key.text, 0) for key in witness_policy.witnesses},
        archived=walk.archived.count,
    )


def _check_quorum(checker: ClaimChecker, policy: WitnessPolicy) -> list[AuditFinding]:
    if len(checker.witnessed) >= policy.quorum:
        return []
    missing = ", ".join(key.name for key in policy.witnesses if key.text not in checker.witnessed)
    text = f"{len(checker.witnessed)} witnesses signed a valid checkpoint, {policy.quorum} required; missing: {missing}"
    return [AuditFinding("witness", text)]


class TreeWalk:
    """The pass over the numbers. It builds two trees: of the events, and of the hashes that were recorded.

    They are one object until something differs.
    """

    def __init__(self, tx: Tx, checker: ClaimChecker, unnumbered: dict[bytes, Row]) -> None:
        self._tx = tx
        self._unnumbered = unnumbered
        self._checker = checker
        self.archived = ArchivedLeaves(tx)
        self.actual = self.recorded = StreamingTree()
        self.tail: list[bytes] = []
        """Hashes of the events behind the last full tile."""
        self.mismatches: list[Mismatch] = []
        self.findings: list[AuditFinding] = []
        self._check_claims([], [])

    def process_page(self, first: int, end: int) -> None:
        """Verify the numbers from `first`, which begins a tile, to before `end`."""
        rows = self.archived.fill_in(store.read_page(self._tx, first, end), first, end)
        rows_by_tile = {at: list(group) for at, group in groupby(rows, lambda row: int(row[0]) // TILE_WIDTH)}
        for position in range(first // TILE_WIDTH, -(-end // TILE_WIDTH)):
            count = min(end, (position + 1) * TILE_WIDTH) - position * TILE_WIDTH
            self._verify_tile(position, count, rows_by_tile.get(position, []))

    def _verify_tile(self, position: int, count: int, rows: list[Row]) -> None:
        recorded = store.read_tile(self._tx, position)
        hashes = [event_hash for row in rows if (event_hash := _hash_row(row)) is not None]
        is_complete = len(rows) == len(hashes) == count
        # An intact tile is compared as a whole: this path decides how fast the verification is.
        if is_complete and b"".join(hashes) == recorded and "".join([str(row[2]) for row in rows]) == recorded.hex():
            self._append(hashes, hashes)
            return
        before = len(self.mismatches), len(self.findings)
        first = position * TILE_WIDTH
        # Only with damaged tables: each number and each event has one row.
        for row in (row for row, later in pairwise(rows) if row[0] == later[0]):
            text = "it is in the log or in the table of leaves more than once"
            self.findings.append(AuditFinding("inserted", text, row[0], row[1], row[5]))
        self._compare(first, count, {row[0]: row for row in rows}, merkle.split_hashes(recorded))
        # Nothing differs hash by hash, and yet the bytes do: there are too many bytes, or part of a hash is missing.
        if (len(self.mismatches), len(self.findings)) == before and before[0] < MAX_MISMATCHES:
            text = f"tile {position} of the tree is malformed"
            self.findings.append(AuditFinding("hashes", text, first, last=first + count - 1))

    def _compare(self, first: int, count: int, rows: dict[int, Row], recorded: list[bytes]) -> None:
        """Compare number by number. An event whose leaf is missing is found by its hash."""
        actual_hashes, recorded_hashes = list[bytes](), list[bytes]()
        for number in range(first, first + count):
            row = rows.get(number)
            event, leaf = (_hash_row(row), _decode_hex(row[2])) if row else (None, None)
            in_tile = recorded[number - first] if number - first < len(recorded) else None
            if row is None and in_tile in self._unnumbered:
                event_row = self._unnumbered[in_tile]
                found: Row = (number, event_row[0], None, *event_row)
                row, event = found, in_tile
            if (event is None or not event == leaf == in_tile) and len(self.mismatches) < MAX_MISMATCHES:
                event_id, task_id = (row[1], row[5]) if row else (None, None)
                self.mismatches.append(Mismatch(number, event_id, task_id, event, leaf, in_tile))
            actual_hashes.append(event or ZERO_HASH)
            # The best witness of what was recorded: one missing hash should not make every later checkpoint differ.
            recorded_hashes.append(in_tile or leaf or event or ZERO_HASH)
        self._append(actual_hashes, recorded_hashes)

    def _append(self, actual: list[bytes], recorded: list[bytes]) -> None:
        if self.recorded is self.actual and actual != recorded:
            self.recorded = self.actual.copy()
        self._check_claims(actual, recorded)
        if len(actual) < TILE_WIDTH:
            self.tail = actual
            return
        self.actual.append_tile(actual)
        if self.recorded is not self.actual:
            self.recorded.append_tile(recorded)

    def _check_claims(self, actual: list[bytes], recorded: list[bytes]) -> None:
        """Check the checkpoints whose size is reached with these leaves."""
        base = self.actual.size
        while (size := self._checker.next_size) is not None and size <= base + len(actual):
            count = max(0, size - base)
            self._checker.check_next(self.actual.root(actual[:count]), self.recorded.root(recorded[:count]))


def _hash_row(row: Row) -> bytes | None:
    """Return the hash of a leaf's event; None when the event is missing."""
    event = row[3:]
    if event[0] is None:
        return None
    return _decode_hex(row[2]) if event[0] == ARCHIVED else hash_event(event)


def _decode_hex(text: object) -> bytes:
    try:
        return bytes.fromhex(text) if isinstance(text, str) else ZERO_HASH
    except ValueError:
        return ZERO_HASH


def hash_event(event: Row) -> bytes:
    """Return the leaf hash of an event; ZERO_HASH when a value is one that no event can have."""
    if bytes in map(type, event):
        return ZERO_HASH
    try:
        return leaf_hash(event)
    except UnicodeEncodeError:
        return ZERO_HASH


def check_unnumbered(
    tx: Tx, unnumbered: dict[bytes, Row], mismatches: Iterable[Mismatch], end: int
) -> list[AuditFinding]:
    """Find events without a number, and rows of the tree whose number or position is out of range."""
    # Events that the pass found by their hash lost their leaf, and are reported there.
    reported = {mismatch.event for mismatch in mismatches if mismatch.leaf is None}
    text = "it has no number in the tree and is not waiting for one"
    findings = [
        AuditFinding("inserted", text, None, row[0], row[2])
        for event_hash, row in unnumbered.items()
        if event_hash not in reported
    ]
    for number, event_id in store.list_stray_leaves(tx, end):
        findings.append(AuditFinding("hashes", f"its leaf has the number {number}, which is invalid", None, event_id))
    for (position,) in store.list_stray_tiles(tx, end):
        findings.append(AuditFinding("hashes", f"the tree has a tile of leaves at the invalid position {position}"))
    return findings


def attach_tasks(tx: Tx, findings: list[AuditFinding]) -> list[AuditFinding]:
    """Add the task to findings of removed events: a remaining child names its parent and the task."""
    if not any(finding.kind == "removed" for finding in findings):
        return findings
    tasks = {parent: task_id for _, task_id, parent in store.list_orphans(tx, MAX_FINDINGS)}
    return [
        msgspec.structs.replace(finding, task_id=tasks[finding.event_id])
        if finding.kind == "removed" and finding.task_id is None and finding.event_id in tasks
        else finding
        for finding in findings
    ]


def check_upper_tiles(tx: Tx, actual: StreamingTree, recorded: StreamingTree) -> list[AuditFinding]:
    """Compare the stored tiles above level 0 with both trees; a tile that matches either is not a finding."""
    actual_tiles = actual.upper_tiles()
    recorded_tiles = actual_tiles if recorded is actual else recorded.upper_tiles()
    stored_tiles = {(level, position): hashes for level, position, hashes in store.read_upper_tiles(tx)}
    findings: list[AuditFinding] = []
    for key in sorted(actual_tiles.keys() | stored_tiles.keys()):
        if stored_tiles.get(key) in (actual_tiles.get(key), recorded_tiles.get(key)):
            continue
        stored, expected = (merkle.split_hashes(tiles.get(key, b"")) for tiles in (stored_tiles, actual_tiles))
        wrong = [n for n in range(max(len(stored), len(expected))) if stored[n : n + 1] != expected[n : n + 1]]
        if len(findings) < MAX_FINDINGS and wrong:
            findings.append(_upper_tile_finding(*key, wrong[0], wrong[-1]))
        elif not wrong:
            findings.append(AuditFinding("hashes", f"tile {key[1]} of level {key[0]} is malformed"))
    return findings


def _upper_tile_finding(level: int, position: int, first: int, last: int) -> AuditFinding:
    """Report the numbers below the hashes `first` to `last` of a tile."""
    leaves_per_hash = TILE_WIDTH**level
    start = position * TILE_WIDTH * leaves_per_hash
    text = f"level {level} of the tree does not match them: either it was changed, or they and all their hashes were"
    return AuditFinding("hashes", text, start + first * leaves_per_hash, last=start + (last + 1) * leaves_per_hash - 1)


def check_waiting(tx: Tx) -> tuple[int, list[AuditFinding]]:
    """Count the events that wait for a number, and find those that do not match their pending entry."""
    count, after, findings = 0, "", list[AuditFinding]()
    while rows := store.list_waiting(tx, after, MAX_FINDINGS):
        count, after = count + len(rows), rows[-1][0]
        for _, event_id, leaf, *event in rows:
            if event[0] is None:
                text = "the event was removed before it got a number"
                findings.append(AuditFinding("removed", text, None, event_id))
            elif leaf is not None and hash_event(tuple(event)).hex() != leaf:
                text = "the event was changed before it got a number"
                findings.append(AuditFinding("changed", text, None, event_id, event[2]))
    for event_id, number in store.list_numbered_and_waiting(tx, MAX_FINDINGS):
        findings.append(AuditFinding("hashes", "it has a number and is marked as waiting for one", number, event_id))
    return count, findings


def check_parents(tx: Tx) -> list[AuditFinding]:
    """Find events whose parent is missing, and tasks whose first or last event is missing."""
    findings = [
        AuditFinding("chain", f"its parent {parent} is not in the log", number_of(tx, event_id), event_id, task_id)
        for event_id, task_id, parent in store.list_orphans(tx, MAX_FINDINGS)
    ]
    for task_id, first, last in store.list_tasks_with_missing_events(tx, MAX_FINDINGS):
        text = f"the first event of the task, {first}, or its last, {last}, is not in the log"
        findings.append(AuditFinding("chain", text, None, None, task_id))
    return findings


class ArchivedLeaves:
    """The archived leaves that the pass over all numbers has met, by the number of their archive."""

    def __init__(self, tx: Tx) -> None:
        self.count = 0
        self._tx = tx
        self._digests = defaultdict[int, LeavesDigest](LeavesDigest)

    def fill_in(self, rows: list[Row], first: int, end: int) -> list[Row]:
        """Return the rows of a page, with ARCHIVED as the event of those that are in an archive.

        A row is number, event id, hash and the columns of the event, None if there is none.
        """
        archives = archived_store.list_numbers(self._tx, first, end)
        if not archives:
            return rows
        return [self._fill_in(row, archives[row[0]]) if row[0] in archives else row for row in rows]

    def _fill_in(self, row: Row, archive: int) -> Row:
        self._digests[archive].add(row[0], str(row[2]))
        if row[3] is not None:
            return row
        self.count += 1
        return (*row[:3], ARCHIVED, *_NO_BODY)

    def check(self) -> list[AuditFinding]:
        """Compare the leaves of each archive with the event that recorded it."""
        findings = []
        for number, name, metadata in archived_store.iter_archives(self._tx):
            record = None if metadata is None else parse_record(metadata)
            digest = self._digests.pop(number, LeavesDigest())
            if record is None or (record.number, record.archive) != (number, name):
                findings.append(AuditFinding("archive", f"no event of the log records the archive {name}"))
            elif (digest.count, digest.text) != (record.events, record.leaves):
                text = f"{digest.count} events are marked as archived in {name}, not the {record.events} that it took"
                findings.append(AuditFinding("archive", text))
        for number, digest in self._digests.items():
            text = f"{digest.count} events are marked as archived in an archive {number} that does not exist"
            findings.append(AuditFinding("archive", text))
        return findings
