"""Texts by which a user refers to a record: a part of its id, or its name; and the errors about them. Pure.

`ServiceClient` in `client` looks them up.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping
from typing import ClassVar, Protocol

from stentor.cli.output import EXIT_USAGE, CommandFailed

MAX_LISTED_REFERENCES = 5
"""Records that an error about an ambiguous reference names."""
MAX_COMPARED_REFERENCES = 200
"""Records whose names are compared with one that is unknown."""


class Referable(Protocol):
    """A list of records that a user may refer to by a part of their id."""

    path: ClassVar[str]
    noun: ClassVar[str]
    """What a record is, for an error: `task`."""

    @property
    def labels(self) -> dict[str, str]:
        """Return a text for people by the id of each record."""
        ...


def ambiguous_error(text: str, labels: Mapping[str, str]) -> CommandFailed:
    """Return the error for a text that refers to several records; `labels` has a text for people by their ids."""
    shown = [f"{record_id} ({label})" for record_id, label in list(labels.items())[:MAX_LISTED_REFERENCES]]
    more = ", and more" if len(labels) > MAX_LISTED_REFERENCES else ""
    return CommandFailed(f"{text!r} is not unique. Use more of the id: {', '.join(shown)}{more}.", EXIT_USAGE)


def describe_unknown(noun: str, text: str, labels: Mapping[str, str]) -> str:
    """Return that no record is called `text`, with the one of `labels` whose name or id is most like it, if any is."""
    message = f"No {noun} has the name or id {text!r}, or an id that begins or ends with it."
    similar = find_similar(text, labels)
    if similar is not None:
        return f"{message} Did you mean {shlex.quote(similar)}?"
    return f"{message} To list them: stentor {noun} list"


def find_similar(text: str, labels: Mapping[str, str]) -> str | None:
    """Return the name or the id that is most like `text`, None if none is like it."""
    return next(iter(difflib.get_close_matches(text, [*labels.values(), *labels], 1)), None)
