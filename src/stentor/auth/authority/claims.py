"""The claims of a receipt: their shapes and bounds. Pure.

What a verifier finds wrong. Callers read AuthorityRefused; only the debug log has the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stentor.auth.authority.context import is_blank, is_pattern

MAX_LIFETIME_S = 300
"""Seconds from `iat` to `exp` at most."""
CLOCK_LEEWAY_S = 10
"""Seconds that the clocks of issuer and service may differ."""
MAX_ITEMS = 32
"""Namespaces, and capabilities, at most."""
REQUIRED_CLAIMS = frozenset("iss aud sub tenant ns cap iat exp jti".split())
OPTIONAL_CLAIMS = frozenset({"cnf", "parent"})
_LATEST = 2**53
_HASH_LENGTH = 43


@dataclass(frozen=True)
class ReceiptClaims:
    """`iat` and `exp` are seconds since the epoch. `jkt` is the thumbprint of the holder's key, `parent` the hash of
    the receipt that this one narrows."""

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


def parse_claims(claims: dict[str, Any]) -> ReceiptClaims:
    """Raises Flaw, which names the claim, for one that is missing, unknown or has another shape."""
    names = set(claims)
    if missing := REQUIRED_CLAIMS - names:
        raise ReceiptError(f"the claim {min(missing)} is missing")
    if names - REQUIRED_CLAIMS - OPTIONAL_CLAIMS:
        raise ReceiptError("there is a claim that is not taken")
    read = ReceiptClaims(
        iss=read_text_claim(claims, "iss", 255),
        aud=read_text_claim(claims, "aud", 255),
        sub=read_text_claim(claims, "sub", 255),
        tenant=read_text_claim(claims, "tenant", 255),
        ns=_texts(claims, "ns", 255, is_pattern),
        cap=_texts(claims, "cap", 128, lambda capability: True),
        iat=read_time_claim(claims, "iat"),
        exp=read_time_claim(claims, "exp"),
        jti=read_text_claim(claims, "jti", 128),
        jkt=_holder(claims),
        parent=read_hash_claim(claims, "parent") if "parent" in claims else None,
    )
    if not 0 < read.exp - read.iat <= MAX_LIFETIME_S:
        raise ReceiptError(f"exp is not 1 to {MAX_LIFETIME_S} seconds after iat")
    return read


def claims_to_json(claims: ReceiptClaims) -> dict[str, Any]:
    """The claims as they are signed."""
    plain: dict[str, Any] = {name: getattr(claims, name) for name in "iss aud sub tenant ns cap iat exp jti".split()}
    if claims.jkt is not None:
        plain["cnf"] = {"jkt": claims.jkt}
    if claims.parent is not None:
        plain["parent"] = claims.parent
    return plain | {"ns": list(claims.ns), "cap": list(claims.cap)}


def check_validity(claims: ReceiptClaims, now: int) -> None:
    """`now` in microseconds. Raises Flaw before its time and after it, each with the leeway."""
    seconds = now / 1_000_000
    if claims.iat > seconds + CLOCK_LEEWAY_S:
        raise ReceiptError("iat lies in the future")
    if claims.exp <= seconds - CLOCK_LEEWAY_S:
        raise ReceiptError("it has expired")


def read_text_claim(claims: dict[str, Any], name: str, max_length: int) -> str:
    return _text(claims.get(name), name, max_length)


def read_time_claim(claims: dict[str, Any], name: str) -> int:
    value = claims.get(name)
    if type(value) is not int or not 0 <= value < _LATEST:
        raise ReceiptError(f"the claim {name} is not a whole number of seconds")
    return value


def read_hash_claim(claims: dict[str, Any], name: str) -> str:
    value = read_text_claim(claims, name, _HASH_LENGTH)
    if len(value) != _HASH_LENGTH:
        raise ReceiptError(f"the claim {name} is not a SHA-256 hash in base64url")
    return value


def _text(value: Any, name: str, most: int) -> str:
    if not isinstance(value, str) or is_blank(value) or value != value.strip() or not value.isprintable():
        raise ReceiptError(f"the claim {name} is blank, or not plain text")
    if len(value) > most:
        raise ReceiptError(f"the claim {name} has more than {most} characters")
    return value


def _texts(claims: dict[str, Any], name: str, most: int, good: Callable[[str], bool]) -> tuple[str, ...]:
    values = claims.get(name)
    if not isinstance(values, list) or not 0 < len(values) <= MAX_ITEMS:
        raise ReceiptError(f"the claim {name} is not a list of 1 to {MAX_ITEMS}")
    found = tuple(_text(value, name, most) for value in values)
    if len(set(found)) != len(found) or not all(map(good, found)):
        raise ReceiptError(f"the claim {name} has an entry twice, or one that it may not have")
    return found


def _holder(claims: dict[str, Any]) -> str | None:
    if "cnf" not in claims:
        return None
    confirmation = claims["cnf"]
    if not isinstance(confirmation, dict) or set(confirmation) != {"jkt"}:
        raise ReceiptError("the claim cnf is not an object with exactly jkt")
    return read_hash_claim(confirmation, "jkt")


class ReceiptError(Exception):
    """A fixed sentence that names a part of the receipt, and never holds a value of it."""
