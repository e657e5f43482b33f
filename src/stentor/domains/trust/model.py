"""Levels, decay and reinforcement: pure. Source: core contract, "Trust entity and levels"."""

from __future__ import annotations

from typing import Literal

import msgspec

from stentor.core.clock import DAY

INITIAL_SCORE = 0.5
"""Where success or failure starts an entity that has no score."""
DEFAULT_ENTITY_TYPE = "agent"
SUCCESS_REWARD, FAILURE_PENALTY, DAILY_DECAY = 0.02, 0.05, 0.01
OPERATIONS = ("read", "write", "delete", "search", "tag", "update", "frontmatter")

ChangeKind = Literal["set", "success", "failure"]


class TrustLevel(msgspec.Struct, frozen=True):
    """`low` is inclusive, `high` exclusive but for the highest level."""

    name: str
    low: float
    high: float
    operations: tuple[str, ...]


LEVELS = (
    TrustLevel("FULL", 0.9, 1.0, ("read", "write", "delete", "search", "tag", "update", "frontmatter")),
    TrustLevel("HIGH", 0.7, 0.9, ("read", "write", "search", "tag", "update", "frontmatter")),
    TrustLevel("MEDIUM", 0.5, 0.7, ("read", "write", "search", "tag")),
    TrustLevel("LOW", 0.3, 0.5, ("read", "search")),
    TrustLevel("UNTRUSTED", 0.0, 0.3, ()),
)


class TrustEntity(msgspec.Struct, frozen=True):
    """A stored score, as it was at `updated_at` (microseconds)."""

    entity_id: str
    entity_type: str
    score: float
    updated_at: int

    def score_at(self, now: int) -> float:
        """The score at `now`, after one percent of decay for each whole idle day."""
        return decay_score(self.score, now - self.updated_at)


class TrustChange(msgspec.Struct, frozen=True):
    entity_id: str
    kind: str
    delta: float
    score: float
    cause: str | None
    happened_at: int


def find_level(score: float) -> TrustLevel:
    for level in LEVELS:
        if score >= level.low:
            return level
    return LEVELS[-1]


def decay_score(score: float, idle: int) -> float:
    """`idle` in microseconds. Whole days, so that a score just set reads as it was set."""
    days = max(0, idle) // DAY
    return round_score(score * (1 - DAILY_DECAY) ** days) if days else score


def change_score(score: float, by: float) -> float:
    """The score after a change, kept in [0,1]."""
    return round_score(min(1.0, max(0.0, score + by)))


def round_score(score: float) -> float:
    """Twelve decimals: 0.5 + 0.07 shall read 0.57."""
    return round(score, 12)
