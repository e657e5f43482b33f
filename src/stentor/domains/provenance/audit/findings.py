"""The report of a verification: findings with the event's number, id and task, and the state of checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

FindingKind = Literal[
    "changed", "removed", "inserted", "reordered", "hashes", "checkpoint", "witness", "chain", "archive"
]
"""`hashes`: the tables of the tree are wrong, not the events; `witness`: too few witnesses signed a valid checkpoint;
`chain`: the parent of an event, or the first or last event of a task, is missing; `archive`: an archive is not the one
that was recorded.
"""


class AuditFinding(msgspec.Struct, frozen=True, omit_defaults=False):
    """One mismatch. `number` is the leaf index, from 0; with `last` it begins a range of them."""

    kind: FindingKind
    text: str
    number: int | None = None
    event_id: str | None = None
    task_id: str | None = None
    last: int | None = None


class CheckpointState(msgspec.Struct, frozen=True):
    """Whether a checkpoint is valid. `source` is `stored` or the file that it came from."""

    size: int
    source: str
    holds: bool
    signed: bool | None
    """None when no key is known to verify it with."""
    text: str


class AuditReport(msgspec.Struct):
    """The whole report. `covered` counts events that a valid checkpoint covers, `waiting` events without a number."""

    events: int
    waiting: int
    size: int
    root: str
    covered: int
    findings: list[AuditFinding]
    checkpoints: list[CheckpointState]
    checkpoints_checked: int
    key_known: bool
    witnessed: dict[str, int] = {}
    """For each configured witness, by name: how many events the newest valid checkpoint with its signature covers."""
    archived: int = 0
    """Events of which only the hash is in the database."""
    archives_read: int = 0
    """Archives whose files were compared with the hashes."""

    @property
    def is_intact(self) -> bool:
        return not self.findings


class Mismatch(msgspec.Struct, frozen=True):
    """A number whose event, leaf and recorded hash (in the tile) differ. Hashes are None where the row is missing."""

    number: int
    event_id: str | None
    task_id: str | None
    event: bytes | None
    leaf: bytes | None
    recorded: bytes | None


def classify_mismatches(mismatches: Iterable[Mismatch], verified_size: int) -> list[AuditFinding]:
    """Turn mismatches into findings; consecutive events that moved together become one finding.

    The first `verified_size` events match a checkpoint, so a mismatch there is in the tables of hashes.
    """
    findings: list[AuditFinding] = []
    suspects: list[Mismatch] = []
    for mismatch in mismatches:
        if mismatch.event is not None and mismatch.number < verified_size:
            text = "the recorded hashes differ from a checkpoint; the event matches it"
            findings.append(AuditFinding("hashes", text, mismatch.number, mismatch.event_id, mismatch.task_id))
        else:
            suspects.append(mismatch)
    # An event whose hash was recorded under another number moved from there.
    recorded_at = {item.recorded: item.number for item in suspects if item.recorded is not None}
    moved = {
        item.number: recorded_at[item.event]
        for item in suspects
        if item.event is not None and item.event != item.recorded and item.event in recorded_at
    }
    vacated = set(moved.values())
    for item in suspects:
        if item.number not in moved:
            findings += _classify_unmoved(item, vacated=item.number in vacated)
        elif item.recorded is not None and item.number not in vacated:
            text = "the event that was recorded under this number is missing, and another event has its place"
            findings.append(AuditFinding("removed", text, item.number))
    findings += _group_moves([(item, moved[item.number] - item.number) for item in suspects if item.number in moved])
    return sorted(findings, key=lambda finding: (finding.number or 0, finding.kind))


def _classify_unmoved(mismatch: Mismatch, *, vacated: bool) -> list[AuditFinding]:
    """Classify an event that was recorded under no other number; `vacated`: the recorded event moved elsewhere."""
    event, leaf, recorded = mismatch.event, mismatch.leaf, mismatch.recorded
    at = mismatch.number, mismatch.event_id, mismatch.task_id
    if mismatch.event_id is None:
        # The event that moved away is reported where it is now.
        return [] if vacated else [AuditFinding("removed", "the event with this number and its leaf are missing", *at)]
    if event is None:
        return [AuditFinding("removed", "the event is missing in the log", *at)]
    if recorded is None or vacated:
        return [AuditFinding("inserted", "the tree has no hash of it", *at)]
    if event == recorded:
        problem = "missing" if leaf is None else "changed"
        return [AuditFinding("hashes", f"its leaf is {problem}; the event itself is as it was recorded", *at)]
    if event == leaf:
        return [AuditFinding("changed", "the event and its leaf are not what the tree recorded", *at)]
    if leaf == recorded:
        return [AuditFinding("changed", "the event is not what was recorded", *at)]
    return [AuditFinding("changed", "the event, its leaf and the tree all differ", *at)]


def _group_moves(moves: list[tuple[Mismatch, int]]) -> list[AuditFinding]:
    """Report consecutive events that moved by the same distance as one finding."""
    findings: list[AuditFinding] = []
    for mismatch, shift in moves:
        text = f"it was recorded {abs(shift)} {'later' if shift > 0 else 'earlier'} in the log"
        if findings and (findings[-1].last, findings[-1].text) == (mismatch.number - 1, text):
            findings[-1] = msgspec.structs.replace(findings[-1], last=mismatch.number)
        else:
            at = mismatch.number, mismatch.event_id, mismatch.task_id
            findings.append(AuditFinding("reordered", text, *at, last=mismatch.number))
    return findings
