"""The verification itself: one pass over leaves, events and tiles, then what the pass cannot see."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from stentor.core.db import Tx
from stentor.core.db.driver import Driver, Row
from stentor.core.db.sqlite import SqliteConnection
from stentor.core.errors import StoreUnavailable
from stentor.domains.provenance import tree
from stentor.domains.provenance.audit import rest, store
from stentor.domains.provenance.audit.findings import Finding, Misfit, Report, judge
from stentor.domains.provenance.audit.folding import Fold
from stentor.domains.provenance.audit.signatures import Checking, Claim, stored
from stentor.domains.provenance.notes import Verifier
from stentor.domains.provenance.tree import WIDTH

PAGE = 16 * WIDTH
MOST_MISFITS = 100_000
Progress = Callable[[int, int], None]


class Witnessing(NamedTuple):
    """Which witnesses' signatures are asked for, and how many of them must have signed a checkpoint that holds."""

    witnesses: Sequence[Verifier] = ()
    quorum: int = 0


NOBODY = Witnessing()


def verify(
    driver: Driver,
    verifiers: list[Verifier],
    outside: Sequence[Claim] = (),
    progress: Progress | None = None,
    witnessing: Witnessing = NOBODY,
) -> Report:
    """Recompute everything in one view of the database. `outside` are checkpoints that were kept elsewhere.

    Raises StoreUnavailable.
    """
    connection = driver.reader()
    try:
        return audit(Tx(connection, connection.begin()), verifiers, outside, progress, witnessing)
    except StoreUnavailable:
        if not isinstance(connection, SqliteConnection):
            raise
        # A row may hold what is no text any more; to read it all takes longer, so it comes second.
        connection.rollback()
        connection.allow_invalid_utf8()
        return audit(Tx(connection, connection.begin()), verifiers, outside, progress, witnessing)
    finally:
        connection.close()


def audit(
    tx: Tx,
    verifiers: list[Verifier],
    outside: Sequence[Claim],
    progress: Progress | None,
    witnessing: Witnessing = NOBODY,
) -> Report:
    claims = heapq.merge(stored(tx, verifiers, witnessing.witnesses), sorted(outside, key=_size), key=_size)
    strays = rest.strangers(tx)
    walk = Walk(tx, Checking(claims), strays)
    end = store.extent(tx)
    for first in range(0, end, PAGE):
        walk.page(first, min(end, first + PAGE))
        if progress is not None:
            progress(min(end, first + PAGE), end)
    checking = walk.checking
    checking.beyond(end)
    found = rest.with_tasks(tx, judge(walk.misfits, checking.vouched))
    found += rest.unnumbered(tx, strays, walk.misfits, end)
    found += walk.findings + rest.upper_tiles(tx, walk.actual, walk.recorded)
    waiting, late = rest.waiting(tx)
    return Report(
        events=store.count(tx),
        waiting=waiting,
        size=end,
        root=walk.actual.root(walk.tail).hex(),
        covered=checking.vouched,
        findings=[*found, *late, *checking.findings, *_unwitnessed(checking, witnessing), *rest.chains(tx)],
        checkpoints=checking.states,
        checkpoints_checked=checking.checked,
        key_known=bool(verifiers),
        witnessed={one.name: checking.witnessed.get(one.text, 0) for one in witnessing.witnesses},
    )


def _unwitnessed(checking: Checking, witnessing: Witnessing) -> list[Finding]:
    if len(checking.witnessed) >= witnessing.quorum:
        return []
    missing = ", ".join(one.name for one in witnessing.witnesses if one.text not in checking.witnessed)
    text = f"{len(checking.witnessed)} witnesses signed a checkpoint that holds, {witnessing.quorum} must; missing: "
    return [Finding("witness", text + missing)]


def _size(claim: Claim) -> int:
    return claim.size


class Walk:
    """Two trees side by side: of the events as they are, and of the hashes that were recorded.

    They are one object until something differs.
    """

    def __init__(self, tx: Tx, checking: Checking, strays: dict[bytes, Row]) -> None:
        self._tx = tx
        self._strays = strays
        self.checking = checking
        self.actual = self.recorded = Fold()
        self.tail: list[bytes] = []
        self.misfits: list[Misfit] = []
        self.findings: list[Finding] = []
        self._meet([], [])

    def page(self, first: int, end: int) -> None:
        rows = store.page(self._tx, first, end)
        by_tile = {at: list(found) for at, found in groupby(rows, lambda row: int(row[0]) // WIDTH)}
        for position in range(first // WIDTH, -(-end // WIDTH)):
            count = min(end, (position + 1) * WIDTH) - position * WIDTH
            self._tile(position, count, by_tile.get(position, []))

    def _tile(self, position: int, count: int, rows: list[Row]) -> None:
        recorded = store.tile(self._tx, position)
        hashes = [computed for row in rows if (computed := _hash(row)) is not None]
        whole = len(rows) == len(hashes) == count
        if whole and b"".join(hashes) == recorded and "".join([str(row[2]) for row in rows]) == recorded.hex():
            self._take(hashes, hashes)
            return
        before = len(self.misfits)
        self._compare(position * WIDTH, count, {row[0]: row for row in rows}, tree.split(recorded))
        if len(self.misfits) == before < MOST_MISFITS:
            text = f"tile {position} of the tree has a form that no tile has"
            self.findings.append(Finding("hashes", text, position * WIDTH, last=position * WIDTH + count - 1))

    def _compare(self, first: int, count: int, rows: dict[int, Row], recorded: list[bytes]) -> None:
        """Number by number. An event whose leaf is gone is known by its hash."""
        ours, theirs = list[bytes](), list[bytes]()
        for number in range(first, first + count):
            row = rows.get(number)
            event, leaf = (_hash(row), _unhex(row[2])) if row else (None, None)
            written = recorded[number - first] if number - first < len(recorded) else None
            if row is None and written in self._strays:
                stray = self._strays[written]
                row, event = (number, stray[0], None, *stray), written
            if (event is None or not event == leaf == written) and len(self.misfits) < MOST_MISFITS:
                event_id, task_id = (row[1], row[5]) if row else (None, None)
                self.misfits.append(Misfit(number, event_id, task_id, event, leaf, written))
            ours.append(event or rest.NOTHING)
            theirs.append(written or leaf or event or rest.NOTHING)
        self._take(ours, theirs)

    def _take(self, actual: list[bytes], recorded: list[bytes]) -> None:
        if self.recorded is self.actual and actual != recorded:
            self.recorded = self.actual.copy()
        self._meet(actual, recorded)
        if len(actual) < WIDTH:
            self.tail = actual
            return
        self.actual.add(actual)
        if self.recorded is not self.actual:
            self.recorded.add(recorded)

    def _meet(self, actual: list[bytes], recorded: list[bytes]) -> None:
        """The checkpoints that end among these leaves."""
        base = self.actual.size
        while (size := self.checking.next_size) is not None and size <= base + len(actual):
            part = max(0, size - base)
            self.checking.meet(self.actual.root(actual[:part]), self.recorded.root(recorded[:part]))


def _hash(row: Row) -> bytes | None:
    """The hash of a leaf's event; None when it is missing. A value of a type that no event has makes another hash."""
    event = row[3:]
    if event[0] is None:
        return None
    return rest.hash_of(event)


def _unhex(text: object) -> bytes | None:
    try:
        return bytes.fromhex(text) if isinstance(text, str) else rest.NOTHING
    except ValueError:
        return rest.NOTHING
