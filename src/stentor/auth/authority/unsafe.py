"""What must not come in beside a receipt: fields that are named like credentials."""

from __future__ import annotations

import unicodedata
from typing import Any

from stentor.core.errors import InvalidRequest

NAMES = ("apikey", "accesstoken", "bearertoken", "providersecret")
"""Compared without case, separators, a plural's s and a number at the end; what stands before is their owner's name."""
SHOWN = 8
"""Parts of a path that an error names at most, and 64 characters of each."""

Way = tuple[Any, Any] | None
"""The way back to the root: the way to the parent, and the name or index in it."""


class UnsafeProofName(InvalidRequest):
    """A field is named like an API key, an access token, a bearer token or a provider's secret."""


def refuse_unsafe_names(value: Any) -> None:
    """Raises UnsafeProofName for such a field at any depth of a JSON value. It names the field, never what it holds."""
    todo: list[tuple[Any, Way]] = [(value, None)]
    while todo:
        inner, way = todo.pop()
        if isinstance(inner, dict):
            for name in inner:
                if isinstance(name, str) and is_unsafe(name):
                    raise UnsafeProofName(
                        f"The field {_path((way, name))} is named like a credential. Authority is shown by a receipt: "
                        "leave the field out."
                    )
            todo.extend((part, (way, name)) for name, part in inner.items())
        elif isinstance(inner, list | tuple):
            todo.extend((part, (way, n)) for n, part in enumerate(inner))


def is_unsafe(name: str) -> bool:
    return plain_name(name).rstrip("0123456789").removesuffix("s").endswith(NAMES)


def plain_name(name: str) -> str:
    """Letters and digits alone, without case and typographic variants: `API-KEY` and `apiKey` are `apikey`."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in folded if character.isalnum())


def _path(way: Way) -> str:
    parts: list[str] = []
    while way is not None and len(parts) < SHOWN:
        way, name = way
        parts.append(f"[{name}]" if isinstance(name, int) else f".{_shown(str(name))}")
    return ("…" if way is not None else "") + "".join(reversed(parts)).removeprefix(".")


def _shown(name: str) -> str:
    visible = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)
    return visible if len(visible) <= 64 else visible[:63] + "…"
