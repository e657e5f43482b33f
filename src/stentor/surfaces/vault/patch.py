"""PATCH of frontmatter, in the forms that versions 3 to 6 of the plugin take. Pure but for nothing.

Targets other than frontmatter (headings, blocks) are not part of this version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.notes import frontmatter
from stentor.surfaces.vault.errors import BAD_INSTRUCTION, NO_VERSION, NOT_FOUND, NOT_HERE, Refused

OPERATIONS = ("replace", "append", "prepend")
TARGETS = ("frontmatter", "heading", "block")


class Instruction(msgspec.Struct, frozen=True):
    operation: str
    target: str
    value: Any
    create: bool


def instruction_of(headers: Mapping[str, str], body: bytes) -> Instruction:
    """From the headers, or from the body where it is the instruction. Raises Refused."""
    version = headers.get("markdown-patch-version", "")
    if "target-type" in headers and version not in ("1", "2"):
        raise Refused(NO_VERSION, "A PATCH with target headers needs the header Markdown-Patch-Version: 1 or 2.")
    if "target-type" in headers:
        kind, operation = headers["target-type"], headers.get("operation", "")
        create = headers.get("create-target-if-missing", "").lower() == "true"
        return _checked(kind, operation, unquote(headers.get("target", "")), _value(headers, body), create=create)
    given = _json(body)
    if not isinstance(given, dict) or "targetType" not in given:
        raise Refused(BAD_INSTRUCTION, "The PATCH has neither target headers nor an instruction in its body.")
    kind, operation = str(given["targetType"]), str(given.get("operation", ""))
    create = given.get("createTargetIfMissing") is True
    return _checked(kind, operation, str(given.get("target", "")), given.get("value"), create=create)


def applied(text: str, wanted: Instruction) -> str:
    """The note after it. Raises Refused, BadFrontmatter."""
    known = frontmatter.read(text)
    if wanted.target not in known:
        if not wanted.create:
            raise Refused(NOT_FOUND, f"The note has no frontmatter field {wanted.target!r}.")
        return frontmatter.edit(text, {wanted.target: wanted.value})
    return frontmatter.edit(text, {wanted.target: _combined(known[wanted.target], wanted)})


def _combined(present: Any, wanted: Instruction) -> Any:
    if wanted.operation == "replace":
        return wanted.value
    first, second = (present, wanted.value) if wanted.operation == "append" else (wanted.value, present)
    if isinstance(present, list):
        first, second = (part if isinstance(part, list) else [part] for part in (first, second))
    if (isinstance(first, list) and isinstance(second, list)) or (isinstance(first, str) and isinstance(second, str)):
        return first + second  # type: ignore[operator]
    raise Refused(BAD_INSTRUCTION, f"A value cannot be {wanted.operation}ed to one of another kind.")


def _checked(kind: str, operation: str, target: str, value: Any, *, create: bool) -> Instruction:
    if kind not in TARGETS or operation not in OPERATIONS or not target:
        raise Refused(
            BAD_INSTRUCTION, f"Operation is one of {OPERATIONS}, Target-Type one of {TARGETS}, with a Target."
        )
    if kind != "frontmatter":
        raise Refused(NOT_HERE, "Headings and blocks cannot be patched yet; frontmatter can.")
    return Instruction(operation, target, value, create)


def _value(headers: Mapping[str, str], body: bytes) -> Any:
    if headers.get("content-type", "").partition(";")[0].strip() == "application/json":
        return _json(body)
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise Refused(BAD_INSTRUCTION, "The value is no UTF-8 text.") from None


def _json(body: bytes) -> Any:
    try:
        return jsontext.decode(body)
    except InvalidRequest as error:
        raise Refused(BAD_INSTRUCTION, error.message) from None
