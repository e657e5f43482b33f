"""What is wrong with a body, under the names that its sender gave to the fields. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

Place = tuple[int | str, ...]


def flaws(error: ValidationError, raw: Any) -> list[dict[str, Any]]:
    """What is wrong with each field. A member of a union that is of another kind than the value says nothing where a
    member of the same kind found a flaw further inside.
    """
    found = [
        (_place(one["loc"], raw, one["type"]), one["msg"], one["type"].endswith(("_type", "literal_error")))
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    around = {place[:end] for place, _, _ in found for end in range(len(place))}
    said: dict[Place, dict[str, None]] = {}
    for place, message, other_kind in sorted(found, key=lambda flaw: flaw[2]):
        if not other_kind or place not in around:
            said.setdefault(place, {})[message] = None
    return [{"loc": ("body", *place), "msg": ", or: ".join(messages)} for place, messages in said.items()]


def _place(loc: Place, raw: Any, kind: str) -> Place:
    """Where in the body that is, without the names that pydantic gives to the members of a union."""
    found: list[int | str] = []
    value: Any = raw
    for at, part in enumerate(loc, 1):
        inside = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if inside:
            found.append(part)
            value = value[part]
        elif isinstance(value, dict) and kind == "missing" and at == len(loc):
            # A default that was refused has the name of our own, such as schema_.
            found.append(str(part).removesuffix("_"))
    return tuple(found)
