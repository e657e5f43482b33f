"""The claims of a receipt: parsing, bounds and validity period. Pure; signatures are checked in `jws`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stentor.auth.authority.context import is_blank, is_pattern
from stentor.core.jsontext import JsonObject

MAX_LIFETIME_S = 300
"""Maximum seconds from `iat` to `exp`."""
CLOCK_LEEWAY_S = 10
"""Allowed clock difference in seconds between issuer and service."""
MAX_ITEMS = 32
"""Maximum number of namespaces, and of capabilities."""
REQUIRED_CLAIMS = frozenset("iss aud sub tenant ns cap iat exp jti".split())
OPTIONAL_CLAIMS = frozenset({"cnf", "parent"})
_LATEST = 2**53
_HASH_LENGTH = 43


class ReceiptError(Exception):
    """An invalid receipt. The text names the part that is wrong and never contains a value of the receipt.

    Clients only see AuthorityRefused; the reason goes to the debug log.
    """


@dataclass(frozen=True)
class ReceiptClaims:
    """The parsed claims of one receipt.

    `iat` and `exp` are in seconds since the epoch. `jkt` is the thumbprint of the holder's key, `parent` the hash of
    the receipt from which this one was delegated.
    """

    iss: str
    aud: str
    sub: str
    tenant: str
    ns: tuple[str, ...]
    cap: tuple[str, ...]
    iat: int
    exp: int
    jti: str
    jkt: str | None = None
    parent: str | None = None


def parse_claims(claims: JsonObject) -> ReceiptClaims:
    """Parse the claims strictly. Raises ReceiptError for a missing, unknown or malformed claim."""
    names = set(claims)
    if missing := REQUIRED_CLAIMS - names:
        raise ReceiptError(f"the claim {min(missing)} is missing")
    if names - REQUIRED_CLAIMS - OPTIONAL_CLAIMS:
        raise ReceiptError("there is an unknown claim")
    parsed = ReceiptClaims(
        iss=read_text_claim(claims, "iss", 255),
        aud=read_text_claim(claims, "aud", 255),
        sub=read_text_claim(claims, "sub", 255),
        tenant=read_text_claim(claims, "tenant", 255),
        ns=_texts(claims, "ns", 255, is_pattern),
        cap=_texts(claims, "cap", 128, lambda capability: True),
        iat=read_time_claim(claims, "iat"),
        exp=read_time_claim(claims, "exp"),
        jti=read_text_claim(claims, "jti", 128),
        jkt=_holder_thumbprint(claims),
        parent=read_hash_claim(claims, "parent") if "parent" in claims else None,
    )
    if not 0 < parsed.exp - parsed.iat <= MAX_LIFETIME_S:
        raise ReceiptError(f"exp is not 1 to {MAX_LIFETIME_S} seconds after iat")
    return parsed


def claims_to_json(claims: ReceiptClaims) -> JsonObject:
    """Return the claims as the JSON object that is signed."""
    plain: JsonObject = {name: getattr(claims, name) for name in "iss aud sub tenant ns cap iat exp jti".split()}
    if claims.jkt is not None:
        plain["cnf"] = {"jkt": claims.jkt}
    if claims.parent is not None:
        plain["parent"] = claims.parent
    return plain | {"ns": list(claims.ns), "cap": list(claims.cap)}


def check_validity(claims: ReceiptClaims, now: int) -> None:
    """Raise ReceiptError outside the validity period, extended by the leeway on both ends. `now` in microseconds."""
    seconds = now / 1_000_000
    if claims.iat > seconds + CLOCK_LEEWAY_S:
        raise ReceiptError("iat is in the future")
    if claims.exp <= seconds - CLOCK_LEEWAY_S:
        raise ReceiptError("it has expired")


def read_text_claim(claims: JsonObject, name: str, max_length: int) -> str:
    return _text(claims.get(name), name, max_length)


def read_time_claim(claims: JsonObject, name: str) -> int:
    value = claims.get(name)
    # Not isinstance: it would accept True as the time 1.
    if type(value) is not int or not 0 <= value < _LATEST:
        raise ReceiptError(f"the claim {name} is not a whole number of seconds")
    return value


def read_hash_claim(claims: JsonObject, name: str) -> str:
    value = read_text_claim(claims, name, _HASH_LENGTH)
    if len(value) != _HASH_LENGTH:
        raise ReceiptError(f"the claim {name} is not a SHA-256 hash in base64url")
    return value


def _text(value: Any, name: str, max_length: int) -> str:
    if not isinstance(value, str) or is_blank(value) or value != value.strip() or not value.isprintable():
        raise ReceiptError(f"the claim {name} is blank or contains unprintable characters")
    if len(value) > max_length:
        raise ReceiptError(f"the claim {name} has more than {max_length} characters")
    return value


def _texts(claims: JsonObject, name: str, max_length: int, is_valid: Callable[[str], bool]) -> tuple[str, ...]:
    values = claims.get(name)
    if not isinstance(values, list) or not 0 < len(values) <= MAX_ITEMS:
        raise ReceiptError(f"the claim {name} is not a list of 1 to {MAX_ITEMS} entries")
    texts = tuple(_text(value, name, max_length) for value in values)
    if len(set(texts)) != len(texts) or not all(map(is_valid, texts)):
        raise ReceiptError(f"the claim {name} has a duplicate or invalid entry")
    return texts


def _holder_thumbprint(claims: JsonObject) -> str | None:
    if "cnf" not in claims:
        return None
    confirmation = claims["cnf"]
    if not isinstance(confirmation, dict) or set(confirmation) != {"jkt"}:
        raise ReceiptError("the claim cnf is not an object with exactly jkt")
    return read_hash_claim(confirmation, "jkt")
