"""What an edit of format 2 is to do: the fields of an instruction, checked one by one and together. Pure.

A place in the note (`target`), a part of that place (`scope`) and an operation on it; the payload comes in exactly
one of `content`, `value` and `destination`. Source: facts of the vault plugin, and its published documentation.

Why an edit cannot be made. The surface gives each its code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from stentor_vault.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed
from stentor_vault.server.patching.outline import REPEAT_MARKER

TargetKind = Literal["heading", "block", "frontmatter"]
PatchOperation = Literal["replace", "prepend", "append", "delete"]
TargetScope = Literal["content", "marker", "markerAndContent", "parent"]
TARGET_KINDS, OPERATIONS = TargetKind.__args__, PatchOperation.__args__  # type: ignore[attr-defined]
TARGET_SCOPES = TargetScope.__args__  # type: ignore[attr-defined]
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ADDRESS = re.compile(rf"[A-Za-z0-9_-]+({REPEAT_MARKER}[^\x00-\U000fd3af]+)?")
_WRITES = {"replace", "prepend", "append"}
_ALL = {*_WRITES, "delete"}
_ALLOWED_OPERATIONS: dict[str, dict[str, set[str]]] = {
    "heading": {"content": _ALL, "marker": _ALL, "markerAndContent": _ALL, "parent": {"replace"}},
    "block": {"content": _ALL, "marker": {"replace", "delete"}, "markerAndContent": _ALL},
    "frontmatter": {"content": _ALL, "marker": {"replace"}, "markerAndContent": _ALL},
}
_WITHIN = {"content": _ALL, "markerAndContent": {"prepend", "append"}}
MAX_PATH_DEPTH = 50
"""Of names in a path; Markdown has six levels, and what is made below them is text."""
MAX_CONTENT_CHARS = 1_000_000
"""Characters that are looked through for headings."""
_PAYLOAD_FIELDS = ("content", "value", "destination")
HeadingPath = tuple[str, ...]


class SiblingPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Next to a section with this path: one of the two."""

    before: HeadingPath | UnsetType | None = UNSET
    after: HeadingPath | UnsetType | None = UNSET


class MoveDestination(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a section goes: below `parent` (null for the top), as its first or last, or beside another."""

    parent: HeadingPath | None
    place: Literal["first", "last"] | SiblingPlace


class PatchInstruction(msgspec.Struct, frozen=True, rename="camel"):
    """`target` is the path of a heading from the top (empty for the whole note), a block's id, or a field's name.

    `within` takes one block of the heading's own text, counted from 0, or from the end with -1.
    """

    target_type: TargetKind
    target: HeadingPath | str | None
    operation: PatchOperation
    scope: TargetScope = "content"
    content: str | UnsetType = UNSET
    value: Any = UNSET
    destination: MoveDestination | UnsetType = UNSET
    if_match: str | None = None
    create_target_if_missing: bool = False
    reject_if_content_preexists: bool = False
    within: int | None = None

    @property
    def path(self) -> HeadingPath:
        return self.target if isinstance(self.target, tuple) else ()

    @property
    def name(self) -> str:
        return self.target if isinstance(self.target, str) else ""

    @property
    def text(self) -> str:
        """The content of an instruction that must have one."""
        return "" if isinstance(self.content, UnsetType) else self.content


def parse_instruction(fields: Mapping[str, Any]) -> PatchInstruction:
    """Raises InvalidInstruction, which names the field."""
    try:
        wanted = msgspec.convert(dict(fields), PatchInstruction)
    except msgspec.ValidationError as error:
        raise InvalidInstruction(f"The instruction cannot be read: {error}.") from None
    for problem in (_target(wanted), _cell(wanted), _within(wanted), _payload(wanted), _shape(wanted)):
        if problem:
            raise InvalidInstruction(problem)
    return wanted


def _target(wanted: PatchInstruction) -> str | None:
    if wanted.target_type == "heading":
        if isinstance(wanted.target, str):
            return "target: a heading's is a list of headings from the top down, or null for the whole note."
        return f"target: {MAX_PATH_DEPTH} headings are the most." if len(wanted.path) > MAX_PATH_DEPTH else None
    if not isinstance(wanted.target, str) or not wanted.target:
        return f"target: that of a {wanted.target_type} is its name."
    if wanted.target_type == "block" and not _ADDRESS.fullmatch(wanted.target):
        return "target: a block's id has letters, digits, - and _ alone."
    return None


def _cell(wanted: PatchInstruction) -> str | None:
    if wanted.operation in _ALLOWED_OPERATIONS[wanted.target_type].get(wanted.scope, ()):
        return None
    return f"operation: {wanted.operation} makes no sense for the scope {wanted.scope} of a {wanted.target_type}."


def _within(wanted: PatchInstruction) -> str | None:
    if wanted.within is None:
        return None
    if wanted.target_type != "heading" or wanted.create_target_if_missing:
        return "within: it is for headings that are there, without createTargetIfMissing."
    if wanted.operation not in _WITHIN.get(wanted.scope, ()):
        return f"within: {wanted.operation} makes no sense for the scope {wanted.scope} of one block."
    return None


def _payload(wanted: PatchInstruction) -> str | None:
    given = [name for name in _PAYLOAD_FIELDS if getattr(wanted, name) is not UNSET]
    expected = _expected(wanted)
    if not expected:
        return f"{given[0]}: a {wanted.operation} takes none." if given else None
    if len(given) == 1 and given[0] in expected:
        return None
    words = " or ".join(expected)
    return f"{given[0] if given else expected[0]}: the payload comes in {words}, and in one of them alone."


def _expected(wanted: PatchInstruction) -> tuple[str, ...]:
    if wanted.operation == "delete":
        return ()
    if wanted.scope == "parent":
        return ("destination",)
    if wanted.target_type == "frontmatter":
        return ("content",) if wanted.scope == "marker" else ("value",)
    return ("content", "value") if (wanted.target_type, wanted.scope) == ("block", "content") else ("content",)


def _shape(wanted: PatchInstruction) -> str | None:
    """What the payload has to look like where it becomes a name, a line, or rows of a table."""
    if len(wanted.text) > MAX_CONTENT_CHARS:
        return f"content: {MAX_CONTENT_CHARS} characters are the most."
    if isinstance(wanted.destination, MoveDestination) and isinstance(wanted.destination.place, SiblingPlace):
        place = wanted.destination.place
        if (place.before is UNSET) == (place.after is UNSET):
            return "destination.place: it has either before or after."
    if wanted.scope == "marker" and wanted.operation != "delete":
        return _label(wanted.target_type, wanted.text)
    if wanted.target_type == "block" and wanted.value is not UNSET and not is_table_rows(wanted.value):
        return "value: that of a block is rows of a table, each a list of texts."
    return None


def _label(kind: str, words: str) -> str | None:
    if kind == "block" and not _NAME.fullmatch(words):
        return "content: a block's id has letters, digits, - and _ alone."
    if kind == "heading" and ("\n" in words or "\r" in words):
        return "content: a heading is one line."
    return "content: a field's name is not empty." if kind == "frontmatter" and not words else None


def is_table_rows(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(isinstance(cell, str) for cell in row) for row in value
    )


class InvalidInstruction(InvalidRequest):
    """The instruction does not say what to do: a field is missing, of the wrong kind, or makes no sense with others."""


class PatchFailed(InvalidRequest):
    """The instruction is clear and cannot be applied to this note: no table, no list, nothing to move below itself."""


class NoSuchTarget(NotFound):
    """The note has no such heading, block or field."""


class ContentExists(Conflict):
    """The target has the content already, and the caller wants it once."""


class FieldExists(Conflict):
    """The frontmatter has a field of the new name already."""


class VersionMismatch(PreconditionFailed):
    """The note is not in the state that the instruction was made for."""
