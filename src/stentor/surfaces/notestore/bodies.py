"""What each tool takes. Fields that a tool does not know are ignored, because clients in the field send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from stentor.core.errors import InvalidRequest

Text = Annotated[str, msgspec.Meta(min_length=1)]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class Nothing(msgspec.Struct):
    """No field."""


class Path(msgspec.Struct):
    path: str


class Content(msgspec.Struct):
    path: str
    content: str


class Query(msgspec.Struct):
    query: Text


class Entry(msgspec.Struct):
    """A frontmatter key and any JSON value, null included."""

    path: str
    key: Key
    value: Any


class Tags(msgspec.Struct):
    path: str
    tags: list[str]
    action: Literal["add", "remove"]


class Replacement(msgspec.Struct):
    path: str
    search: Text
    replace: str


Body = Nothing | Path | Content | Query | Entry | Tags | Replacement


def checked(kind: type[msgspec.Struct], value: Any) -> Any:
    """The body as a tool takes it. Raises InvalidRequest, which names the field."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{error}.") from None
