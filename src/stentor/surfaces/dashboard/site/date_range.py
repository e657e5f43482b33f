"""The days `from` to `to` of a page's filters, as the times between which an operation lists. All in UTC."""

from __future__ import annotations

from datetime import date, timedelta

from stentor.core.errors import InvalidRequest


def times_of_days(filters: dict[str, str]) -> dict[str, str]:
    """Return the times between which the days `from` to `to` are. Raises InvalidRequest for a wrong day."""
    first, last = _read_day(filters, "from"), _read_day(filters, "to")
    return {"since": f"{first}T00:00:00Z" if first else "", "until": _end_of(last) if last else ""}


def _read_day(filters: dict[str, str], name: str) -> date | None:
    try:
        return date.fromisoformat(filters[name]) if filters[name] else None
    except ValueError:
        raise InvalidRequest.of_field(name, "must be a day such as 2026-11-20") from None


def _end_of(day: date) -> str:
    """Return the start of the next day; "", which means no limit, for the last possible date."""
    return "" if day == date.max else f"{day + timedelta(days=1)}T00:00:00Z"
