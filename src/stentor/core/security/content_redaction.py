"""Redaction of texts before they are stored: known secrets, well-known shapes of secrets, and personal data on request.

Errs on the side of masking: what looks like a secret is replaced by a mark that names its kind. All patterns here take
time linear in the text. The operator's own patterns may not, so they run in another process: see `pattern_process`.
Logs are redacted in `redaction`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from stentor.core.security.redaction import ESCAPED_SEPARATOR, URL_PARAMETER, Redactor

MAX_KEY_CHARS = 20_000
"""The longest block of a private key; an end further away belongs to another one."""
_WORD = r"(?<![A-Za-z0-9])"
_PRIVATE_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PRIVATE_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=\s\\:,-]*")
_SEPARATOR = r"[\"'\\]{0,3}\s{0,5}(?:[:=]|%(?:25){0,3}3D)\s{0,5}[\"'\\]{0,3}"
# Without a digit it must be long, because ordinary words appear in such places too.
_OPAQUE = r"(?=[a-z._~+/=%-]{0,200}\d|[a-z._~+/=%-]{24})"
_LABELS = (
    *("api key", "secret key", "access key", "client secret", "access token", "auth token", "refresh token"),
    *("password", "passwd"),
)
_SPELLINGS = tuple(label.replace(" ", joint) for label in _LABELS for joint in ("", "-", "_"))


class Shape(NamedTuple):
    """A shape of secrets. `hints` are texts in lower case, one of which is in every match: looking for them is fast.

    The first group of the pattern, if there is one, is a label that stays.
    """

    kind: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]


_SHAPES = (
    # A receipt, a proof, a JWT.
    Shape("token", ("eyj",), re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+\.[\w-]*")),
    Shape(
        "credentials",
        ("authorization",),
        re.compile(rf"(?i)(authorization{_SEPARATOR}(?:bearer|basic|token|apikey)\s{{1,5}})[^\s\"'\\,;]+"),
    ),
    # A scheme with parameters, such as Digest: masks all of them.
    Shape(
        "credentials",
        ("authorization",),
        re.compile(
            rf"(?i)(authorization{_SEPARATOR}[\w-]{{1,40}}\s{{1,5}})"
            r"(?:[\w-]{1,40}=(?:\\{0,2}\"[^\"\r\n]{0,2000}\"|[^\s\"',]{1,2000}),?\s{0,5})+"
        ),
    ),
    Shape(
        "credentials",
        ("authorization",),
        re.compile(rf"(?i)(authorization{_SEPARATOR}){_OPAQUE}[a-z0-9._~+/=-]{{12,}}"),
    ),
    Shape(
        "secret",
        ("token", "key", "secret", "pass", "pwd", "sig", "auth", "assertion", "credential", "jwt", "code"),
        re.compile(rf"(?i)((?:[?&#]|&amp;|{ESCAPED_SEPARATOR}){URL_PARAMETER}){_OPAQUE}[^\s\"'\\,;@&]{{6,}}"),
    ),
    # The header with all its cookies, whose values may be in quotes. A sentence does not begin with `name=`.
    Shape(
        "cookie",
        ("cookie",),
        re.compile(
            r"(?i)(cookie[\"'\\]{0,3}\s{0,5}:\s{0,5}[\"'\\]{0,3})(?=[^\s\"']{1,200}=)"
            r"(?:=\"[^\"\r\n;]*\"(?=[;\s]|$)|[^\"'\r\n])+"
        ),
    ),
    Shape(
        "bearer token",
        ("bearer",),
        re.compile(rf"(?i)(\bbearer\s{{1,5}}){_OPAQUE}[a-z0-9._~+/=-]{{12,}}"),
    ),
    Shape("password", ("://",), re.compile(r"(://[^/\s:@\"']{0,100}:)[^/\s@\"']{1,200}(?=@)")),
    # A token in place of a URL's user, even if the password is empty or was redacted above.
    Shape(
        "token",
        ("://",),
        re.compile(r"(://)(?=[^/?#\s:@\"'\d]{0,200}\d)[^/?#\s:@\"']{16,200}(?=(?::(?:\[redacted: password\])?)?@)"),
    ),
    Shape(
        "AWS key",
        ("akia", "asia", "abia", "acca"),
        re.compile(_WORD + r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ),
    Shape(
        "api key",
        # `st_` and `whsec_` are keys, sessions and secrets of webhooks that the service makes while it runs.
        # Before `sk-`, which would take the beginning of one that follows a dash.
        ("gho_", "ghp_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "hf_", "npm_", "whsec_", "st_"),
        re.compile(_WORD + r"(?:gh[pousr]_|github_pat_|glpat-|hf_|npm_|whsec_|st_)[A-Za-z0-9_+/=-]{20,}"),
    ),
    Shape(
        "api key",
        ("sk-", "pk-", "rk-"),
        re.compile(_WORD + r"(?:sk|pk|rk)-(?=[A-Za-z_-]{0,100}\d)[A-Za-z0-9_-]{16,}"),
    ),
    Shape("api key", ("k_live_", "k_test_"), re.compile(_WORD + r"(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{10,}")),
    Shape(
        "api key",
        ("xox", "aiza", "ya29."),
        re.compile(_WORD + r"(?:xox[abeoprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,}|ya29\.[\w-]{20,})"),
    ),
    Shape(
        "secret",
        _SPELLINGS,
        re.compile(
            rf"(?i)((?:{'|'.join(label.replace(' ', '[-_]?') for label in _LABELS)}){_SEPARATOR})"
            r"(?!\[redacted)[^\s\"'\\,;]{6,}"
        ),
    ),
)
_EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9])")
# Only the form; `_mask_card` checks the checksum, so that ids and times with the same number of digits stay readable.
_CARD = re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?!\d)")


class ContentRedactor:
    """Masks texts. `personal_data` has `emails`, `cards` or both, if they are masked too."""

    def __init__(self, redactor: Redactor, personal_data: Collection[str] = ()) -> None:
        self._redactor = redactor
        self._personal: list[Callable[[str], str]] = []
        if "emails" in personal_data:
            self._personal.append(lambda text: _EMAIL.sub(mark("e-mail"), text))
        if "cards" in personal_data:
            self._personal.append(lambda text: _CARD.sub(_mask_card, text))

    def redact(self, text: str) -> str:
        """Return the text with marks instead of secrets."""
        text = mask_shapes(self._redactor.mask_known(text, mark("secret")), mark)
        for mask in self._personal:
            text = mask(text)
        return text


def mark(kind: str) -> str:
    """Return what stands for a redacted text."""
    return f"[redacted: {kind}]"


def mask_shapes(text: str, make_mark: Callable[[str], str]) -> str:
    """Return the text with marks instead of what has a well-known shape of secrets; `make_mark` gets the kind."""
    text = _mask_private_keys(text, make_mark("private key"))
    # Not `lower`: case-insensitive patterns treat some characters as equal, as `casefold` does.
    folded = text.casefold()
    for shape in _SHAPES:
        if any(hint in folded for hint in shape.hints):
            text = shape.pattern.sub(_keeping_label(make_mark(shape.kind)), text)
    return text


def _keeping_label(replacement: str) -> Callable[[re.Match[str]], str]:
    """Return the replacement that leaves the first group, such as `Authorization: Bearer`, if there is one."""
    return lambda match: (match.group(1) if match.re.groups else "") + replacement


def _mask_private_keys(text: str, replacement: str) -> str:
    """Mask blocks of private keys; one without an end as far as it can be one.

    Not one pattern: for each beginning it would look for an end in all of the rest.
    """
    parts, position, may_end = [], 0, True
    while begin := _PRIVATE_KEY_BEGIN.search(text, position):
        end = _PRIVATE_KEY_END.search(text, begin.end()) if may_end else None
        # No end after this beginning means none after any later one: do not search the rest again.
        may_end = end is not None
        if end is not None and end.start() - begin.end() > MAX_KEY_CHARS:
            end = None
        parts += [text[position : begin.start()], replacement]
        body = end or _KEY_BODY.match(text, begin.end())
        position = body.end() if body else begin.end()
    return "".join(parts) + text[position:] if parts else text


def _mask_card(match: re.Match[str]) -> str:
    digits = [int(character) for character in match.group() if character.isdigit()]
    # Luhn's algorithm: every second digit from the right counts twice, as the sum of its digits.
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return mark("card number") if (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0 else match.group()
