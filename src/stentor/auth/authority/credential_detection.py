"""Reject request fields that are named like credentials, and strip credentials from URIs. Pure.

URIs come from callers and are repeated in logs, events and responses. Stripping accepts any text and errs on the safe
side: from an ambiguous URI everything is removed that any reading makes secret. Secrets in free text are masked in
`core.security.redaction`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any
from urllib.parse import unquote

from stentor.core.errors import InvalidRequest

CREDENTIAL_NAMES = ("apikey", "accesstoken", "bearertoken", "providersecret")
"""Suffixes of field names, compared without case, separators, a plural s and trailing digits."""
MAX_PATH_PARTS = 8
"""Longest path in an error; each part is cut to 64 characters."""
MAX_NESTING = 3
"""How deep URIs inside queries, and repeated percent-encodings, are examined; what is nested deeper is removed."""
MAX_PASSES = 8
"""Passes until the result no longer changes; a URI that keeps changing becomes empty."""
_SECRET_SUFFIXES = tuple(
    "token secret password passwd passphrase pwd signature credential authorization accesskey accesskeyid privatekey "
    "secretkey sessionid assertion".split()
)
_SECRET_NAMES = frozenset("key auth sig sid pass jwt session code otp pin".split())
_SECRET_VALUE = re.compile(r"(?i)(?<![\w-])eyj[\w-]+\.[\w-]+\.|bearer[\s+]|st_[\w-]{20}|sk-[\w-]{8}|-----begin")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
"""Removed first: browsers ignore some of them and others do not, so they could hide a credential."""
_SCHEME_AND_REST = re.compile(r"(?i)(\s*(?:https?|wss?|ftp):[/\\]*|\s*(?:[a-z][a-z0-9+.-]*:)?[/\\]{2})(.*)", re.DOTALL)
_HOST_AND_PORT = re.compile(r"(\[[^\]@]*\]|[^\[\]:@]*)(:\d*)?")
_END_OF_HOST = re.compile(r"[/?#]")
_PAIR_SEPARATOR = re.compile(r"([&;])")

FieldPath = tuple[Any, Any] | None
"""Where a value is: the path of its parent, and its name or index there; None at the root."""


class CredentialFieldError(InvalidRequest):
    """A field is named like an API key, an access token, a bearer token or a provider secret."""


def reject_credential_fields(value: Any) -> None:
    """Raise CredentialFieldError for a field with a credential's name, at any depth of a JSON value.

    The error names the field, never its value.
    """
    pending: list[tuple[Any, FieldPath]] = [(value, None)]
    # A stack, not recursion: the depth of the value is the caller's choice.
    while pending:
        inner, trail = pending.pop()
        if isinstance(inner, dict):
            for name in inner:
                if isinstance(name, str) and is_credential_name(name):
                    raise CredentialFieldError(
                        f"The field {_format_trail((trail, name))} is named like a credential. Leave it out: authority "
                        "comes from the receipt."
                    )
            pending.extend((part, (trail, name)) for name, part in inner.items())
        elif isinstance(inner, (list, tuple)):
            pending.extend((part, (trail, n)) for n, part in enumerate(inner))


def is_credential_name(name: str) -> bool:
    return normalize_name(name).rstrip("0123456789").removesuffix("s").endswith(CREDENTIAL_NAMES)


def normalize_name(name: str) -> str:
    """Return only the letters and digits, NFKC-normalized and case-folded: `API-KEY` and `apiKey` give `apikey`."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in folded if character.isalnum())


def _format_trail(trail: FieldPath) -> str:
    parts: list[str] = []
    while trail is not None and len(parts) < MAX_PATH_PARTS:
        trail, name = trail
        parts.append(f"[{name}]" if isinstance(name, int) else f".{_printable(str(name))}")
    return ("…" if trail is not None else "") + "".join(reversed(parts)).removeprefix(".")


def _printable(name: str) -> str:
    visible = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)
    return visible if len(visible) <= 64 else visible[:63] + "…"


def strip_uri_credentials(uri: str) -> str:
    """Return the URI without user-info, and without query and fragment parameters that are or look secret."""
    uri = _CONTROL_CHARACTERS.sub("", uri)
    # Repeated, because the rest may itself read as a URI with user-info.
    for _ in range(MAX_PASSES):
        stripped = _strip(uri, 0)
        if stripped == uri:
            return uri
        uri = stripped
    return ""


def _strip(uri: str, depth: int) -> str:
    scheme, rest = _split_scheme(uri)
    before, hash_, fragment = _without_user_info(rest, scheme).partition("#")
    path, mark, query = before.partition("?")
    query = _without_secret_pairs(query, depth)
    return scheme + path + (mark if query else "") + query + _strip_fragment(hash_, fragment, depth)


def _split_scheme(uri: str) -> tuple[str, str]:
    """Return the scheme with its slashes, and the rest; the scheme is empty for a URI without a host."""
    match = _SCHEME_AND_REST.fullmatch(uri)
    return (match[1], match[2]) if match else ("", uri)


def _without_user_info(rest: str, scheme: str) -> str:
    if not scheme:
        return rest
    end = _END_OF_HOST.search(rest)
    host, after = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    host = host.rpartition("@")[2]
    if not _HOST_AND_PORT.fullmatch(host) and "@" in after:
        # Not a valid port: it is the first half of a password that contains / ? or #.
        return after.rpartition("@")[2]
    return host + after


def _without_secret_pairs(query: str, depth: int) -> str:
    kept: list[str] = []
    separator = ""
    for n, part in enumerate(_PAIR_SEPARATOR.split(query)):
        if n % 2:
            separator = part
        elif not _is_secret(part, depth):
            kept += [separator, part] if kept else [part]
    return "".join(kept)


def _is_secret(pair: str, depth: int) -> bool:
    plain = _decode_fully(pair)
    if plain is None:
        return True
    if depth > MAX_NESTING:
        return plain != pair or _may_nest(plain)
    if plain != pair and _without_secret_pairs(plain, depth + 1) != plain:
        return True
    name, equals, value = plain.partition("=")
    inner = value if equals else name
    if (equals and is_secret_parameter(name)) or _SECRET_VALUE.search(inner):
        return True
    return _may_nest(inner) and _strip(inner, depth + 1) != inner


def is_secret_parameter(name: str) -> bool:
    """Return whether a query parameter of this name is treated as a secret (wider than `is_credential_name`)."""
    plain = normalize_name(name)
    return (
        is_credential_name(name)
        or plain in _SECRET_NAMES
        or plain.rstrip("0123456789").removesuffix("s").endswith(_SECRET_SUFFIXES)
    )


def _decode_fully(text: str) -> str | None:
    """Undo all percent-encodings; None if there are more than MAX_NESTING of them."""
    for _ in range(MAX_NESTING):
        plain = _CONTROL_CHARACTERS.sub("", unquote(text))
        if plain == text:
            return text
        text = plain
    return None


def _may_nest(text: str) -> bool:
    """Return whether the text may contain a URI or further pairs."""
    return not set(text).isdisjoint("?#@&;") or _SCHEME_AND_REST.fullmatch(text) is not None


def _strip_fragment(hash_: str, fragment: str, depth: int) -> str:
    """Strip secret pairs from a fragment: an anchor, pairs as in a query, or an anchor with a query."""
    anchor, mark, query = fragment.partition("?")
    anchor, query = _without_secret_pairs(anchor, depth), _without_secret_pairs(query, depth)
    kept = anchor + (mark if query else "") + query
    return hash_ + kept if kept else ""
