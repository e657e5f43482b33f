"""What a request says: its path, its body, its kinds of content."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import Request

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.surfaces.vault.errors import (
    BAD_CONTENT,
    BAD_INSTRUCTION,
    BAD_TARGET,
    BAD_VERSION,
    BEYOND_ROOT,
    IS_FOLDER,
    NOT_FOUND,
    TOO_LARGE,
    Refused,
)

JSON, MARKDOWN = "application/json", "text/markdown"
INSTRUCTION = "application/vnd.olrapi.patch-instruction+json"
MARKDOWN_TEXT = "text/markdown; charset=utf-8"
MAX_CHARACTERS = 1_000_000
"""Of a note that is read or edited in parts."""
_TRUE = "true"


def path_of(request: Request) -> list[str]:
    """The parts of the raw path, each decoded once, so that an encoded slash stays inside its part."""
    raw = bytes(request.scope.get("raw_path") or request.scope["path"].encode()).partition(b"?")[0]
    return [decoded(part) for part in raw.decode("latin-1").removeprefix("/").split("/")]


def refuse_beyond(parts: list[str]) -> None:
    """Raises Refused for a path that would lead out of the vault, whatever slashes are encoded in it."""
    depth = 0
    for name in "/".join(parts).replace("\\", "/").split("/"):
        depth += -1 if name.strip(" ") == ".." else name not in ("", ".")
        if depth < 0:
            raise Refused(BEYOND_ROOT, "The path leads out of the vault.")
    if parts[0].startswith(("/", "\\")) or (parts[0] == "" and len(parts) > 1):
        raise Refused(BEYOND_ROOT, "The path is absolute; it begins with the name of a note or folder.")


def decoded(part: str) -> str:
    """Decoded once; what is no UTF-8 is refused with the path."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise Refused(BEYOND_ROOT, "The path is not UTF-8.") from None


def joined(parts: list[str]) -> str:
    if any("/" in part for part in parts):
        raise Refused(NOT_FOUND, "A name cannot have a slash in it, so that there is nothing there.")
    return "/".join(parts)


def file_of(parts: list[str]) -> str:
    """The path of a file. Raises Refused for that of a folder."""
    if parts[-1] == "":
        raise Refused(IS_FOLDER, "The path ends in a slash, so it names a folder; this works on files.")
    return joined(parts)


def location(path: str) -> str:
    """A path of the vault as it stands in a URL after `/vault/`."""
    return "/".join(quote(part, safe="!'()*~") for part in path.split("/"))


async def body_of(request: Request, most: int) -> bytes:
    """At most that many bytes."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise Refused(TOO_LARGE, f"The body is larger than {most} bytes.", {"Connection": "close"})
        chunks.append(chunk)
    return b"".join(chunks)


def content_type(request: Request) -> str:
    """Without its parameters; empty when none is given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise Refused(BAD_CONTENT, "The body is no UTF-8 text.") from None


def text_of(path: str, content: bytes) -> str:
    """A note that is to be taken apart. Raises Refused for what is no text, or too much of it."""
    try:
        decoded = content.decode()
    except UnicodeDecodeError:
        raise Refused(BAD_INSTRUCTION, f"{path!r} is no text, so that it has no parts.") from None
    if len(decoded) > MAX_CHARACTERS:
        raise Refused(TOO_LARGE, f"{path!r} has more than {MAX_CHARACTERS} characters; take it as a whole.")
    return decoded


def json_of(body: bytes) -> Any:
    try:
        return jsontext.decode(body)
    except InvalidRequest as error:
        raise Refused(BAD_CONTENT, error.message) from None


def says_yes(request: Request, name: str) -> bool:
    return request.headers.get(name, "").strip().lower() == _TRUE


def format_of(request: Request) -> int:
    """Which format of edits the request speaks: 2, or 1 when it says so."""
    given = request.headers.get("markdown-patch-version")
    if given not in (None, "1", "2"):
        raise Refused(BAD_VERSION, "The header Markdown-Patch-Version is 1 or 2.")
    return int(given or 2)


def header_text(request: Request, name: str) -> str:
    """A header that is percent-encoded."""
    try:
        return unquote(request.headers.get(name, ""), errors="strict")
    except UnicodeDecodeError:
        raise Refused(BAD_TARGET, f"The header {name} is not percent-encoded UTF-8.") from None


def has_target(request: Request) -> bool:
    return bool(request.headers.get("target-type") or request.headers.get("target"))
