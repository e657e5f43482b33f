"""JWS in compact form (RFC 7515), taken apart strictly and signed with Ed25519 alone (RFC 9864).

The caller says which header fields there must be; there is no other. So what would choose a key or an algorithm
for us (`jku`, `jwk`, `x5u`, `crit`, `b64`, ...) is refused before a signature is looked at.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from stentor.auth.authority.claims import ReceiptError
from stentor.auth.authority.keys import decode_base64url, encode_base64url
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest

ALGORITHM = "Ed25519"
"""Its fully specified name; the older `EdDSA` leaves the curve open and is not taken."""
MAX_LENGTH = 4096
"""Characters of one receipt or proof."""
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}")
_REGISTRY = jws.JWSRegistry(algorithms=[ALGORITHM])
_ED25519 = _REGISTRY.get_alg(ALGORITHM)


@dataclass(frozen=True, repr=False)
class UnverifiedJws:
    """What was read, and nothing verified. It has no `repr`, because `text` may be worth as much as a key."""

    text: str
    header: dict[str, Any]
    claims: dict[str, Any]


def parse(text: str) -> UnverifiedJws:
    """Raises Flaw for anything but three parts of base64url, the first two strict JSON objects."""
    if len(text) > MAX_LENGTH:
        raise ReceiptError("it is too long")
    if not _FORM.fullmatch(text):
        raise ReceiptError("it is not a JWS in compact form with an Ed25519 signature")
    header, claims, _ = text.split(".")
    return UnverifiedJws(text, _object(decode_base64url(header)), _object(decode_base64url(claims)))


def require_header(compact: UnverifiedJws, type_: str, *others: str) -> None:
    """Exactly alg, typ and the others. Raises Flaw."""
    header = compact.header
    if header.get("alg") != ALGORITHM:
        raise ReceiptError("the algorithm is not Ed25519")
    if header.get("typ") != type_:
        raise ReceiptError("the type of the token is another")
    if set(header) != {"alg", "typ", *others}:
        raise ReceiptError("the header has fields that are missing, or that are not taken")


def verify(compact: UnverifiedJws, key: OKPKey) -> None:
    """Raises Flaw unless the key made the signature."""
    signed, _, signature = compact.text.rpartition(".")
    try:
        # The header was read strictly already; the library would read it once more, and leniently.
        holds = _ED25519.verify(signed.encode(), decode_base64url(signature), key)
    except (JoseError, ValueError):
        holds = False
    if not holds:
        raise ReceiptError("the signature does not hold")


def sign(header: dict[str, Any], claims: dict[str, Any], key: OKPKey) -> str:
    """The compact form; `alg` is added to the header."""
    payload = jsontext.encode(claims)
    return jws.serialize_compact({"alg": ALGORITHM, **header}, payload, key, registry=_REGISTRY)


def sha256_base64url(data: bytes | str) -> str:
    """SHA-256 in base64url: 43 characters."""
    return encode_base64url(hashlib.sha256(data.encode() if isinstance(data, str) else data).digest())


def _object(data: bytes) -> dict[str, Any]:
    """Raises Flaw for a name that stands twice: readers differ in which of the two they believe."""
    return parse_strict_object(data, "a part is not a JSON object in which every name stands once")


def parse_strict_object(data: bytes, complaint: str) -> dict[str, Any]:
    """A JSON object in UTF-8, no name twice, no NaN, not deep. Raises Flaw with the complaint."""
    try:
        jsontext.decode(data)  # depth, encoding and numbers: `json` is lenient about all three
        value = json.loads(data.decode(), object_pairs_hook=_unique)
    except (InvalidRequest, ValueError):
        raise ReceiptError(complaint) from None
    if not isinstance(value, dict):
        raise ReceiptError(complaint)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found
