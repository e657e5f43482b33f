"""The check of an ID token: signature, issuer, audience, times and nonce. Pure; fails closed.

Source: OpenID Connect Core 1.0, section 3.1.3.7.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key

from stentor.core.clock import SECOND
from stentor.core.errors import SignInFailed
from stentor.core.jsontext import JsonObject

ALGORITHMS = tuple("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 Ed25519 EdDSA".split())
"""Signatures with the provider's private key. Never HS256: whoever knows the client's secret could sign."""
MAX_LENGTH = 50_000
"""Characters of a token; some providers list hundreds of groups."""
LEEWAY_US = 60 * SECOND
"""How far the clocks of the provider and of this machine may differ."""
MAX_AGE_US = 600 * SECOND
"""An older token was not issued for this sign-in."""


def read_key_id(token: str) -> str | None:
    """Return the `kid` that a token names, without checking anything else. Raises SignInFailed."""
    if len(token) > MAX_LENGTH:
        raise SignInFailed("The ID token is too long.")
    try:
        header = jws.extract_compact(token.encode()).headers()
    except (JoseError, ValueError) as error:
        raise SignInFailed("The ID token is not a signed JWT.") from error
    return str(header["kid"]) if header.get("kid") is not None else None


def verify(token: str, keys: Iterable[Key], *, issuer: str, client_id: str, nonce: str, now: int) -> JsonObject:
    """Return the claims of a token. `keys` are those that may have signed it, `now` is in microseconds.

    Raises SignInFailed, which says what is wrong.
    """
    claims = _read_signed(token, keys)
    if claims is None:
        raise SignInFailed("The ID token is not signed with a key of the provider.")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != issuer:
        raise SignInFailed("The ID token is from another issuer.")
    if client_id not in audiences or claims.get("azp", client_id) != client_id:
        raise SignInFailed("The ID token was issued for another client.")
    if len(audiences) > 1 and "azp" not in claims:
        raise SignInFailed("The ID token has several audiences, and does not say for whom it was issued.")
    # The caller chooses the nonce. If only its text were compared, "None" would match a token that has no nonce.
    found = claims.get("nonce")
    if not isinstance(found, str) or not hmac.compare_digest(found.encode(errors="surrogatepass"), nonce.encode()):
        raise SignInFailed("The ID token belongs to another sign-in.")
    if _time(claims, "exp") <= now - LEEWAY_US:
        raise SignInFailed("The ID token has expired.")
    if not now - MAX_AGE_US <= _time(claims, "iat") <= now + LEEWAY_US:
        raise SignInFailed("The ID token was not issued just now: compare the clocks of the provider and this machine.")
    # RFC 7519, section 4.1.5: no token may be accepted before this time.
    if "nbf" in claims and _time(claims, "nbf") > now + LEEWAY_US:
        raise SignInFailed("The ID token is not valid yet: compare the clocks of the provider and this machine.")
    subject = claims.get("sub")
    # Core 1.0, section 2: ASCII. PostgreSQL takes no NUL, and nothing takes an unpaired surrogate.
    if not isinstance(subject, str) or not subject or not subject.isprintable():
        raise SignInFailed("The ID token has no valid subject (claim sub).")
    return claims


def is_signed(token: str, keys: Iterable[Key]) -> bool:
    """Return whether one of the keys has signed the token; the claims are not checked."""
    return _read_signed(token, keys) is not None


def _read_signed(token: str, keys: Iterable[Key]) -> dict[str, Any] | None:
    for key in keys:
        try:
            return jwt.decode(token, key, algorithms=ALGORITHMS).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            continue  # signed with another key, or with an algorithm that does not fit this one
    return None


def _time(claims: JsonObject, name: str) -> int:
    """Return a time in seconds as microseconds."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise SignInFailed(f"The ID token has no valid {name}.")
    return int(value * SECOND)
