"""The claims of a receipt: their shapes and bounds. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stentor.auth.authority.context import blank, is_pattern
from stentor.auth.authority.flaw import Flaw

LIFETIME = 300
"""Seconds from `iat` to `exp` at most."""
LEEWAY = 10
"""Seconds that the clocks of issuer and service may differ."""
MOST = 32
"""Namespaces, and capabilities, at most."""
REQUIRED = frozenset("iss aud sub tenant ns cap iat exp jti".split())
OPTIONAL = frozenset({"cnf", "parent"})
_LATEST = 2**53
_HASH_LENGTH = 43


@dataclass(frozen=True)
class Claims:
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


def read(claims: dict[str, Any]) -> Claims:
    """Raises Flaw, which names the claim, for one that is missing, unknown or has another shape."""
    names = set(claims)
    if missing := REQUIRED - names:
        raise Flaw(f"the claim {min(missing)} is missing")
    if names - REQUIRED - OPTIONAL:
        raise Flaw("there is a claim that is not taken")
    read = Claims(
        iss=text(claims, "iss", 255),
        aud=text(claims, "aud", 255),
        sub=text(claims, "sub", 255),
        tenant=text(claims, "tenant", 255),
        ns=_texts(claims, "ns", 255, is_pattern),
        cap=_texts(claims, "cap", 128, lambda capability: True),
        iat=moment(claims, "iat"),
        exp=moment(claims, "exp"),
        jti=text(claims, "jti", 128),
        jkt=_holder(claims),
        parent=hash_text(claims, "parent") if "parent" in claims else None,
    )
    if not 0 < read.exp - read.iat <= LIFETIME:
        raise Flaw(f"exp is not 1 to {LIFETIME} seconds after iat")
    return read


def write(claims: Claims) -> dict[str, Any]:
    """The claims as they are signed."""
    plain: dict[str, Any] = {name: getattr(claims, name) for name in "iss aud sub tenant ns cap iat exp jti".split()}
    if claims.jkt is not None:
        plain["cnf"] = {"jkt": claims.jkt}
    if claims.parent is not None:
        plain["parent"] = claims.parent
    return plain | {"ns": list(claims.ns), "cap": list(claims.cap)}


def check_time(claims: Claims, now: int) -> None:
    """`now` in microseconds. Raises Flaw before its time and after it, each with the leeway."""
    seconds = now / 1_000_000
    if claims.iat > seconds + LEEWAY:
        raise Flaw("iat lies in the future")
    if claims.exp <= seconds - LEEWAY:
        raise Flaw("it has expired")


def text(claims: dict[str, Any], name: str, most: int) -> str:
    return _text(claims.get(name), name, most)


def moment(claims: dict[str, Any], name: str) -> int:
    value = claims.get(name)
    if type(value) is not int or not 0 <= value < _LATEST:
        raise Flaw(f"the claim {name} is not a whole number of seconds")
    return value


def hash_text(claims: dict[str, Any], name: str) -> str:
    value = text(claims, name, _HASH_LENGTH)
    if len(value) != _HASH_LENGTH:
        raise Flaw(f"the claim {name} is not a SHA-256 hash in base64url")
    return value


def _text(value: Any, name: str, most: int) -> str:
    if not isinstance(value, str) or blank(value) or value != value.strip() or not value.isprintable():
        raise Flaw(f"the claim {name} is blank, or not plain text")
    if len(value) > most:
        raise Flaw(f"the claim {name} has more than {most} characters")
    return value


def _texts(claims: dict[str, Any], name: str, most: int, good: Callable[[str], bool]) -> tuple[str, ...]:
    values = claims.get(name)
    if not isinstance(values, list) or not 0 < len(values) <= MOST:
        raise Flaw(f"the claim {name} is not a list of 1 to {MOST}")
    found = tuple(_text(value, name, most) for value in values)
    if len(set(found)) != len(found) or not all(map(good, found)):
        raise Flaw(f"the claim {name} has an entry twice, or one that it may not have")
    return found


def _holder(claims: dict[str, Any]) -> str | None:
    if "cnf" not in claims:
        return None
    confirmation = claims["cnf"]
    if not isinstance(confirmation, dict) or set(confirmation) != {"jkt"}:
        raise Flaw("the claim cnf is not an object with exactly jkt")
    return hash_text(confirmation, "jkt")
