"""Parsing of requests: path, body, headers, and the preconditions `If-Match` and `If-None-Match` (RFC 9110, 13.1).

Everything here raises VaultApiError for invalid input. Targets are in `targets`, patches in `patch_ops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from starlette.requests import Request

from stentor_vault import jsontext
from stentor_vault.errors import InvalidRequest
from stentor_vault.notes.model import content_hash
from stentor_vault.notes.paths import compose_path
from stentor_vault.server.entity_tags import InvalidEntityTags, parse_entity_tags
from stentor_vault.server.errors import (
    BAD_CONDITION,
    BAD_CONTENT,
    BAD_INSTRUCTION,
    BAD_TARGET,
    BAD_VERSION,
    ENCODED_BODY,
    IS_FOLDER,
    NOT_FOUND,
    OUTSIDE_VAULT,
    PRECONDITION_FAILED,
    TOO_LARGE,
    VaultApiError,
)

JSON, MARKDOWN = "application/json", "text/markdown"
INSTRUCTION = "application/vnd.olrapi.patch-instruction+json"
MARKDOWN_TEXT = "text/markdown; charset=utf-8"
MAX_CHARACTERS = 1_000_000
"""Limit of a note whose parts are read or edited: parsing it takes time."""


def split_request_path(request: Request) -> list[str]:
    """Return the decoded segments of the path; an encoded slash stays inside its segment."""
    # The raw path: in `scope["path"]` an encoded slash and a separator look the same.
    raw = bytes(request.scope.get("raw_path") or request.scope["path"].encode()).partition(b"?")[0]
    return [decode_segment(part) for part in raw.decode("latin-1").removeprefix("/").split("/")]


def require_inside_vault(parts: list[str]) -> None:
    """Raise VaultApiError for an absolute path and for path traversal, with encoded slashes too."""
    depth = 0
    for name in "/".join(parts).replace("\\", "/").split("/"):
        depth += -1 if name.strip(" ") == ".." else name not in ("", ".")
        if depth < 0:
            raise VaultApiError(OUTSIDE_VAULT, "The path is outside the vault.")
    if parts[0].startswith(("/", "\\")) or (parts[0] == "" and len(parts) > 1):
        raise VaultApiError(OUTSIDE_VAULT, "The path is absolute; begin it with the name of a note or folder.")


def decode_segment(part: str) -> str:
    """Percent-decode a path segment once. Raises VaultApiError if it is not UTF-8."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise VaultApiError(OUTSIDE_VAULT, "The path is not UTF-8.") from None


def join_path(parts: list[str]) -> str:
    """Join segments to a path of the vault, in NFC. Raises VaultApiError (404) for a segment with a slash in it."""
    if any("/" in part for part in parts):
        raise VaultApiError(NOT_FOUND, "Not found: the name of a file or folder cannot contain a slash.")
    return compose_path("/".join(parts))


def require_file_path(parts: list[str]) -> str:
    """Return the path of a file. Raises VaultApiError if the path ends in a slash."""
    if parts[-1] == "":
        raise VaultApiError(IS_FOLDER, "The path ends in a slash, so it names a folder; name a file.")
    return join_path(parts)


def encode_path(path: str) -> str:
    """Return a path of the vault percent-encoded for a URL, without the prefix `/vault/`."""
    return "/".join(quote(part, safe="!'()*~") for part in path.split("/"))


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body. Raises VaultApiError if it is larger than `max_bytes`, or compressed."""
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        # Stored as it is, it would be a note that nobody can read.
        raise VaultApiError(ENCODED_BODY, "A body with Content-Encoding is not decoded: send it uncompressed.")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            # The rest of the body is not read, so the connection cannot be used again.
            raise VaultApiError(TOO_LARGE, f"The body is larger than {max_bytes} bytes.", {"Connection": "close"})
        chunks.append(chunk)
    return b"".join(chunks)


def get_content_type(request: Request) -> str:
    """Return the media type in lower case without parameters, "" without the header."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def decode_text(body: bytes) -> str:
    """Decode a body. Raises VaultApiError if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise VaultApiError(BAD_CONTENT, "The body is not UTF-8 text.") from None


def decode_note(path: str, content: bytes) -> str:
    """Decode a note for access to its parts. Raises VaultApiError if it is not UTF-8 or too long."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise VaultApiError(BAD_INSTRUCTION, f"{path!r} is not UTF-8 text, so it has no parts.") from None
    if len(text) > MAX_CHARACTERS:
        raise VaultApiError(
            TOO_LARGE, f"{path!r} has more than {MAX_CHARACTERS} characters; read or write the whole file."
        )
    return text


def decode_json(body: bytes) -> Any:
    """Decode a JSON body. Raises VaultApiError if it is not valid."""
    try:
        return jsontext.decode(body)
    except InvalidRequest as error:
        raise VaultApiError(BAD_CONTENT, error.message) from None


def is_true_header(request: Request, name: str) -> bool:
    """Return whether the header's value is `true`."""
    return request.headers.get(name, "").strip().lower() == "true"


def get_patch_version(request: Request) -> int:
    """Return the patch format of the request: 1 or 2; 2 without the header."""
    version = request.headers.get("markdown-patch-version")
    if version not in (None, "1", "2"):
        raise VaultApiError(BAD_VERSION, "The header Markdown-Patch-Version must be 1 or 2.")
    return int(version or 2)


def decode_header(request: Request, name: str) -> str:
    """Return the value of a percent-encoded header, "" without it. Raises VaultApiError if it is not UTF-8."""
    try:
        return unquote(request.headers.get(name, ""), errors="strict")
    except UnicodeDecodeError:
        raise VaultApiError(BAD_TARGET, f"The header {name} is not percent-encoded UTF-8.") from None


def has_target_header(request: Request) -> bool:
    """Return whether a header names a target."""
    return bool(request.headers.get("target-type") or request.headers.get("target"))


class Preconditions(msgspec.Struct, frozen=True):
    """The versions in `If-Match` and `If-None-Match`, `*` for any version; None without the header."""

    match: frozenset[str] | None = None
    none_match: frozenset[str] | None = None

    def require(self, path: str, content: bytes | None) -> None:
        """Raise VaultApiError (412) unless the current content, None for no file, has an expected version."""
        version = None if content is None else content_hash(content)
        if self.match is not None and not _matches(self.match, version):
            raise _precondition_error(path, version)
        if self.none_match is not None and _matches(self.none_match, version):
            raise _precondition_error(path, version)


NO_CONDITIONS = Preconditions()


def parse_preconditions(headers: Mapping[str, str]) -> Preconditions:
    """Parse both headers; a tag may be without quotes. Raises VaultApiError for an invalid list of tags."""
    return Preconditions(_parse_tags(headers, "if-match"), _parse_tags(headers, "if-none-match"))


def format_etag(version: str) -> str:
    """Return the strong entity tag of a version."""
    return f'"{version}"'


def _matches(expected: frozenset[str], version: str | None) -> bool:
    return version is not None and ("*" in expected or version in expected)


def _precondition_error(path: str, version: str | None) -> VaultApiError:
    state = "does not exist" if version is None else f"is now at version {version}"
    return VaultApiError(PRECONDITION_FAILED, f"{path!r} {state}; read it again and retry.")


def _parse_tags(headers: Mapping[str, str], name: str) -> frozenset[str] | None:
    value = headers.get(name)
    try:
        # RFC 9110: If-Match compares strongly, so weak tags count for If-None-Match only.
        return None if value is None else parse_entity_tags(value, weak=name != "if-match")
    except InvalidEntityTags as error:
        raise VaultApiError(BAD_CONDITION, f"The header {name} {error}.") from None
