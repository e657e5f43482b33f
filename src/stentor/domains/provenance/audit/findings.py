"""What a verification says: findings with the event's number, id and task, and the state of each checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Kind = Literal["changed", "removed", "inserted", "reordered", "hashes", "checkpoint", "chain"]
"""`hashes`: the tables of the tree itself; `chain`: the parents of events and the ends of tasks."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=False):
    """One thing that does not fit. `number` is the place in the tree, from 0; `last` ends a range of numbers."""

    kind: Kind
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


class Report(msgspec.Struct):
    """All of it. `covered` is how many events a checkpoint that holds covers, `waiting` how many have no number yet."""

    events: int
    waiting: int
    size: int
    root: str
    covered: int
    findings: list[Finding]
    checkpoints: list[CheckpointState]
    checkpoints_checked: int
    key_known: bool

    @property
    def intact(self) -> bool:
        return not self.findings


class Misfit(msgspec.Struct, frozen=True):
    """A number whose event, leaf and recorded hash do not agree. Hashes are None where the row is missing."""

    number: int
    event_id: str | None
    task_id: str | None
    event: bytes | None
    leaf: bytes | None
    recorded: bytes | None


def judge(misfits: Iterable[Misfit]) -> list[Finding]:
    """Each misfit by its kind; events that moved together become one finding."""
    todo = list(misfits)
    places = {one.recorded: one.number for one in todo if one.recorded is not None}
    moved: list[tuple[Misfit, int]] = []
    found: list[Finding] = []
    taken: set[int] = set()
    for one in todo:
        there = places.get(one.event or one.leaf) if one.event != one.recorded else None
        if there is not None and there != one.number:
            moved.append((one, there))
            taken.add(there)
    movers = {one.number for one, _ in moved}
    for one in todo:
        if one.number not in movers:
            found.append(_stands(one))
        if one.recorded is not None and one.number not in taken and one.number in movers:
            found.append(_gone(one))
    return sorted([*found, *_moves(moved)], key=lambda f: (f.number or 0, f.kind))


def _stands(one: Misfit) -> Finding:
    """What is wrong with a number whose event belongs nowhere else."""
    at = one.number, one.event_id, one.task_id
    if one.event_id is None:
        return Finding("removed", "the event with this number and its leaf are gone", *at)
    if one.event is None:
        return Finding("removed", "the event is gone from the log", *at)
    if one.recorded is None:
        return Finding("inserted", "the tree has no hash of it", *at)
    if one.event == one.recorded:
        return Finding("hashes", "its leaf was changed; the event itself is as it was recorded", *at)
    if one.event == one.leaf:
        return Finding("changed", "the event and its leaf are not what the tree recorded", *at)
    if one.leaf == one.recorded:
        return Finding("changed", "the event is not what was recorded", *at)
    return Finding("changed", "the event, its leaf and the tree each say something else", *at)


def _gone(one: Misfit) -> Finding:
    text = "what was recorded under this number is gone, and another event stands in its place"
    return Finding("removed", text, one.number)


def _moves(moved: list[tuple[Misfit, int]]) -> list[Finding]:
    """Runs of events that moved by the same distance are one finding."""
    found: list[Finding] = []
    for one, there in moved:
        previous = found[-1] if found else None
        shift = there - one.number
        if previous and previous.last == one.number - 1 and previous.text == _shifted(shift):
            found[-1] = msgspec.structs.replace(previous, last=one.number)
        else:
            found.append(
                Finding("reordered", _shifted(shift), one.number, one.event_id, one.task_id, last=one.number)
            )
    return found


def _shifted(shift: int) -> str:
    return f"it was recorded {abs(shift)} {'later' if shift > 0 else 'earlier'} in the log"
