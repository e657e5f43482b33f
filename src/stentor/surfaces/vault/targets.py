"""Which file a path names, and which part of it: `/vault/a/note.md/heading/One/Two`."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stentor.domains.notes.folder_vault import FolderVault
from stentor.domains.notes.model import NoSuchNote, Note
from stentor.domains.notes.paths import InvalidPath
from stentor.surfaces.vault.errors import BAD_TARGET_TYPE, NO_TARGET, NOT_FOUND, VaultApiError
from stentor.surfaces.vault.patching.instruction import TARGET_KINDS, HeadingPath

_BETWEEN = "\x1f"


class NoteTarget(msgspec.Struct, frozen=True):
    """A part of a note: the path of a heading, or the name of a block or field."""

    kind: str
    names: HeadingPath | None

    @property
    def instruction_target(self) -> HeadingPath | str | None:
        """As an instruction has it."""
        return self.names if self.kind == "heading" or self.names is None else self.names[0]

    @property
    def legacy_target(self) -> tuple[str, str]:
        """The names as format 1 has them, and what stands between them: a sign that no heading has."""
        names = self.names or ()
        return (_BETWEEN.join(names) if self.kind == "heading" else names[0]), _BETWEEN


class ResolvedPath(msgspec.Struct, frozen=True):
    note: Note
    target: NoteTarget | None = None


async def resolve_path(vault: FolderVault, parts: list[str]) -> ResolvedPath | None:
    """The file at the path, or the file at the longest begin of it with the target after it; None for neither."""
    parts = parts[:-1] if parts[-1] == "" else parts
    for end in range(len(parts), 0, -1):
        note = await _file(vault, parts[:end])
        if note is not None:
            return ResolvedPath(note, parse_target(parts[end], tuple(parts[end + 1 :])) if end < len(parts) else None)
    return None


async def _file(vault: FolderVault, parts: list[str]) -> Note | None:
    if any("/" in part for part in parts):
        return None
    try:
        return await vault.read("/".join(parts))
    except (NoSuchNote, InvalidPath):
        return None


def parse_target(kind: str, names: HeadingPath) -> NoteTarget:
    """Raises Refused."""
    if kind not in TARGET_KINDS:
        raise VaultApiError(BAD_TARGET_TYPE, f"After a note comes one of {', '.join(TARGET_KINDS)}, not {kind!r}.")
    if not any(names):
        raise VaultApiError(NO_TARGET, f"The path names no {kind}.")
    return NoteTarget(kind, names)


def reject_missing_target(parts: list[str]) -> None:
    """A part of a note that is not there is not a new file."""
    for file, kind in pairwise(parts):
        if kind in TARGET_KINDS and "." in file:
            raise VaultApiError(NOT_FOUND, f"The vault has no file {file!r} there.")
