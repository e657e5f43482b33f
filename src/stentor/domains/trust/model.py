"""Trust levels, decay and score changes. Pure. Source: core contract, "Trust entity and levels"."""

from __future__ import annotations

from typing import Literal

import msgspec

from stentor.core.clock import DAY

INITIAL_SCORE = 0.5
"""Score of an entity before its first success or failure."""
DEFAULT_ENTITY_TYPE = "agent"
SUCCESS_REWARD = 0.02
FAILURE_PENALTY = 0.05
DAILY_DECAY = 0.01

ChangeKind = Literal["set", "success", "failure"]


class TrustLevel(msgspec.Struct, frozen=True):
    """A range of scores and what it permits; `low` is inclusive, `high` exclusive except for the highest level."""

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
    """An entity with its stored score, which was valid at `updated_at` (microseconds)."""

    entity_id: str
    entity_type: str
    score: float
    updated_at: int

    def score_at(self, now: int) -> float:
        """Return the score at `now`, after its decay."""
        return decay_score(self.score, now - self.updated_at)


class TrustChange(msgspec.Struct, frozen=True):
    """A recorded change of a score. Time in microseconds."""

    entity_id: str
    kind: str
    delta: float
    score: float
    cause: str | None
    happened_at: int


def find_level(score: float) -> TrustLevel:
    """Return the level of a score."""
    for level in LEVELS:
        if score >= level.low:
            return level
    return LEVELS[-1]


def decay_score(score: float, idle: int) -> float:
    """Return the score after `idle` microseconds; it loses 1 % per whole day, so a new score reads as it was set."""
    days = max(0, idle) // DAY
    return round_score(score * (1 - DAILY_DECAY) ** days) if days else score


def change_score(score: float, delta: float) -> float:
    """Return the changed score, clamped to [0,1]."""
    return round_score(min(1.0, max(0.0, score + delta)))


def round_score(score: float) -> float:
    """Round to twelve decimals, so that 0.5 + 0.07 reads 0.57."""
    return round(score, 12)
