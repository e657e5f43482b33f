"""Parse requests that edit a part of a note, in both patch formats, into a function from text to text.

The edits are in `patching`; `write_handlers` applies the function to the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request

from stentor_vault import jsontext
from stentor_vault.errors import InvalidRequest
from stentor_vault.jsontext import JsonObject
from stentor_vault.server import errors
from stentor_vault.server.errors import VaultApiError
from stentor_vault.server.patching import legacy, note_parts
from stentor_vault.server.patching.instruction import (
    OPERATIONS,
    TARGET_KINDS,
    TARGET_SCOPES,
    ContentExists,
    NoSuchTarget,
    PatchFailed,
    parse_instruction,
)
from stentor_vault.server.patching.section_edits import PatchResult
from stentor_vault.server.request_parsing import (
    INSTRUCTION,
    JSON,
    MARKDOWN,
    decode_header,
    decode_json,
    decode_text,
    get_content_type,
    get_patch_version,
    has_target_header,
    is_true_header,
)
from stentor_vault.server.targets import NoteTarget

TextPatch = Callable[[str], PatchResult]
LEGACY_HEADERS = ("target-delimiter", "trim-target-whitespace")
_LEGACY_SCOPES = ("content", "marker", "markerAndContent")


def parse_patch(request: Request, body: bytes, target: NoteTarget | None) -> TextPatch:
    """Parse a PATCH; its target is in exactly one place: the path, the headers or the body. Raises VaultApiError."""
    in_headers, in_body = has_target_header(request), get_content_type(request) == INSTRUCTION
    if sum((target is not None, in_headers, in_body)) > 1:
        raise VaultApiError(
            errors.AMBIGUOUS_TARGET,
            "The target is given twice. Use only one of the path, the headers and the body.",
        )
    if get_patch_version(request) == 1:
        if target is not None:
            raise VaultApiError(
                errors.BAD_VERSION, "A target in the path requires format 2. Remove the header Markdown-Patch-Version."
            )
        return parse_legacy_patch(request, body, request.headers.get("operation", ""))
    if target is not None:
        return _parse_headers(request, body, target)
    if in_headers:
        if request.headers.get("markdown-patch-version") != "2":
            raise VaultApiError(
                errors.NO_VERSION, "The target headers of a PATCH require Markdown-Patch-Version: 1 or 2."
            )
        return _parse_headers(request, body, _parse_header_target(request))
    return _parse_instruction_body(request, body)


def parse_part_write(request: Request, body: bytes, target: NoteTarget, operation: str) -> TextPatch:
    """Parse a PUT or POST to a part of a note that the path names. Raises VaultApiError, InvalidInstruction."""
    if has_target_header(request):
        raise VaultApiError(errors.AMBIGUOUS_TARGET, "The target is given in the path and in headers. Use only one.")
    if get_patch_version(request) == 1:
        return _create_legacy(request, body, operation, target.kind, target.legacy_target)
    if any(name in request.headers for name in ("target-scope", *LEGACY_HEADERS)):
        raise VaultApiError(errors.LEGACY_TARGET, "Headers of format 1 cannot be used with a target in the path.")
    fields: JsonObject = {"targetType": target.kind, "target": target.instruction_target, "operation": operation}
    value = _decode_payload(request, body, (MARKDOWN, JSON))
    is_value = target.kind == "frontmatter" or get_content_type(request) == JSON
    fields["value" if is_value else "content"] = value
    fields["createTargetIfMissing"] = operation == "replace" or is_true_header(request, "create-target-if-missing")
    fields["rejectIfContentPreexists"] = is_true_header(request, "reject-if-content-preexists")
    return _create_patch(fields)


def parse_legacy_patch(request: Request, body: bytes, operation: str) -> TextPatch:
    """Parse an edit of format 1, which is in headers. Raises VaultApiError; the edit fails with PatchFailed only."""
    if not has_target_header(request) or not request.headers.get("target-type"):
        raise VaultApiError(errors.NO_TARGET_TYPE, "The header Target-Type is missing.")
    kind = request.headers["target-type"]
    _require_known("Target-Type", kind, TARGET_KINDS, errors.BAD_TARGET_TYPE)
    delimiter = unquote(request.headers.get("target-delimiter") or "::")
    return _create_legacy(request, body, operation, kind, (decode_header(request, "target"), delimiter))


def _create_legacy(request: Request, body: bytes, operation: str, kind: str, target: tuple[str, str]) -> TextPatch:
    scope = request.headers.get("target-scope") or "content"
    if not operation:
        raise VaultApiError(errors.NO_OPERATION, "The header Operation is missing.")
    _require_known("Operation", operation, OPERATIONS[:3], errors.BAD_OPERATION)
    _require_known(
        "Target-Scope", scope, _LEGACY_SCOPES[:1] if kind == "frontmatter" else _LEGACY_SCOPES, errors.BAD_SCOPE
    )
    edit = legacy.LegacyEdit(
        operation,
        kind,
        target[0],
        _decode_payload(request, body, (MARKDOWN, JSON)),
        get_content_type(request) == JSON,
        target[1],
        scope,
        is_true_header(request, "create-target-if-missing") or request.method == "PUT",
        is_true_header(request, "reject-if-content-preexists")
        or request.headers.get("apply-if-content-preexists", "").lower() == "false",
        is_true_header(request, "trim-target-whitespace"),
    )

    def patch(text: str) -> PatchResult:
        try:
            return PatchResult(legacy.apply_edit(text, edit))
        except (NoSuchTarget, ContentExists) as error:
            raise PatchFailed(error.message) from None  # format 1 has one code for all failures

    return patch


def _parse_instruction_body(request: Request, body: bytes) -> TextPatch:
    """Parse a PATCH whose body is the whole instruction."""
    kind = get_content_type(request)
    # Without a Content-Type, try JSON; with another one, the body is not an instruction.
    instruction = decode_json(body) if kind in (JSON, INSTRUCTION) else None if kind else _decode_json_or_none(body)
    if not isinstance(instruction, dict):
        raise VaultApiError(
            errors.BAD_INSTRUCTION,
            "The body of a PATCH must be an instruction: a JSON object sent as application/json. Or give the target in "
            "the path, or in headers with Markdown-Patch-Version.",
        )
    return _create_patch(instruction)


def _decode_json_or_none(body: bytes) -> Any:
    try:
        return jsontext.decode(body)
    except InvalidRequest:
        return None


def _create_patch(fields: Mapping[str, Any]) -> TextPatch:
    instruction = parse_instruction(fields)
    return lambda text: note_parts.apply_instruction(text, instruction)


def _parse_headers(request: Request, body: bytes, target: NoteTarget) -> TextPatch:
    """Parse a PATCH of format 2 with everything but the payload in headers, so that Markdown need not be in JSON."""
    if any(name in request.headers for name in LEGACY_HEADERS):
        raise VaultApiError(
            errors.NO_VERSION, "Target-Delimiter and Trim-Target-Whitespace require Markdown-Patch-Version: 1."
        )
    operation, scope = request.headers.get("operation", ""), request.headers.get("target-scope")
    if not operation:
        raise VaultApiError(errors.NO_OPERATION, "The header Operation is missing.")
    _require_known("Operation", operation, OPERATIONS, errors.BAD_OPERATION)
    fields: JsonObject = {"targetType": target.kind, "target": target.instruction_target, "operation": operation}
    if scope is not None:
        _require_known("Target-Scope", scope, TARGET_SCOPES, errors.BAD_SCOPE)
        fields["scope"] = scope
    fields |= _parse_destination(request) | _parse_within(request)
    fields["createTargetIfMissing"] = is_true_header(request, "create-target-if-missing")
    fields["rejectIfContentPreexists"] = is_true_header(request, "reject-if-content-preexists")
    if body:
        kind = get_content_type(request)
        fields["value" if kind == JSON else "content"] = _decode_payload(request, body, (JSON,), any_text=True)
    return _create_patch(fields)


def _decode_payload(request: Request, body: bytes, kinds: tuple[str, ...], *, any_text: bool = False) -> Any:
    kind = get_content_type(request)
    if not (kind in kinds or (any_text and kind.startswith("text/"))):
        raise VaultApiError(errors.BAD_CONTENT_TYPE, "The Content-Type must be text/markdown or application/json.")
    return decode_json(body) if kind == JSON else decode_text(body)


def _require_known(name: str, value: str, known: tuple[str, ...], code: int) -> None:
    if value not in known:
        raise VaultApiError(code, f"The header {name} must be one of {', '.join(known)}, not {value[:40]!r}.")


def _parse_destination(request: Request) -> JsonObject:
    if "destination" not in request.headers:
        return {}
    try:
        return {"destination": jsontext.decode(unquote(request.headers["destination"], errors="strict").encode())}
    except (UnicodeDecodeError, InvalidRequest):
        raise VaultApiError(
            errors.BAD_DESTINATION, "The header Destination of a PATCH must be percent-encoded JSON."
        ) from None


def _parse_within(request: Request) -> JsonObject:
    value = request.headers.get("within")
    if value is None:
        return {}
    digits = value.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise VaultApiError(
            errors.BAD_WITHIN, "The header Within must be a number: 0 for the first block, -1 for the last."
        )
    return {"within": int(value)}


def _parse_header_target(request: Request) -> NoteTarget:
    """Parse Target: a heading is a list of names or null as percent-encoded JSON, a block or field its encoded name."""
    kind, name = request.headers.get("target-type", ""), decode_header(request, "target")
    if not kind:
        raise VaultApiError(errors.NO_TARGET_TYPE, "The header Target-Type is missing.")
    _require_known("Target-Type", kind, TARGET_KINDS, errors.BAD_TARGET_TYPE)
    if not name:
        raise VaultApiError(errors.NO_TARGET, "The header Target is missing.")
    if kind != "heading":
        return NoteTarget(kind, (name,))
    path = _decode_json_or_none(name.encode()) if name.strip() != "null" else []
    if not isinstance(path, list) or not all(isinstance(heading, str) for heading in path):
        raise VaultApiError(
            errors.BAD_TARGET, "The Target of a heading must be a list of headings as percent-encoded JSON."
        )
    return NoteTarget(kind, tuple(path))
