"""What must not come in beside a receipt: fields that are named like credentials.

Addresses without the credentials that people write into them. Pure, and total on any text.

It errs on the side of stripping: an address that readers could take apart in two ways loses whatever is secret in
either of them.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any
from urllib.parse import unquote

from stentor.core.errors import InvalidRequest

CREDENTIAL_NAMES = ("apikey", "accesstoken", "bearertoken", "providersecret")
"""Compared without case, separators, a plural's s and a number at the end; what stands before is their owner's name."""
MAX_PATH_PARTS = 8
"""Parts of a path that an error names at most, and 64 characters of each."""

Way = tuple[Any, Any] | None
"""The way back to the root: the way to the parent, and the name or index in it."""


class CredentialFieldError(InvalidRequest):
    """A field is named like an API key, an access token, a bearer token or a provider's secret."""


def reject_credential_fields(value: Any) -> None:
    """Raises UnsafeProofName for such a field at any depth of a JSON value. It names the field, never what it holds."""
    todo: list[tuple[Any, Way]] = [(value, None)]
    while todo:
        inner, way = todo.pop()
        if isinstance(inner, dict):
            for name in inner:
                if isinstance(name, str) and is_credential_name(name):
                    raise CredentialFieldError(
                        f"The field {_path((way, name))} is named like a credential. Authority is shown by a receipt: "
                        "leave the field out."
                    )
            todo.extend((part, (way, name)) for name, part in inner.items())
        elif isinstance(inner, list | tuple):
            todo.extend((part, (way, n)) for n, part in enumerate(inner))


def is_credential_name(name: str) -> bool:
    return normalize_name(name).rstrip("0123456789").removesuffix("s").endswith(CREDENTIAL_NAMES)


def normalize_name(name: str) -> str:
    """Letters and digits alone, without case and typographic variants: `API-KEY` and `apiKey` are `apikey`."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in folded if character.isalnum())


def _path(way: Way) -> str:
    parts: list[str] = []
    while way is not None and len(parts) < MAX_PATH_PARTS:
        way, name = way
        parts.append(f"[{name}]" if isinstance(name, int) else f".{_shown(str(name))}")
    return ("…" if way is not None else "") + "".join(reversed(parts)).removeprefix(".")


def _shown(name: str) -> str:
    visible = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)
    return visible if len(visible) <= 64 else visible[:63] + "…"


MAX_NESTING = 3
"""Addresses inside the query of an address, and encodings of a part, that are looked into; what goes deeper is cut."""
MAX_PASSES = 8
"""What is left may read as another address with user-info. Of one that never ends nothing is left."""
_SECRET_ENDS = tuple(
    "token secret password passwd passphrase pwd signature credential authorization accesskey accesskeyid privatekey "
    "secretkey sessionid assertion".split()
)
_SECRET_NAMES = frozenset("key auth sig sid pass jwt session code otp pin".split())
_SECRET_VALUE = re.compile(r"(?i)(?<![\w-])eyj[\w-]+\.[\w-]+\.|bearer[\s+]|st_[\w-]{20}|sk-[\w-]{8}|-----begin")
_IGNORED = re.compile(r"[\x00-\x1f\x7f]")
"""Browsers drop some of them and others do not: an address has none."""
_START = re.compile(r"(?i)(\s*(?:https?|wss?|ftp):[/\\]*|\s*(?:[a-z][a-z0-9+.-]*:)?[/\\]{2})(.*)", re.DOTALL)
_WHOLE_HOST = re.compile(r"(\[[^\]@]*\]|[^\[\]:@]*)(:\d*)?")
_END_OF_HOST = re.compile(r"[/?#]")
_JOINT = re.compile(r"([&;])")


def strip_uri_credentials(uri: str) -> str:
    """The address without user-info and without what is named or looks like a secret in its query and fragment."""
    uri = _IGNORED.sub("", uri)
    for _ in range(MAX_PASSES):
        stripped = _strip(uri, 0)
        if stripped == uri:
            return uri
        uri = stripped
    return ""


def _strip(uri: str, depth: int) -> str:
    start, rest = _start(uri)
    before, hash_, fragment = _without_user(rest, start).partition("#")
    path, mark, query = before.partition("?")
    query = _pairs(query, depth)
    return start + path + (mark if query else "") + query + _fragment(hash_, fragment, depth)


def _start(uri: str) -> tuple[str, str]:
    """Scheme and slashes, and what comes after them; an address without a host starts nowhere."""
    found = _START.fullmatch(uri)
    return (found[1], found[2]) if found else ("", uri)


def _without_user(rest: str, start: str) -> str:
    if not start:
        return rest
    end = _END_OF_HOST.search(rest)
    host, after = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    host = host.rpartition("@")[2]
    if not _WHOLE_HOST.fullmatch(host) and "@" in after:
        return after.rpartition("@")[2]  # no port looks like this: a password was cut in half by a / ? or # of its own
    return host + after


def _pairs(query: str, depth: int) -> str:
    """The pairs that may stay, with the marks between them."""
    kept: list[str] = []
    for n, part in enumerate(_JOINT.split(query)):
        if n % 2:
            mark = part
        elif not _is_secret(part, depth):
            kept += [mark, part] if kept else [part]
    return "".join(kept)


def _is_secret(pair: str, depth: int) -> bool:
    plain = _decoded(pair)
    if plain is None:
        return True
    if depth > MAX_NESTING:
        return plain != pair or _nests(plain)
    if plain != pair and _pairs(plain, depth + 1) != plain:
        return True
    name, mark, value = plain.partition("=")
    inner = value if mark else name
    if (mark and is_secret_parameter(name)) or _SECRET_VALUE.search(inner):
        return True
    return _nests(inner) and _strip(inner, depth + 1) != inner


def is_secret_parameter(name: str) -> bool:
    plain = normalize_name(name)
    return (
        is_credential_name(name)
        or plain in _SECRET_NAMES
        or plain.rstrip("0123456789").removesuffix("s").endswith(_SECRET_ENDS)
    )


def _decoded(text: str) -> str | None:
    """None when there is no end to its encodings."""
    for _ in range(MAX_NESTING):
        plain = _IGNORED.sub("", unquote(text))
        if plain == text:
            return text
        text = plain
    return None


def _nests(text: str) -> bool:
    """Whether it may hold an address of its own, or more pairs."""
    return not set(text).isdisjoint("?#@&;") or _START.fullmatch(text) is not None


def _fragment(mark: str, fragment: str, depth: int) -> str:
    """A fragment is a place in the page, pairs as in a query, or a place with a query of its own."""
    place, inner, query = fragment.partition("?")
    place, query = _pairs(place, depth), _pairs(query, depth)
    kept = place + (inner if query else "") + query
    return mark + kept if kept else ""
