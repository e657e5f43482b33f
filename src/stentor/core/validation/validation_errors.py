"""List what pydantic found wrong, in plain words and within limits, because a client decides how much it finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import UUID_PATTERN

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_LISTED = 100
MAX_CONVERTED = 5_000
"""Errors that pydantic converts at once; a million take five seconds and 1 GB, on the event loop."""
_PLAIN_WORDS = {
    f"match pattern '{UUID_PATTERN}'": "be a UUID",
    "Field required": "is required",
    "Input should be a valid integer": "must be an integer",
    "integer, unable to parse string as an integer": "integer",
    "Input should be a valid ": "must be a ",
    "Input should": "must",
    "String should": "must",
    "List should": "must",
    "Value should": "must",
    " after validation": "",
    "less than or equal to": "at most",
    "greater than or equal to": "at least",
}
"""Pydantic's words, and ours: `grade: must be at most 1`."""
FieldPath = tuple[int | str, ...]
_NO_OBJECT = frozenset(("dict_type", "model_type", "model_attributes_type", "dataclass_type"))
"""Pydantic's errors that name a Python class, or a dictionary, where JSON has an object."""
_NOT_AN_OBJECT = "must be an object"


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
        reason = _NOT_AN_OBJECT if error.get("type") in _NO_OBJECT else str(error["msg"])
        reason = reason.removeprefix("Value error, ")
        if isinstance(error.get("input"), str):
            reason = reason.replace(" item", " character")  # pydantic counts items of whatever it checks twice
        for pydantic_words, words in _PLAIN_WORDS.items():
            reason = reason.replace(pydantic_words, words)
        fields[field] = reason
    return {"fields": fields}


def describe_union_errors(error: ValidationError, raw: Any) -> list[JsonObject]:
    """Return the messages by field, under the names that the client used.

    pydantic reports the errors of every member of a union. A member of another type than the value is left out where a
    member of the same type has an error further inside.
    """
    entries = [
        (
            _field_path(entry["loc"], raw, entry["type"]),
            _NOT_AN_OBJECT if entry["type"] in _NO_OBJECT else entry["msg"],
            entry["type"].endswith(("_type", "literal_error")),
        )
        for entry in list_errors(error)
    ]
    parents = {path[:end] for path, _, _ in entries for end in range(len(path))}
    messages_by_path: dict[FieldPath, dict[str, None]] = {}  # dicts as ordered sets
    for path, message, is_type_error in sorted(entries, key=lambda entry: entry[2]):
        if not is_type_error or path not in parents:
            messages_by_path.setdefault(path, {})[message] = None
    return [{"loc": ("body", *path), "msg": ", or: ".join(messages)} for path, messages in messages_by_path.items()]


def _field_path(loc: FieldPath, raw: Any, error_type: str) -> FieldPath:
    """Return the path of an error in the body, without pydantic's names for the members of a union."""
    path: list[int | str] = []
    value: Any = raw
    for position, part in enumerate(loc, 1):
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if inside:
            path.append(part)
            value = value[part]
        elif isinstance(value, dict) and error_type == "missing" and position == len(loc):
            # An invalid default is reported under the name of the attribute, such as schema_, not under its alias.
            path.append(str(part).removesuffix("_"))
    return tuple(path)
