"""Edits of single frontmatter fields; all others keep every sign. Pure."""

from __future__ import annotations

from typing import Any

from stentor_vault.notes import frontmatter
from stentor_vault.server.patching.instruction import (
    FieldExists,
    InvalidInstruction,
    NoSuchTarget,
    PatchFailed,
    PatchInstruction,
)


def patch_field(text: str, wanted: PatchInstruction) -> str:
    """Raises NoSuchTarget, PatchFailed, FieldTaken, BadFrontmatter."""
    known = frontmatter.read(text)
    if wanted.name not in known:
        return frontmatter.edit(text, _made(known, wanted))
    if wanted.scope == "marker":
        if wanted.text != wanted.name and wanted.text in known:
            raise FieldExists(f"The frontmatter has a field {wanted.text!r} already.")
        return frontmatter.rename_key(text, wanted.name, wanted.text)
    if wanted.operation == "delete":
        if wanted.scope == "content":
            return frontmatter.edit(text, {wanted.name: None})
        return _without(text, wanted.name)
    if wanted.scope == "markerAndContent":
        return (_instead if wanted.operation == "replace" else _beside)(text, known, wanted)
    return frontmatter.edit(text, {wanted.name: merge_values(known[wanted.name], wanted.value, wanted.operation)})


def _without(text: str, name: str) -> str:
    """With its last field the whole frontmatter goes."""
    edited = frontmatter.edit(text, {}, frozenset([name]))
    if frontmatter.read(edited):
        return edited
    bom = frontmatter.BOM if edited.startswith(frontmatter.BOM) else ""
    return bom + frontmatter.split(edited).body


def _made(known: dict[str, Any], wanted: PatchInstruction) -> dict[str, Any]:
    """The fields that are to be made."""
    content = wanted.scope == "content" and wanted.operation != "delete"
    whole = (wanted.scope, wanted.operation) == ("markerAndContent", "replace")
    if not (wanted.create_target_if_missing and (content or whole)):
        raise NoSuchTarget(f"The note has no frontmatter field {wanted.name!r}.")
    if wanted.operation != "replace" and not isinstance(wanted.value, list | dict | str):
        raise PatchFailed("Only lists, objects and texts can be added to.")
    return _named(known, wanted) if whole else {wanted.name: wanted.value}


def merge_values(present: Any, value: Any, operation: str) -> Any:
    """Lists and texts are joined, objects united. Raises PatchFailed."""
    if operation == "replace":
        return value
    first, second = (present, value) if operation == "append" else (value, present)
    if isinstance(first, dict) and isinstance(second, dict):
        return {**first, **second}
    both: Any = first  # what is known of one is not known of both together
    if isinstance(first, list | str) and type(first) is type(second):
        return both + second
    raise PatchFailed(f"A value cannot be {operation}ed to one of another kind; two lists, objects or texts can.")


def _beside(text: str, known: dict[str, Any], wanted: PatchInstruction) -> str:
    return frontmatter.insert_keys(text, wanted.name, _named(known, wanted), after=wanted.operation == "append")


def _instead(text: str, known: dict[str, Any], wanted: PatchInstruction) -> str:
    """Names and values in the place of one field: what a read with this scope answers can be written back."""
    others = {name: value for name, value in known.items() if name != wanted.name}
    fields = _named(others, wanted)
    first = wanted.name if wanted.name in fields else next(iter(fields))
    if first != wanted.name:
        text = frontmatter.rename_key(text, wanted.name, first)
    rest = {name: value for name, value in fields.items() if name != first}
    if rest:
        text = frontmatter.insert_keys(text, first, rest, after=True)
    return frontmatter.edit(text, {first: fields[first]})


def _named(known: dict[str, Any], wanted: PatchInstruction) -> dict[str, Any]:
    """The value as names and values of fields. Raises FieldTaken for a name that is known."""
    if not isinstance(wanted.value, dict) or not wanted.value:
        raise InvalidInstruction("value: with markerAndContent it is an object of names and values.")
    if taken := sorted(set(known) & set(wanted.value)):
        raise FieldExists(f"The frontmatter has a field {taken[0]!r} already.")
    return wanted.value
