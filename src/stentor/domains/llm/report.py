"""The usage report: calls added up by provider, model and day. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any

from stentor.core.clock import DAY
from stentor.core.errors import InvalidRequest
from stentor.domains.llm.budgets import NANO
from stentor.domains.llm.store import UsageRow

EPOCH = date(1970, 1, 1)
FOREVER = 2**62


def bounds(start: date | None, end: date | None) -> tuple[int, int]:
    """Microseconds from the first moment of `start` to the one after the last of `end`.

    Raises InvalidRequest when `end` is before `start`.
    """
    if start and end and end < start:
        raise InvalidRequest("startDate is after endDate.", {"fields": {"startDate": "is after endDate"}})
    first = (start - EPOCH).days * DAY if start else 0
    return first, ((end - EPOCH).days + 1) * DAY if end else FOREVER


def report(rows: Sequence[UsageRow]) -> dict[str, Any]:
    total = _totals(rows)
    return {
        "totalRequests": total.pop("requests"),
        **total,
        "estimatedRequests": sum(row.estimated for row in rows),
        "unpricedRequests": sum(row.unpriced for row in rows),
        "byProvider": _by((row.provider, row) for row in rows),
        "byModel": _by((f"{row.provider}/{row.model}", row) for row in rows),
        "byDay": _by(((EPOCH + timedelta(days=row.day)).isoformat(), row) for row in rows),
    }


def _by(pairs: Iterable[tuple[str, UsageRow]]) -> dict[str, dict[str, Any]]:
    groups: defaultdict[str, list[UsageRow]] = defaultdict(list)
    for name, row in pairs:
        groups[name].append(row)
    return {name: _totals(rows) for name, rows in groups.items()}


def _totals(rows: Sequence[UsageRow]) -> dict[str, Any]:
    given, made = sum(row.input_tokens for row in rows), sum(row.output_tokens for row in rows)
    return {
        "requests": sum(row.requests for row in rows),
        "totalTokens": given + made,
        "inputTokens": given,
        "outputTokens": made,
        "estimatedCost": round(sum(row.cost for row in rows) / NANO, 9),
    }
