"""What changed is never forgotten, however much of it there is: memory first, the run log above it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.tasknotes.pending_changes import PendingChanges
from tests.requirements import requirement


@dataclass
class Event:
    event_id: str


def saw(changes: PendingChanges, task: int, event: int, tenant: str = "default") -> None:
    changes.record_events(tenant, f"t{task}", [Event(f"{event:04}")])


@requirement("tasks.note-coalesced")
def test_a_task_that_moves_thrice_is_taken_once() -> None:
    changes = PendingChanges("default")
    for event in (1, 2, 3):
        saw(changes, 7, event)
    assert changes.take_batch(10) == ["t7"]
    changes.commit_batch()
    assert changes.is_idle
    assert changes.low_water_mark() == "0003"


def test_a_change_while_the_note_is_written_comes_again() -> None:
    changes = PendingChanges("default")
    saw(changes, 7, 1)
    changes.take_batch(10)
    saw(changes, 7, 2)
    changes.commit_batch()
    assert not changes.is_idle
    assert changes.take_batch(10) == ["t7"]


def test_what_could_not_be_written_comes_first_again() -> None:
    changes = PendingChanges("default")
    for task in (1, 2, 3):
        saw(changes, task, task)
    assert changes.take_batch(2) == ["t1", "t2"]
    assert changes.low_water_mark() == "0001"
    saw(changes, 2, 9)
    changes.restore_batch()
    assert changes.take_batch(10) == ["t1", "t2", "t3"]


def test_tasks_of_other_tenants_do_not_count() -> None:
    changes = PendingChanges("default")
    saw(changes, 1, 1, tenant="other")
    assert changes.is_idle
    assert changes.low_water_mark() == ""


class Mirrored:
    """A mirror without files: what each task's last event is, and which event its note shows."""

    def __init__(self) -> None:
        self.changes = PendingChanges("default", max_tasks=4)
        self.log: list[tuple[str, str]] = []
        self.last: dict[str, str] = {}
        self.shown: dict[str, str] = {}

    def saw(self, task: int) -> None:
        saw(self.changes, task, len(self.log) + 1)
        self.log.append((f"{len(self.log) + 1:04}", f"t{task}"))
        self.last[f"t{task}"] = self.log[-1][0]

    def write(self) -> None:
        self.shown |= {task: self.last[task] for task in self.changes.take_batch(2)}
        self.changes.commit_batch()

    def fail(self) -> None:
        self.changes.take_batch(2)
        self.changes.restore_batch()

    def resume(self) -> None:
        if self.changes.can_resume:
            self.changes.resume()
            self.changes.replay_until = self.log[-1][0]

    def scan(self) -> None:
        after, until = self.changes.replay_after, self.changes.replay_until
        if after is None or until is None:
            return
        rows = [row for row in self.log if after < row[0] <= until][:3]
        self.shown |= {task: self.last[task] for _, task in rows}
        self.changes.finish_page(until, rows[-1][0] if len(rows) == 3 else None)

    def missing(self) -> list[str]:
        """Events that no note shows yet."""
        return [event for event, task in self.log if event > self.shown.get(task, "")]


Step = st.integers(0, 8) | st.sampled_from(["write", "fail", "scan", "resume"])


@requirement("tasks.note-survives-crash")
@given(st.lists(Step, max_size=80))
def test_whatever_the_order_no_change_is_lost_and_the_cursor_never_passes_one(steps: list[int | str]) -> None:
    """A number is a task that moves. Reading begins a while before the cursor, so it may be a missing event itself."""
    mirrored = Mirrored()
    for step in steps:
        mirrored.saw(step) if isinstance(step, int) else getattr(mirrored, step)()
        assert mirrored.changes.low_water_mark() <= min(mirrored.missing(), default="9999")
    for _ in range(200):
        mirrored.write()
        mirrored.resume()
        mirrored.scan()
    assert mirrored.changes.is_idle
    assert mirrored.shown == mirrored.last
