"""A sign-in in progress at the provider: the values that must come back, kept in an encrypted cookie.

In a cookie and not in memory, so that nobody can fill the memory, and the response counts only in the browser in which
the sign-in began.
"""

from __future__ import annotations

import secrets

import msgspec
from cryptography.fernet import Fernet, InvalidToken

from stentor.auth.oidc.provider import OidcProvider

PENDING_COOKIE = "stentor_sign_in"
HOST_PENDING_COOKIE = f"__Host-{PENDING_COOKIE}"
"""The name over TLS: a sibling domain could otherwise plant the cookie of its own sign-in, and sign the user in as
somebody else.
"""
PENDING_SECONDS = 600
"""How long a user may take at the provider."""
MAX_NEXT_BYTES = 2_000
"""Maximum size of `next_path` in JSON: browsers drop a cookie of more than 4,096 bytes."""


class PendingSignIn(msgspec.Struct, frozen=True):
    """`verifier` is the secret of PKCE; `next_path` is the page to open after the sign-in."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next_path: str


class SingleSignOn:
    """The provider, its name on the button, and the key of the cookies, which each start generates."""

    def __init__(self, provider: OidcProvider, label: str) -> None:
        self.provider, self.label = provider, label
        self._fernet = Fernet(Fernet.generate_key())

    def begin(self, redirect_uri: str, next_path: str) -> PendingSignIn:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        fits = len(msgspec.json.encode(next_path)) <= MAX_NEXT_BYTES
        return PendingSignIn(state, nonce, verifier, redirect_uri, next_path if fits else "")

    def seal(self, pending: PendingSignIn) -> str:
        """Return the value of the cookie."""
        return self._fernet.encrypt(msgspec.json.encode(pending)).decode()

    def open(self, cookie: str) -> PendingSignIn | None:
        """Return what a cookie holds; None for one that is not ours, or too old."""
        try:
            return msgspec.json.decode(self._fernet.decrypt(cookie, ttl=PENDING_SECONDS), type=PendingSignIn)
        except (InvalidToken, ValueError):  # also one that is not ASCII, and what msgspec raises
            return None
