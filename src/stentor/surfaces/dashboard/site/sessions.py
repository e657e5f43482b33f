"""Who is signed in: a random name in a cookie, and the key with this process alone.

A key never lies in a page, a cookie or a log. A restart forgets all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

import msgspec

COOKIE = "stentor_session"
LASTS = 12 * 3600
"""Seconds since the last request."""
MOST = 1_000


class Session(msgspec.Struct):
    """A key with what the gateway said of it; `csrf` is what every form of this session carries."""

    key: str
    name: str
    role: str
    permissions: frozenset[str]
    tenant: str
    csrf: str
    used_at: float

    def may(self, permission: str) -> bool:
        """As the gateway decides it; only what is shown depends on it here."""
        return permission in self.permissions or "admin" in self.permissions


class Sessions:
    """In memory, by the digest of their name. The longest unused one gives way when there are too many."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sessions: dict[bytes, Session] = {}

    def open(self, key: str, name: str, role: str, permissions: frozenset[str], tenant: str) -> str:
        """Answers the value of the cookie."""
        self._drop_old()
        token = secrets.token_urlsafe(32)
        session = Session(key, name, role, permissions, tenant, secrets.token_urlsafe(32), self._now())
        self._sessions[_digest(token)] = session
        return token

    def find(self, token: str) -> Session | None:
        session = self._sessions.get(_digest(token)) if token else None
        if session is None:
            return None
        if session.used_at + LASTS < self._now():
            self.end(token)
            return None
        session.used_at = self._now()
        return session

    def end(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)

    def _drop_old(self) -> None:
        for digest, session in list(self._sessions.items()):
            if session.used_at + LASTS < self._now():
                del self._sessions[digest]
        if len(self._sessions) >= MOST:
            del self._sessions[min(self._sessions, key=lambda digest: self._sessions[digest].used_at)]


def genuine(session: Session, token: str) -> bool:
    """Whether a form's token is the session's."""
    return hmac.compare_digest(session.csrf.encode(), token.encode("utf-8", "replace"))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
