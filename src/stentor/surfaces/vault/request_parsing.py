"""What a request says: its path, its body, its kinds of content.

`If-Match` and `If-None-Match`: whether a write may go on for what is there now. Pure. Source: RFC 9110, 13.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from starlette.requests import Request

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.notes.model import content_hash
from stentor.surfaces.vault.errors import (
    BAD_CONDITION,
    BAD_CONTENT,
    BAD_INSTRUCTION,
    BAD_TARGET,
    BAD_VERSION,
    IS_FOLDER,
    NOT_FOUND,
    OUTSIDE_VAULT,
    PRECONDITION_FAILED,
    TOO_LARGE,
    VaultApiError,
)
from stentor.web.entity_tags import InvalidEntityTags, parse_entity_tags

JSON, MARKDOWN = "application/json", "text/markdown"
INSTRUCTION = "application/vnd.olrapi.patch-instruction+json"
MARKDOWN_TEXT = "text/markdown; charset=utf-8"
MAX_CHARACTERS = 1_000_000
"""Of a note that is read or edited in parts."""
_TRUE = "true"


def split_request_path(request: Request) -> list[str]:
    """The parts of the raw path, each decoded once, so that an encoded slash stays inside its part."""
    raw = bytes(request.scope.get("raw_path") or request.scope["path"].encode()).partition(b"?")[0]
    return [decode_segment(part) for part in raw.decode("latin-1").removeprefix("/").split("/")]


def require_inside_vault(parts: list[str]) -> None:
    """Raises Refused for a path that would lead out of the vault, whatever slashes are encoded in it."""
    depth = 0
    for name in "/".join(parts).replace("\\", "/").split("/"):
        depth += -1 if name.strip(" ") == ".." else name not in ("", ".")
        if depth < 0:
            raise VaultApiError(OUTSIDE_VAULT, "The path leads out of the vault.")
    if parts[0].startswith(("/", "\\")) or (parts[0] == "" and len(parts) > 1):
        raise VaultApiError(OUTSIDE_VAULT, "The path is absolute; it begins with the name of a note or folder.")


def decode_segment(part: str) -> str:
    """Decoded once; what is no UTF-8 is refused with the path."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise VaultApiError(OUTSIDE_VAULT, "The path is not UTF-8.") from None


def join_path(parts: list[str]) -> str:
    if any("/" in part for part in parts):
        raise VaultApiError(NOT_FOUND, "A name cannot have a slash in it, so that there is nothing there.")
    return "/".join(parts)


def require_file_path(parts: list[str]) -> str:
    """The path of a file. Raises Refused for that of a folder."""
    if parts[-1] == "":
        raise VaultApiError(IS_FOLDER, "The path ends in a slash, so it names a folder; this works on files.")
    return join_path(parts)


def encode_path(path: str) -> str:
    """A path of the vault as it stands in a URL after `/vault/`."""
    return "/".join(quote(part, safe="!'()*~") for part in path.split("/"))


async def read_body(request: Request, most: int) -> bytes:
    """At most that many bytes."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise VaultApiError(TOO_LARGE, f"The body is larger than {most} bytes.", {"Connection": "close"})
        chunks.append(chunk)
    return b"".join(chunks)


def get_content_type(request: Request) -> str:
    """Without its parameters; empty when none is given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def decode_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise VaultApiError(BAD_CONTENT, "The body is no UTF-8 text.") from None


def decode_note(path: str, content: bytes) -> str:
    """A note that is to be taken apart. Raises Refused for what is no text, or too much of it."""
    try:
        decoded = content.decode()
    except UnicodeDecodeError:
        raise VaultApiError(BAD_INSTRUCTION, f"{path!r} is no text, so that it has no parts.") from None
    if len(decoded) > MAX_CHARACTERS:
        raise VaultApiError(TOO_LARGE, f"{path!r} has more than {MAX_CHARACTERS} characters; take it as a whole.")
    return decoded


def decode_json(body: bytes) -> Any:
    try:
        return jsontext.decode(body)
    except InvalidRequest as error:
        raise VaultApiError(BAD_CONTENT, error.message) from None


def is_true_header(request: Request, name: str) -> bool:
    return request.headers.get(name, "").strip().lower() == _TRUE


def get_patch_version(request: Request) -> int:
    """Which format of edits the request speaks: 2, or 1 when it says so."""
    given = request.headers.get("markdown-patch-version")
    if given not in (None, "1", "2"):
        raise VaultApiError(BAD_VERSION, "The header Markdown-Patch-Version is 1 or 2.")
    return int(given or 2)


def decode_header(request: Request, name: str) -> str:
    """A header that is percent-encoded."""
    try:
        return unquote(request.headers.get(name, ""), errors="strict")
    except UnicodeDecodeError:
        raise VaultApiError(BAD_TARGET, f"The header {name} is not percent-encoded UTF-8.") from None


def has_target_header(request: Request) -> bool:
    return bool(request.headers.get("target-type") or request.headers.get("target"))


class Preconditions(msgspec.Struct, frozen=True):
    """The versions that each header names, `*` among them for any; None without the header."""

    match: frozenset[str] | None = None
    none_match: frozenset[str] | None = None

    def require(self, path: str, present: bytes | None) -> None:
        """Raises Refused when the file is not as the caller wants it."""
        version = None if present is None else content_hash(present)
        if self.match is not None and not _matches(self.match, version):
            raise _precondition_error(path, version)
        if self.none_match is not None and _matches(self.none_match, version):
            raise _precondition_error(path, version)


def parse_preconditions(headers: Mapping[str, str]) -> Preconditions:
    """Weak tags never match, and a tag may stand without quotes. Raises Refused for what is no list of tags."""
    return Preconditions(_parse_tags(headers, "if-match"), _parse_tags(headers, "if-none-match"))


def format_etag(version: str) -> str:
    return f'"{version}"'


def _matches(named: frozenset[str], version: str | None) -> bool:
    return version is not None and ("*" in named or version in named)


def _precondition_error(path: str, version: str | None) -> VaultApiError:
    now = "is not there" if version is None else f"is at version {version} now"
    return VaultApiError(PRECONDITION_FAILED, f"{path!r} {now}; read it again.")


def _parse_tags(headers: Mapping[str, str], name: str) -> frozenset[str] | None:
    given = headers.get(name)
    try:
        return None if given is None else parse_entity_tags(given, weak=name != "if-match")
    except InvalidEntityTags as error:
        raise VaultApiError(BAD_CONDITION, f"The header {name} {error}.") from None
