"""The days `from` to `to` of a page's filters, as the times between which an operation lists. All in UTC."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, timedelta


def times_of_days(filters: dict[str, str]) -> dict[str, str]:
    """Return the times between which the days `from` to `to` are; a wrong day as it is."""
    times = {"since": filters["from"], "until": filters["to"]}
    with suppress(ValueError):
        times["since"] = times["since"] and f"{date.fromisoformat(times['since'])}T00:00:00Z"
        times["until"] = times["until"] and _end_of(date.fromisoformat(times["until"]))
    return times


def _end_of(day: date) -> str:
    """Return the start of the next day; "", which is no limit, for the last one that a date can be."""
    return "" if day == date.max else f"{day + timedelta(days=1)}T00:00:00Z"
