"""List what pydantic found wrong, within limits: it has no limit of its own, and a client decides how much there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_LISTED = 100
MAX_CONVERTED = 5_000
"""Errors that pydantic converts at once; a million take five seconds and 1 GB, on the event loop."""


def list_errors(error: ValidationError, *where: int | str) -> list[Any]:
    """Return the first MAX_LISTED errors, or of more than MAX_CONVERTED one that says how many there are.

    `where` is the place of the value in the request, which each error's place begins with.
    """
    if (count := error.error_count()) > MAX_CONVERTED:
        return [{"type": "too_many_errors", "loc": where, "msg": f"{count:,} errors, too many to list", "input": None}]
    return [{**detail, "loc": (*where, *detail["loc"])} for detail in error.errors(include_url=False)[:MAX_LISTED]]
