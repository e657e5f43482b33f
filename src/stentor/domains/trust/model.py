"""Levels, decay and reinforcement: pure. Source: core contract, "Trust entity and levels"."""

from __future__ import annotations

from typing import Literal

import msgspec

from stentor.core.clock import DAY

START = 0.5
"""Where success or failure starts an entity that has no score."""
DEFAULT_TYPE = "agent"
REWARD, PENALTY, DAILY_DECAY = 0.02, 0.05, 0.01
OPERATIONS = ("read", "write", "delete", "search", "tag", "update", "frontmatter")

ChangeKind = Literal["set", "success", "failure"]


class Level(msgspec.Struct, frozen=True):
    """`low` is inclusive, `high` exclusive but for the highest level."""

    name: str
    low: float
    high: float
    operations: tuple[str, ...]


LEVELS = (
    Level("FULL", 0.9, 1.0, ("read", "write", "delete", "search", "tag", "update", "frontmatter")),
    Level("HIGH", 0.7, 0.9, ("read", "write", "search", "tag", "update", "frontmatter")),
    Level("MEDIUM", 0.5, 0.7, ("read", "write", "search", "tag")),
    Level("LOW", 0.3, 0.5, ("read", "search")),
    Level("UNTRUSTED", 0.0, 0.3, ()),
)


class Entity(msgspec.Struct, frozen=True):
    """A stored score, as it was at `updated_at` (microseconds)."""

    entity_id: str
    entity_type: str
    score: float
    updated_at: int

    def at(self, now: int) -> float:
        """The score at `now`, after one percent of decay for each whole idle day."""
        return decayed(self.score, now - self.updated_at)


class Change(msgspec.Struct, frozen=True):
    entity_id: str
    kind: str
    delta: float
    score: float
    cause: str | None
    happened_at: int


def level_of(score: float) -> Level:
    for level in LEVELS:
        if score >= level.low:
            return level
    return LEVELS[-1]


def decayed(score: float, idle: int) -> float:
    """`idle` in microseconds. Whole days, so that a score just set reads as it was set."""
    days = max(0, idle) // DAY
    return rounded(score * (1 - DAILY_DECAY) ** days) if days else score


def moved(score: float, by: float) -> float:
    """The score after a change, kept in [0,1]."""
    return rounded(min(1.0, max(0.0, score + by)))


def rounded(score: float) -> float:
    """Twelve decimals: 0.5 + 0.07 shall read 0.57."""
    return round(score, 12)
