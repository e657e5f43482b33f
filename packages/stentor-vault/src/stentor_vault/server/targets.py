"""Resolution of a request path to a file and optionally a part of it: `/vault/a/note.md/heading/One/Two`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Generic, TypeVar

import msgspec

from stentor_vault.notes.model import NoSuchNote, Note, Stat
from stentor_vault.notes.paths import InvalidPath, compose_path
from stentor_vault.server.errors import BAD_TARGET, BAD_TARGET_TYPE, NO_TARGET, NOT_FOUND, VaultApiError
from stentor_vault.server.patching.instruction import TARGET_KINDS, HeadingPath

F = TypeVar("F", Note, Stat)
_DELIMITER = "\x1f"
"""Separates headings in a path of format 1; no heading contains this control character."""


class NoteTarget(msgspec.Struct, frozen=True):
    """A part of a note: the path of a heading, or the id of a block, or the name of a frontmatter field."""

    kind: str
    names: HeadingPath | None

    @property
    def instruction_target(self) -> HeadingPath | str | None:
        """The value of the field `target` of a patch instruction."""
        return self.names if self.kind == "heading" or self.names is None else self.names[0]

    @property
    def legacy_target(self) -> tuple[str, str]:
        """The target as one string, as in format 1, and the delimiter between its names."""
        names = self.names or ()
        return (_DELIMITER.join(names) if self.kind == "heading" else names[0]), _DELIMITER


class ResolvedPath(msgspec.Struct, Generic[F], frozen=True):
    """An existing file, and the part of it that the path names, if any."""

    file: F
    target: NoteTarget | None = None


async def resolve_path(find_file: Callable[[str], Awaitable[F]], parts: list[str]) -> ResolvedPath[F] | None:
    """Return the file at the path, or at its longest prefix that is a file, the rest being the target.

    None if `find_file` raises NoSuchNote for each prefix. Raises VaultApiError if the rest is not a target.
    """
    parts = parts[:-1] if parts[-1] == "" else parts
    for end in range(len(parts), 0, -1):
        file = await _find_file(find_file, parts[:end])
        if file is not None:
            return ResolvedPath(file, parse_target(parts[end], tuple(parts[end + 1 :])) if end < len(parts) else None)
    return None


async def _find_file(find_file: Callable[[str], Awaitable[F]], parts: list[str]) -> F | None:
    if any("/" in part for part in parts):
        return None
    try:
        return await find_file(compose_path("/".join(parts)))
    except (NoSuchNote, InvalidPath):
        return None


def parse_target(kind: str, names: HeadingPath) -> NoteTarget:
    """Return the target. Raises VaultApiError for an unknown kind, and without a name or with more than one to use."""
    if kind not in TARGET_KINDS:
        raise VaultApiError(BAD_TARGET_TYPE, f"The target kind is one of {', '.join(TARGET_KINDS)}, not {kind!r}.")
    if not any(names):
        raise VaultApiError(NO_TARGET, f"The name of the {kind} is missing in the path.")
    if kind != "heading" and len(names) > 1:
        raise VaultApiError(BAD_TARGET, f"A {kind} has one name; a slash in it must be encoded as %2F.")
    return NoteTarget(kind, names)


def reject_missing_target(parts: list[str]) -> None:
    """Raise VaultApiError (404) for a target in a file that does not exist.

    Otherwise a write to `note.md/heading/One` would create a file `One` in a folder `note.md`.
    """
    for file, kind in pairwise(parts):
        if kind in TARGET_KINDS and "." in file:
            raise VaultApiError(NOT_FOUND, f"The vault has no file {file!r} in this folder.")
