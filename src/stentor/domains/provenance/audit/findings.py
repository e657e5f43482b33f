"""What a verification says: findings with the event's number, id and task, and the state of each checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

FindingKind = Literal["changed", "removed", "inserted", "reordered", "hashes", "checkpoint", "witness", "chain"]
"""`hashes`: the tables of the tree itself; `witness`: too few signed a checkpoint that holds; `chain`: the
parents of events and the ends of tasks.
"""


class AuditFinding(msgspec.Struct, frozen=True, omit_defaults=False):
    """One thing that does not fit. `number` is the place in the tree, from 0; `last` ends a range of numbers."""

    kind: FindingKind
    text: str
    number: int | None = None
    event_id: str | None = None
    task_id: str | None = None
    last: int | None = None


class CheckpointState(msgspec.Struct, frozen=True):
    """Whether a checkpoint holds. `source` is `stored` or the file that it came from."""

    size: int
    source: str
    holds: bool
    signed: bool | None
    """None when no key is known to verify it with."""
    text: str


class AuditReport(msgspec.Struct):
    """All of it. `covered` is how many events a checkpoint that holds covers, `waiting` how many have no number yet."""

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
    """For each witness that was asked for, by its name: the events under the newest checkpoint of it that holds."""

    @property
    def is_intact(self) -> bool:
        return not self.findings


class Mismatch(msgspec.Struct, frozen=True):
    """A number whose event, leaf and recorded hash do not agree. Hashes are None where the row is missing."""

    number: int
    event_id: str | None
    task_id: str | None
    event: bytes | None
    leaf: bytes | None
    recorded: bytes | None


def classify_mismatches(misfits: Iterable[Mismatch], vouched: int) -> list[AuditFinding]:
    """Each misfit by its kind; events that moved together become one finding.

    The first `vouched` events are as a checkpoint says: there it is not they that were changed.
    """
    every = list(misfits)
    found = [_recorded_wrong(one) for one in every if _right(one, vouched)]
    todo = [one for one in every if not _right(one, vouched)]
    places = {one.recorded: one.number for one in todo if one.recorded is not None}
    moved = {one.number: there for one in todo if (there := _home(one, places)) is not None}
    taken = set(moved.values())
    for one in todo:
        if one.number not in moved:
            found += _stands(one, taken=one.number in taken)
        elif one.recorded is not None and one.number not in taken:
            text = "what was recorded under this number is gone, and another event stands in its place"
            found.append(AuditFinding("removed", text, one.number))
    found += _moves([(one, moved[one.number] - one.number) for one in todo if one.number in moved])
    return sorted(found, key=lambda finding: (finding.number or 0, finding.kind))


def _right(one: Mismatch, vouched: int) -> bool:
    return one.event is not None and one.number < vouched


def _recorded_wrong(one: Mismatch) -> AuditFinding:
    text = "the tables of hashes say something else about it than a checkpoint; the event is as it was signed"
    return AuditFinding("hashes", text, one.number, one.event_id, one.task_id)


def _home(one: Mismatch, places: dict[bytes, int]) -> int | None:
    """The other number under which this event was recorded."""
    if one.event is None or one.event == one.recorded:
        return None
    return places.get(one.event)


def _stands(one: Mismatch, *, taken: bool) -> list[AuditFinding]:
    """What is wrong with a number whose event was recorded nowhere else; `taken` says that its own one moved."""
    at = one.number, one.event_id, one.task_id
    if one.event_id is None:
        return [] if taken else [AuditFinding("removed", "the event with this number and its leaf are gone", *at)]
    if one.event is None:
        return [AuditFinding("removed", "the event is gone from the log", *at)]
    if one.recorded is None or taken:
        return [AuditFinding("inserted", "the tree has no hash of it", *at)]
    if one.event == one.recorded:
        what = "gone" if one.leaf is None else "changed"
        return [AuditFinding("hashes", f"its leaf is {what}; the event itself is as it was recorded", *at)]
    if one.event == one.leaf:
        return [AuditFinding("changed", "the event and its leaf are not what the tree recorded", *at)]
    if one.leaf == one.recorded:
        return [AuditFinding("changed", "the event is not what was recorded", *at)]
    return [AuditFinding("changed", "the event, its leaf and the tree each say something else", *at)]


def _moves(moved: list[tuple[Mismatch, int]]) -> list[AuditFinding]:
    """Runs of events that moved by the same distance are one finding."""
    found: list[AuditFinding] = []
    for one, shift in moved:
        text = f"it was recorded {abs(shift)} {'later' if shift > 0 else 'earlier'} in the log"
        if found and (found[-1].last, found[-1].text) == (one.number - 1, text):
            found[-1] = msgspec.structs.replace(found[-1], last=one.number)
        else:
            found.append(AuditFinding("reordered", text, one.number, one.event_id, one.task_id, last=one.number))
    return found
