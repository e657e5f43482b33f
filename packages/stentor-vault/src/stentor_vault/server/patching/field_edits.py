"""Edits of single frontmatter fields; the others keep every character. Pure."""

from __future__ import annotations

from typing import Any

from stentor_vault.jsontext import JsonObject
from stentor_vault.notes import frontmatter
from stentor_vault.server.patching.instruction import (
    FieldExists,
    InvalidInstruction,
    NoSuchTarget,
    PatchFailed,
    PatchInstruction,
)


def patch_field(text: str, instruction: PatchInstruction) -> str:
    """Apply an instruction to a field. Raises NoSuchTarget, PatchFailed, FieldExists, InvalidFrontmatter."""
    current = frontmatter.read(text)
    if instruction.name not in current:
        return frontmatter.edit(text, _new_fields(current, instruction))
    if instruction.scope == "marker":
        if instruction.text != instruction.name and instruction.text in current:
            raise FieldExists(f"The frontmatter already has a field {instruction.text!r}.")
        return frontmatter.rename_key(text, instruction.name, instruction.text)
    if instruction.operation == "delete":
        if instruction.scope == "content":
            return frontmatter.edit(text, {instruction.name: None})
        return _delete_field(text, instruction.name)
    if instruction.scope == "markerAndContent":
        if instruction.operation == "replace":
            return _replace_field(text, current, instruction)
        fields = _require_fields(current, instruction)
        return frontmatter.insert_keys(text, instruction.name, fields, after=instruction.operation == "append")
    return frontmatter.edit(
        text, {instruction.name: merge_values(current[instruction.name], instruction.value, instruction.operation)}
    )


def _delete_field(text: str, name: str) -> str:
    """Delete a field; if no line is left in the frontmatter, delete the whole frontmatter."""
    edited = frontmatter.edit(text, {}, frozenset([name]))
    parts = frontmatter.split(edited)
    if parts.block is None or parts.block.strip():
        return edited
    bom = frontmatter.BOM if edited.startswith(frontmatter.BOM) else ""
    return frontmatter.escape_body(bom + parts.body)


def _new_fields(current: JsonObject, instruction: PatchInstruction) -> JsonObject:
    """Return the fields that an instruction for a missing field creates. Raises NoSuchTarget, PatchFailed."""
    is_content = instruction.scope == "content" and instruction.operation != "delete"
    is_full = (instruction.scope, instruction.operation) == ("markerAndContent", "replace")
    if not (instruction.create_target_if_missing and (is_content or is_full)):
        raise NoSuchTarget(f"The note has no frontmatter field {instruction.name!r}.")
    if instruction.operation != "replace" and not isinstance(instruction.value, (list, dict, str)):
        raise PatchFailed(
            "A new field can be appended or prepended only if its value is a list, an object or a string."
        )
    return _require_fields(current, instruction) if is_full else {instruction.name: instruction.value}


def merge_values(current: Any, value: Any, operation: str) -> Any:
    """Concatenate lists and strings, merge objects. Raises PatchFailed for values of different types."""
    if operation == "replace":
        return value
    first, second = (current, value) if operation == "append" else (value, current)
    if isinstance(first, dict) and isinstance(second, dict):
        return {**first, **second}
    joined: Any = first  # Any: the type checker does not see that both have the same type
    if isinstance(first, (list, str)) and type(first) is type(second):
        return joined + second
    raise PatchFailed(
        f"A value cannot be {operation}ed to a value of another type. Both must be lists, objects or strings."
    )


def _replace_field(text: str, current: JsonObject, instruction: PatchInstruction) -> str:
    """Replace a field by one or more fields, so that what a read with this scope returns can be written back."""
    others = {name: value for name, value in current.items() if name != instruction.name}
    fields = _require_fields(others, instruction)
    first = instruction.name if instruction.name in fields else next(iter(fields))
    # Renamed first, so that the field keeps its place among the others.
    if first != instruction.name:
        text = frontmatter.rename_key(text, instruction.name, first)
    rest = {name: value for name, value in fields.items() if name != first}
    if rest:
        text = frontmatter.insert_keys(text, first, rest, after=True)
    return frontmatter.edit(text, {first: fields[first]})


def _require_fields(current: JsonObject, instruction: PatchInstruction) -> JsonObject:
    """Return the value, an object of fields. Raises InvalidInstruction, FieldExists for a name that is taken."""
    if not isinstance(instruction.value, dict) or not instruction.value:
        raise InvalidInstruction("value: with the scope markerAndContent, must be an object of field names and values.")
    if taken := sorted(set(current) & set(instruction.value)):
        raise FieldExists(f"The frontmatter already has a field {taken[0]!r}.")
    return instruction.value
