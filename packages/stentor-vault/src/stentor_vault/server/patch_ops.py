"""What a request wants done to a note, as a function from its text to its text: both formats of edits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request

from stentor_vault import jsontext
from stentor_vault.errors import InvalidRequest
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
_OLD_SCOPES = ("content", "marker", "markerAndContent")


def parse_patch(request: Request, body: bytes, target: NoteTarget | None) -> TextPatch:
    """Of a PATCH. A target stands in the path, in the headers or in the body, and in one of them alone."""
    by_headers, named = has_target_header(request), get_content_type(request) == INSTRUCTION
    if sum((target is not None, by_headers, named)) > 1:
        raise VaultApiError(
            errors.AMBIGUOUS_TARGET, "The target is named twice: by the path, the headers or the body; use one."
        )
    if get_patch_version(request) == 1:
        if target is not None:
            raise VaultApiError(
                errors.BAD_VERSION, "Targets in the path are of format 2; leave Markdown-Patch-Version out."
            )
        return parse_legacy_patch(request, body, request.headers.get("operation", ""))
    if target is not None:
        return _raw_order(request, body, target)
    if by_headers:
        if request.headers.get("markdown-patch-version") != "2":
            raise VaultApiError(errors.NO_VERSION, "Target headers of a PATCH need Markdown-Patch-Version: 1 or 2.")
        return _raw_order(request, body, _header_target(request))
    return _instructed(request, body)


def parse_part_write(request: Request, body: bytes, target: NoteTarget, operation: str) -> TextPatch:
    """Of a PUT or POST to a part of a note, which the path names."""
    if has_target_header(request):
        raise VaultApiError(errors.AMBIGUOUS_TARGET, "The target is named by the path and by headers; use one.")
    if get_patch_version(request) == 1:
        return _old_order(request, body, operation, target.kind, target.legacy_target)
    if any(name in request.headers for name in ("target-scope", *LEGACY_HEADERS)):
        raise VaultApiError(errors.LEGACY_TARGET, "A target in the path takes no headers of format 1.")
    fields: dict[str, Any] = {"targetType": target.kind, "target": target.instruction_target, "operation": operation}
    value = _payload(request, body, (MARKDOWN, JSON))
    is_value = target.kind == "frontmatter" or get_content_type(request) == JSON
    fields["value" if is_value else "content"] = value
    fields["createTargetIfMissing"] = operation == "replace" or is_true_header(request, "create-target-if-missing")
    fields["rejectIfContentPreexists"] = is_true_header(request, "reject-if-content-preexists")
    return _order(fields)


def parse_legacy_patch(request: Request, body: bytes, operation: str) -> TextPatch:
    """Of format 1, by headers. Its failures are all one code."""
    if not has_target_header(request) or not request.headers.get("target-type"):
        raise VaultApiError(errors.NO_TARGET_TYPE, "The header Target-Type is missing.")
    kind = request.headers["target-type"]
    _one_of("Target-Type", kind, TARGET_KINDS, errors.BAD_TARGET_TYPE)
    between = unquote(request.headers.get("target-delimiter") or "::")
    return _old_order(request, body, operation, kind, (decode_header(request, "target"), between))


def _old_order(request: Request, body: bytes, operation: str, kind: str, target: tuple[str, str]) -> TextPatch:
    scope = request.headers.get("target-scope") or "content"
    if not operation:
        raise VaultApiError(errors.NO_OPERATION, "The header Operation is missing.")
    _one_of("Operation", operation, OPERATIONS[:3], errors.BAD_OPERATION)
    _one_of("Target-Scope", scope, _OLD_SCOPES[:1] if kind == "frontmatter" else _OLD_SCOPES, errors.BAD_SCOPE)
    wanted = legacy.LegacyEdit(
        operation,
        kind,
        target[0],
        _payload(request, body, (MARKDOWN, JSON)),
        get_content_type(request) == JSON,
        target[1],
        scope,
        is_true_header(request, "create-target-if-missing") or request.method == "PUT",
        is_true_header(request, "reject-if-content-preexists")
        or request.headers.get("apply-if-content-preexists", "").lower() == "false",
        is_true_header(request, "trim-target-whitespace"),
    )
    return lambda present: PatchResult(_old(present, wanted))


def _old(present: str, wanted: legacy.LegacyEdit) -> str:
    try:
        return legacy.apply_edit(present, wanted)
    except (NoSuchTarget, ContentExists) as error:
        raise PatchFailed(error.message) from None


def _instructed(request: Request, body: bytes) -> TextPatch:
    """The body is the whole instruction."""
    kind = get_content_type(request)
    given = decode_json(body) if kind in (JSON, INSTRUCTION) else None if kind else _json_or_none(body)
    if not isinstance(given, dict):
        raise VaultApiError(
            errors.BAD_INSTRUCTION,
            "A PATCH is an instruction in its body, a JSON object sent as application/json; or its target stands in "
            "the path, or in headers with Markdown-Patch-Version.",
        )
    return _order(given)


def _json_or_none(body: bytes) -> Any:
    try:
        return jsontext.decode(body)
    except InvalidRequest:
        return None


def _order(fields: Mapping[str, Any]) -> TextPatch:
    wanted = parse_instruction(fields)
    return lambda present: note_parts.apply_instruction(present, wanted)


def _raw_order(request: Request, body: bytes, target: NoteTarget) -> TextPatch:
    """Everything but the payload stands in headers, so that Markdown need not be put into JSON."""
    if any(name in request.headers for name in LEGACY_HEADERS):
        raise VaultApiError(
            errors.NO_VERSION, "Target-Delimiter and Trim-Target-Whitespace are of Markdown-Patch-Version 1."
        )
    operation, scope = request.headers.get("operation", ""), request.headers.get("target-scope")
    if not operation:
        raise VaultApiError(errors.NO_OPERATION, "The header Operation is missing.")
    _one_of("Operation", operation, OPERATIONS, errors.BAD_OPERATION)
    fields: dict[str, Any] = {"targetType": target.kind, "target": target.instruction_target, "operation": operation}
    if scope is not None:
        _one_of("Target-Scope", scope, TARGET_SCOPES, errors.BAD_SCOPE)
        fields["scope"] = scope
    fields |= _destination(request) | _within(request)
    fields["createTargetIfMissing"] = is_true_header(request, "create-target-if-missing")
    fields["rejectIfContentPreexists"] = is_true_header(request, "reject-if-content-preexists")
    if body:
        kind = get_content_type(request)
        fields["value" if kind == JSON else "content"] = _payload(request, body, (JSON,), texts=True)
    return _order(fields)


def _payload(request: Request, body: bytes, kinds: tuple[str, ...], *, texts: bool = False) -> Any:
    kind = get_content_type(request)
    if not (kind in kinds or (texts and kind.startswith("text/"))):
        raise VaultApiError(errors.BAD_CONTENT_TYPE, "The Content-Type is text/markdown or application/json.")
    return decode_json(body) if kind == JSON else decode_text(body)


def _one_of(name: str, given: str, known: tuple[str, ...], code: int) -> None:
    if given not in known:
        raise VaultApiError(code, f"The header {name} is one of {', '.join(known)}, not {given[:40]!r}.")


def _destination(request: Request) -> dict[str, Any]:
    if "destination" not in request.headers:
        return {}
    try:
        return {"destination": jsontext.decode(unquote(request.headers["destination"], errors="strict").encode())}
    except (UnicodeDecodeError, InvalidRequest):
        raise VaultApiError(
            errors.BAD_DESTINATION, "The header Destination of a PATCH is percent-encoded JSON."
        ) from None


def _within(request: Request) -> dict[str, Any]:
    given = request.headers.get("within")
    if given is None:
        return {}
    digits = given.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise VaultApiError(errors.BAD_WITHIN, "The header Within is a number: 0 for the first block, -1 for the last.")
    return {"within": int(given)}


def _header_target(request: Request) -> NoteTarget:
    """A heading is a list of names or null as percent-encoded JSON; a block or field is its name, encoded."""
    kind, given = request.headers.get("target-type", ""), decode_header(request, "target")
    if not kind:
        raise VaultApiError(errors.NO_TARGET_TYPE, "The header Target-Type is missing.")
    _one_of("Target-Type", kind, TARGET_KINDS, errors.BAD_TARGET_TYPE)
    if not given:
        raise VaultApiError(errors.NO_TARGET, "The header Target is missing.")
    if kind != "heading":
        return NoteTarget(kind, (given,))
    path = _json_or_none(given.encode()) if given.strip() != "null" else []
    if not isinstance(path, list) or not all(isinstance(name, str) for name in path):
        raise VaultApiError(errors.BAD_TARGET, "The Target of a heading is a list of headings as percent-encoded JSON.")
    return NoteTarget(kind, tuple(path))
