"""Which file a path names, and which part of it: `/vault/a/note.md/heading/One/Two`."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stentor.domains.notes.folder import FolderVault
from stentor.domains.notes.model import NoSuchNote, Note
from stentor.domains.notes.paths import InvalidPath
from stentor.surfaces.vault.errors import BAD_TARGET_TYPE, NO_TARGET, NOT_FOUND, Refused
from stentor.surfaces.vault.patching.instruction import KINDS, Path

_BETWEEN = "\x1f"


class Target(msgspec.Struct, frozen=True):
    """A part of a note: the path of a heading, or the name of a block or field."""

    kind: str
    names: Path | None

    @property
    def address(self) -> Path | str | None:
        """As an instruction has it."""
        return self.names if self.kind == "heading" or self.names is None else self.names[0]

    @property
    def in_one(self) -> tuple[str, str]:
        """The names as format 1 has them, and what stands between them: a sign that no heading has."""
        names = self.names or ()
        return (_BETWEEN.join(names) if self.kind == "heading" else names[0]), _BETWEEN


class Place(msgspec.Struct, frozen=True):
    note: Note
    target: Target | None = None


async def find(vault: FolderVault, parts: list[str]) -> Place | None:
    """The file at the path, or the file at the longest begin of it with the target after it; None for neither."""
    parts = parts[:-1] if parts[-1] == "" else parts
    for end in range(len(parts), 0, -1):
        note = await _file(vault, parts[:end])
        if note is not None:
            return Place(note, target_of(parts[end], tuple(parts[end + 1 :])) if end < len(parts) else None)
    return None


async def _file(vault: FolderVault, parts: list[str]) -> Note | None:
    if any("/" in part for part in parts):
        return None
    try:
        return await vault.read("/".join(parts))
    except (NoSuchNote, InvalidPath):
        return None


def target_of(kind: str, names: Path) -> Target:
    """Raises Refused."""
    if kind not in KINDS:
        raise Refused(BAD_TARGET_TYPE, f"After a note comes one of {', '.join(KINDS)}, not {kind!r}.")
    if not any(names):
        raise Refused(NO_TARGET, f"The path names no {kind}.")
    return Target(kind, names)


def refuse_missing(parts: list[str]) -> None:
    """A part of a note that is not there is not a new file."""
    for file, kind in pairwise(parts):
        if kind in KINDS and "." in file:
            raise Refused(NOT_FOUND, f"The vault has no file {file!r} there.")
