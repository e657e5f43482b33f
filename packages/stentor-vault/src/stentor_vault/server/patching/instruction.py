"""Instructions of patch format 2: their fields, their validation, and the errors of edits. Pure.

An instruction has a place in the note (`target`), a part of that place (`scope`), an operation, and a payload in
exactly one of `content`, `value` and `destination`. `note_parts` applies it; `legacy` is format 1. The server maps
the errors to codes. Source: the published documentation of the plugin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from stentor_vault.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed
from stentor_vault.server.patching.outline import REPEAT_MARKER

TargetKind = Literal["heading", "block", "frontmatter"]
PatchOperation = Literal["replace", "prepend", "append", "delete"]
TargetScope = Literal["content", "marker", "markerAndContent", "parent"]
TARGET_KINDS, OPERATIONS = get_args(TargetKind), get_args(PatchOperation)
TARGET_SCOPES = get_args(TargetScope)
_BLOCK_ID = re.compile(r"[A-Za-z0-9_-]+")
# A repeated id is followed by its repeat number, see `outline.make_unique_name`.
_BLOCK_TARGET = re.compile(rf"[A-Za-z0-9_-]+({REPEAT_MARKER}[^\x00-\U000fd3af]+)?")
_WRITES = {"replace", "prepend", "append"}
_ALL_OPERATIONS = {*_WRITES, "delete"}
_ALLOWED_OPERATIONS: dict[str, dict[str, set[str]]] = {
    "heading": {
        "content": _ALL_OPERATIONS,
        "marker": _ALL_OPERATIONS,
        "markerAndContent": _ALL_OPERATIONS,
        "parent": {"replace"},
    },
    "block": {"content": _ALL_OPERATIONS, "marker": {"replace", "delete"}, "markerAndContent": _ALL_OPERATIONS},
    "frontmatter": {"content": _ALL_OPERATIONS, "marker": {"replace"}, "markerAndContent": _ALL_OPERATIONS},
}
_WITHIN_OPERATIONS = {"content": _ALL_OPERATIONS, "markerAndContent": {"prepend", "append"}}
MAX_PATH_DEPTH = 50
"""Maximum headings in a path. Markdown has six levels; a deeper heading that an edit creates is text."""
MAX_CONTENT_CHARS = 1_000_000
"""Maximum characters of `content`, which is parsed for headings."""
_PAYLOAD_FIELDS = ("content", "value", "destination")
HeadingPath = tuple[str, ...]


class InvalidInstruction(InvalidRequest):
    """A field of the instruction is missing, has the wrong type, or contradicts another field."""


class PatchFailed(InvalidRequest):
    """A valid instruction that cannot be applied to this note: rows without a table, a section moved below itself."""


class NoSuchTarget(NotFound):
    """The note has no such heading, block or field."""


class ContentExists(Conflict):
    """The target already has the content, and the request has `rejectIfContentPreexists`."""


class FieldExists(Conflict):
    """The frontmatter already has a field of the new name."""


class VersionMismatch(PreconditionFailed):
    """The note is not in the state for which the instruction was made."""


class SiblingPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position next to the section with this path; exactly one of the two is set."""

    before: HeadingPath | UnsetType | None = UNSET
    after: HeadingPath | UnsetType | None = UNSET


class MoveDestination(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new position of a section: below `parent` (null for the top), as first, as last, or next to a sibling."""

    parent: HeadingPath | None
    place: Literal["first", "last"] | SiblingPlace


class PatchInstruction(msgspec.Struct, frozen=True, rename="camel"):
    """An edit of one target: a heading's path from the top (empty for the whole note), a block's id, a field's name.

    `within` selects one block of the heading's own text, counted from 0, or from the end with -1.
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
        """The content, or empty."""
        return "" if isinstance(self.content, UnsetType) else self.content


def parse_instruction(fields: Mapping[str, Any]) -> PatchInstruction:
    """Parse and validate an instruction. Raises InvalidInstruction, whose message names the field."""
    try:
        instruction = msgspec.convert(dict(fields), PatchInstruction)
    except msgspec.ValidationError as error:
        raise InvalidInstruction(f"Invalid instruction: {error}.") from None
    for problem in (
        _check_target(instruction),
        _check_operation(instruction),
        _check_within(instruction),
        _check_payload_field(instruction),
        _check_payload(instruction),
    ):
        if problem:
            raise InvalidInstruction(problem)
    return instruction


def _check_target(instruction: PatchInstruction) -> str | None:
    if instruction.target_type == "heading":
        if isinstance(instruction.target, str):
            return "target: for a heading, must be a list of headings from the top down, or null for the whole note."
        return (
            f"target: must have at most {MAX_PATH_DEPTH} headings." if len(instruction.path) > MAX_PATH_DEPTH else None
        )
    if not isinstance(instruction.target, str) or not instruction.target:
        return f"target: for a {instruction.target_type}, must be its name."
    if instruction.target_type == "block" and not _BLOCK_TARGET.fullmatch(instruction.target):
        return "target: a block's id has only letters a-z, digits, - and _."
    return None


def _check_operation(instruction: PatchInstruction) -> str | None:
    operation, kind, scope = instruction.operation, instruction.target_type, instruction.scope
    if operation in _ALLOWED_OPERATIONS[kind].get(scope, ()):
        return None
    return f"operation: {operation} is not supported for the scope {scope} of a {kind}."


def _check_within(instruction: PatchInstruction) -> str | None:
    if instruction.within is None:
        return None
    if instruction.target_type != "heading" or instruction.create_target_if_missing:
        return "within: only for existing headings, without createTargetIfMissing."
    if instruction.operation not in _WITHIN_OPERATIONS.get(instruction.scope, ()):
        return f"within: {instruction.operation} is not supported for the scope {instruction.scope} of a single block."
    return None


def _check_payload_field(instruction: PatchInstruction) -> str | None:
    given = [name for name in _PAYLOAD_FIELDS if getattr(instruction, name) is not UNSET]
    expected = _payload_fields(instruction)
    if not expected:
        return f"{given[0]}: must not be set for {instruction.operation}." if given else None
    if len(given) == 1 and given[0] in expected:
        return None
    names = " or ".join(expected)
    return f"{given[0] if given else expected[0]}: the payload must be in exactly one field: {names}."


def _payload_fields(instruction: PatchInstruction) -> tuple[str, ...]:
    if instruction.operation == "delete":
        return ()
    if instruction.scope == "parent":
        return ("destination",)
    if instruction.target_type == "frontmatter":
        return ("content",) if instruction.scope == "marker" else ("value",)
    return (
        ("content", "value") if (instruction.target_type, instruction.scope) == ("block", "content") else ("content",)
    )


def _check_payload(instruction: PatchInstruction) -> str | None:
    """Check a payload that becomes a name, a heading or the rows of a table."""
    if len(instruction.text) > MAX_CONTENT_CHARS:
        return f"content: must have at most {MAX_CONTENT_CHARS} characters."
    if isinstance(instruction.destination, MoveDestination) and isinstance(instruction.destination.place, SiblingPlace):
        place = instruction.destination.place
        if (place.before is UNSET) == (place.after is UNSET):
            return "destination.place: must have exactly one of before and after."
    if instruction.scope == "marker" and instruction.operation != "delete":
        return _check_marker(instruction.target_type, instruction.text)
    if instruction.target_type == "block" and instruction.value is not UNSET and not is_table_rows(instruction.value):
        return "value: for a block, must be rows of a table, each a list of strings."
    return None


def _check_marker(kind: str, text: str) -> str | None:
    if kind == "block" and not _BLOCK_ID.fullmatch(text):
        return "content: a block's id has only letters a-z, digits, - and _."
    if kind == "heading" and ("\n" in text or "\r" in text):
        return "content: a heading must be one line."
    return "content: a field's name must not be empty." if kind == "frontmatter" and not text else None


def is_table_rows(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(isinstance(cell, str) for cell in row) for row in value
    )
