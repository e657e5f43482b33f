"""Why an edit cannot be made. The surface gives each its code."""

from __future__ import annotations

from stentor.core.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed


class InvalidInstruction(InvalidRequest):
    """The instruction does not say what to do: a field is missing, of the wrong kind, or makes no sense with others."""


class PatchFailed(InvalidRequest):
    """The instruction is clear and cannot be applied to this note: no table, no list, nothing to move below itself."""


class NoSuchTarget(NotFound):
    """The note has no such heading, block or field."""


class ContentPresent(Conflict):
    """The target has the content already, and the caller wants it once."""


class FieldTaken(Conflict):
    """The frontmatter has a field of the new name already."""


class OtherVersion(PreconditionFailed):
    """The note is not in the state that the instruction was made for."""
