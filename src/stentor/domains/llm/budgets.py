"""What a key or an agent may spend in a day or a month, in tokens or in money. Pure. Fails closed.

Source: docs/decisions, "LLM gateway".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from stentor.core.clock import DAY, SECOND
from stentor.core.errors import StartRefused

Kind = Literal["key", "agent"]
NANO = 1_000_000_000
"""Money is counted in billionths of a US dollar, as integers."""
_FORM = re.compile(r"(key|agent):([^=]+):(tokens|usd)/(day|month)=(\d+(?:\.\d+)?)")


class Spent(msgspec.Struct, frozen=True):
    """Tokens, and billionths of a dollar."""

    tokens: int = 0
    cost: int = 0


class Budget(msgspec.Struct, frozen=True):
    """`subject` is the name of a key, the id of an agent, or `*` for each of them."""

    kind: Kind
    subject: str
    unit: str
    period: str
    limit: int

    def applies(self, kind: Kind, subject: str) -> bool:
        return self.kind == kind and self.subject in ("*", subject)

    def left(self, spent: Spent) -> int:
        return self.limit - (spent.tokens if self.unit == "tokens" else spent.cost)


def parse(entries: Sequence[str]) -> tuple[Budget, ...]:
    """Of SERVICE_LLM_BUDGETS: `key:*:tokens/day=100000`. Raises StartRefused."""
    found = []
    for entry in entries:
        match = _FORM.fullmatch(entry)
        if match is None:
            raise StartRefused(
                f"SERVICE_LLM_BUDGETS has the entry {entry!r}, which is not of the form key:NAME:tokens/day=100000 "
                "or agent:ID:usd/month=20 (the name may be *)."
            )
        kind, subject, unit, period, limit = match.groups()
        amount = round(float(limit) * (NANO if unit == "usd" else 1))
        found.append(Budget("key" if kind == "key" else "agent", subject, unit, period, amount))
    return tuple(found)


def first_day(period: str, now: int) -> int:
    """The number of the day, since 1970, that the present period began with; UTC."""
    today = now // DAY
    return today if period == "day" else today - (datetime.fromtimestamp(now / SECOND, UTC).day - 1)


def seconds_left(period: str, now: int) -> int:
    """Until the period ends; UTC."""
    if period == "day":
        return (DAY - now % DAY) // SECOND + 1
    moment = datetime.fromtimestamp(now / SECOND, UTC)
    year, month = (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
    return int((datetime(year, month, 1, tzinfo=UTC) - moment).total_seconds()) + 1
