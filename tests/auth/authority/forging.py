"""Receipts of every kind, also such as nobody would issue. Signed with the library below the one that is tested."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey

from stentor.auth.authority.issuers import Issuer, Issuers, own_issuer
from stentor.auth.authority.keys import thumbprint
from stentor.auth.authority.receipts import inspect_receipt
from stentor.core.errors import AuthorityRefused

SECONDS = 1_800_000_000
NOW = SECONDS * 1_000_000
"""A moment in microseconds that the receipts here are about."""
OWN_KEY, CI_KEY, STRANGER, HOLDER, SECOND_HOLDER = (OKPKey.generate_key("Ed25519") for _ in range(5))
ISSUERS = Issuers({**own_issuer(OWN_KEY), "ci-1": Issuer("https://ci.example", CI_KEY, frozenset({"default", "acme"}))})
AUDIENCE = "stentor"
CLAIMS: dict[str, Any] = {
    "iss": "stentor",
    "aud": AUDIENCE,
    "sub": "ann",
    "tenant": "default",
    "ns": ["team/notes"],
    "cap": ["memory:read", "memory:write"],
    "iat": SECONDS - 10,
    "exp": SECONDS + 200,
    "jti": "r-1",
}
HEADER = {"alg": "Ed25519", "typ": "receipt+jwt", "kid": thumbprint(OWN_KEY)}
DROP: Any = object()
"""In place of a value: the field is left out."""


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sha256(text: str | bytes) -> str:
    return b64(hashlib.sha256(text.encode() if isinstance(text, str) else text).digest())


def raw(key: OKPKey) -> Ed25519PrivateKey:
    found = key.private_key
    assert isinstance(found, Ed25519PrivateKey)
    return found


def seal(header: Any, claims: Any, key: OKPKey = OWN_KEY) -> str:
    """A signed text of any two parts: values become JSON, bytes stay as they are."""
    parts = (part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, claims))
    signed = ".".join(map(b64, parts))
    return f"{signed}.{b64(raw(key).sign(signed.encode()))}"


def receipt(header: dict[str, Any] | None = None, key: OKPKey = OWN_KEY, **claims: Any) -> str:
    """A good receipt of the service, but for these fields."""
    return seal(_without({**HEADER, **(header or {})}), _without({**CLAIMS, **claims}), key)


def bound(key: OKPKey = HOLDER, **claims: Any) -> str:
    return receipt(cnf={"jkt": thumbprint(key)}, **claims)


def jwk(key: OKPKey) -> dict[str, str]:
    whole = key.as_dict(private=False)
    return {name: str(whole[name]) for name in ("kty", "crv", "x")}


def holds(text: Any, now: int = NOW) -> bool:
    """Whether signatures and claims hold at this moment."""
    try:
        inspect_receipt(text, ISSUERS, AUDIENCE, now)
    except AuthorityRefused:
        return False
    return True


def _without(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not DROP}
