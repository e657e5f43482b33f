"""The trust score of an agent: a weighted sum of metrics, with its breakdown. Pure.

Source: core contract, "Governance".
"""

from __future__ import annotations

import msgspec

from stentor.core.errors import InvalidRequest
from stentor.domains.governance.model import TrustNotComputable

COMPONENT_WEIGHTS = {"success_rate": 0.35, "security": 0.25, "code_quality": 0.20, "audit": 0.15, "uptime": 0.05}
VIOLATION_PENALTY = 0.1
REQUIRED_COMPONENTS = ("success_rate", "security")
"""A score is stored only if these are known, because one metric alone could move an agent across two tiers."""


class TrustMetrics(msgspec.Struct, frozen=True):
    """Metrics of an agent; None is unknown."""

    successful_executions: int | None = None
    total_executions: int | None = None
    recent_violation_count: int | None = None
    coverage_ratio: float | None = None
    passed_lints: float | None = None
    no_dead_code: float | None = None
    approved_updates: int | None = None
    total_update_attempts: int | None = None
    downtime_hours: float | None = None
    total_hours: float | None = None


class TrustBreakdown(msgspec.Struct, frozen=True):
    """A score with its parts. `weights` are those of the known components, scaled to a sum of 1."""

    score: float
    components: dict[str, float]
    weights: dict[str, float]
    contributions: dict[str, float]
    missing: tuple[str, ...]

    @property
    def not_stored_reason(self) -> str | None:
        """The reason why the score may not be stored; None if it may."""
        missing = [name for name in REQUIRED_COMPONENTS if name in self.missing]
        return f"Not stored: {' and '.join(missing)} must be known." if missing else None


def compute_trust(metrics: TrustMetrics) -> TrustBreakdown:
    """Compute the score from the known components.

    Raises TrustNotComputable if none is known, InvalidRequest for a part that is larger than its whole.
    """
    known = {name: value for name, value in _components(metrics).items() if value is not None}
    if not known:
        raise TrustNotComputable(
            "No metric is known that a trust score could be computed from.", {"missing": list(COMPONENT_WEIGHTS)}
        )
    total = sum(COMPONENT_WEIGHTS[name] for name in known)
    # Rounded, so that 0.1 + 0.2 is shown as 0.3.
    weights = {name: round(COMPONENT_WEIGHTS[name] / total, 12) for name in known}
    parts = {name: round(known[name] * COMPONENT_WEIGHTS[name] / total, 12) for name in known}
    score = min(1.0, round(sum(parts.values()), 12))
    return TrustBreakdown(score, known, weights, parts, tuple(name for name in COMPONENT_WEIGHTS if name not in known))


def _components(metrics: TrustMetrics) -> dict[str, float | None]:
    violations = metrics.recent_violation_count
    down = _share(metrics, "downtime_hours", "total_hours")
    return {
        "success_rate": _share(metrics, "successful_executions", "total_executions"),
        "security": None if violations is None else round(max(0.0, 1 - VIOLATION_PENALTY * violations), 12),
        "code_quality": _mean(metrics.coverage_ratio, metrics.passed_lints, metrics.no_dead_code),
        "audit": _share(metrics, "approved_updates", "total_update_attempts"),
        "uptime": None if down is None else 1 - down,
    }


def _share(metrics: TrustMetrics, part: str, whole: str) -> float | None:
    """Return part / whole; None if one of them is unknown or the whole is 0."""
    amount, total = getattr(metrics, part), getattr(metrics, whole)
    if amount is None or total is None:
        return None
    if amount > total:
        raise InvalidRequest(f"metrics.{part} must not be larger than metrics.{whole}.")
    return float(amount / total) if total else None


def _mean(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
