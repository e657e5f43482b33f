"""What one pass over the numbers cannot see: events without a number, upper tiles, chains of parents."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stentor.core.db import Tx
from stentor.core.db.driver import Row
from stentor.core.runlog import leaf_hash
from stentor.domains.provenance import tree
from stentor.domains.provenance.audit import store
from stentor.domains.provenance.audit.findings import Finding, Misfit
from stentor.domains.provenance.audit.folding import Fold

NOTHING = bytes(32)
"""Stands for an event of which nothing is left, or which no event can be."""
MOST = 1_000
"""Findings of one kind at most: whoever changed more changed everything."""


def hash_of(event: Row) -> bytes:
    """The hash of an event as a leaf; a value that no event can have makes it the hash of nothing."""
    if bytes in map(type, event):
        return NOTHING
    try:
        return leaf_hash(event)
    except UnicodeEncodeError:
        return NOTHING


def strangers(tx: Tx) -> dict[bytes, Row]:
    """Events that have no number and wait for none, by their hashes."""
    return {hash_of(row): row for row in store.strangers(tx, MOST)}


def unnumbered(tx: Tx, strays: dict[bytes, Row], misfits: Iterable[Misfit], end: int) -> list[Finding]:
    """Events and rows of the tree that are outside of all numbers."""
    known = {one.event for one in misfits if one.leaf is None}
    text = "it has no number in the tree and waits for none"
    found = [Finding("inserted", text, None, row[0], row[2]) for key, row in strays.items() if key not in known]
    for number, event_id in store.stray_leaves(tx, end):
        found.append(Finding("hashes", f"its leaf has the number {number}, which cannot be", None, event_id))
    for (position,) in store.stray_tiles(tx, end):
        found.append(Finding("hashes", f"the tree has a tile of leaves at {position}, where none can be"))
    return found


def with_tasks(tx: Tx, judged: list[Finding]) -> list[Finding]:
    """An event that is gone is known to be of the task of what it led to."""
    if not any(finding.kind == "removed" for finding in judged):
        return judged
    tasks = {parent: task_id for _, task_id, parent in store.orphans(tx, MOST)}
    return [_with_task(finding, tasks) for finding in judged]


def _with_task(finding: Finding, tasks: dict[str, str | None]) -> Finding:
    if finding.kind != "removed" or finding.task_id is not None or finding.event_id not in tasks:
        return finding
    return msgspec.structs.replace(finding, task_id=tasks[finding.event_id])


def upper_tiles(tx: Tx, actual: Fold, recorded: Fold) -> list[Finding]:
    """The tiles above those of leaves, against both trees."""
    ours = actual.upper_tiles()
    theirs = ours if recorded is actual else recorded.upper_tiles()
    there = {(level, position): hashes for level, position, hashes in store.upper_tiles(tx)}
    found: list[Finding] = []
    for level, position in sorted(ours.keys() | there.keys()):
        key = level, position
        if there.get(key) in (ours.get(key), theirs.get(key)):
            continue
        row, good = tree.split(there.get(key, b"")), tree.split(ours.get(key, b""))
        wrong = [n for n in range(max(len(row), len(good))) if row[n : n + 1] != good[n : n + 1]]
        if len(found) < MOST and wrong:
            found.append(_above(level, position, wrong[0], wrong[-1]))
        elif wrong == []:
            found.append(Finding("hashes", f"tile {position} of level {level} has a form that no tile has"))
    return found


def _above(level: int, position: int, first: int, last: int) -> Finding:
    span = tree.WIDTH**level
    start = position * tree.WIDTH * span
    text = f"level {level} of the tree says something else about them: it was changed, or they with all their hashes"
    return Finding("hashes", text, start + first * span, last=start + (last + 1) * span - 1)


def waiting(tx: Tx) -> tuple[int, list[Finding]]:
    """How many events wait for a number, and those that are not what their marks say."""
    count, after, found = 0, "", list[Finding]()
    while rows := store.waiting(tx, after, MOST):
        count, after = count + len(rows), rows[-1][0]
        for event_id, leaf, *event in rows:
            if event[0] is None:
                found.append(Finding("removed", "the event is gone before it got a number", None, event_id))
            elif leaf is not None and hash_of(tuple(event)).hex() != leaf:
                text = "the event is not what was recorded, before it got a number"
                found.append(Finding("changed", text, None, event_id, event[2]))
    for event_id, number in store.twice(tx, MOST):
        found.append(Finding("hashes", "it has a number and a mark that it waits for one", number, event_id))
    return count, found


def chains(tx: Tx) -> list[Finding]:
    """Each event's parent is in the log of its tenant, and each task's first and last event."""
    found = [
        Finding("chain", f"its parent {parent} is not in the log", store.number_of(tx, event_id), event_id, task_id)
        for event_id, task_id, parent in store.orphans(tx, MOST)
    ]
    for task_id, first, last in store.loose_ends(tx, MOST):
        text = f"the first event of the task, {first}, or its last, {last}, is not in the log"
        found.append(Finding("chain", text, None, None, task_id))
    return found
