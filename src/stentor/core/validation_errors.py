"""List what pydantic found wrong, in plain words and within limits: it has none, and a client decides how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.core.jsontext import JsonObject
from stentor.core.text_checks import UUID_PATTERN

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_LISTED = 100
MAX_CONVERTED = 5_000
"""Errors that pydantic converts at once; a million take five seconds and 1 GB, on the event loop."""
_PLAIN_WORDS = {
    f"match pattern '{UUID_PATTERN}'": "be a UUID",
    "Input should": "must",
    "String should": "must",
    "List should": "must",
    "Value should": "must",
    " after validation": "",
    "less than or equal to": "at most",
    "greater than or equal to": "at least",
}
"""Pydantic's words, and ours: `grade: must be at most 1`."""
_NO_OBJECT = frozenset(("dict_type", "model_type", "model_attributes_type", "dataclass_type"))
"""Pydantic's errors that name a Python class, or a dictionary, where JSON has an object."""


def list_errors(error: ValidationError, *where: int | str) -> list[Any]:
    """Return the first MAX_LISTED errors, or of more than MAX_CONVERTED one that says how many there are.

    `where` is the place of the value in the request, which each error's place begins with.
    """
    if (count := error.error_count()) > MAX_CONVERTED:
        return [{"type": "too_many_errors", "loc": where, "msg": f"{count:,} errors, too many to list", "input": None}]
    return [{**detail, "loc": (*where, *detail["loc"])} for detail in error.errors(include_url=False)[:MAX_LISTED]]


def field_errors(errors: Sequence[Any]) -> JsonObject:
    """Convert pydantic's errors to `{"fields": {"metadata.priority": "reason"}}`, without the input values."""
    fields = {}
    for error in errors:
        location = [str(part) for part in error["loc"]]
        field = ".".join(location[1:] if location[:1] == ["body"] and len(location) > 1 else location)
        reason = "must be an object" if error.get("type") in _NO_OBJECT else str(error["msg"])
        reason = reason.removeprefix("Value error, ")
        if isinstance(error.get("input"), str):
            reason = reason.replace(" item", " character")  # pydantic counts items of whatever it checks twice
        for pydantic_words, words in _PLAIN_WORDS.items():
            reason = reason.replace(pydantic_words, words)
        fields[field] = reason
    return {"fields": fields}
