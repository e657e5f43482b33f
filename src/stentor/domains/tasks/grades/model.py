"""A grade, as a value."""

from __future__ import annotations

import msgspec


class Grade(msgspec.Struct, frozen=True):
    """`grade` in [0,1]; the time in microseconds. `learned`: it took the place of what had been learned."""

    task_id: str
    epoch: int
    agent_id: str
    grade: float
    comment: str | None
    graded_by: str
    graded_at: int
    learned: bool
