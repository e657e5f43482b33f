"""Who is signed in: a random name in a cookie, and the key with this process alone.

A key never lies in a page, a cookie or a log. A restart forgets all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping

import msgspec

COOKIE = "stentor_session"
HOST_COOKIE = f"__Host-{COOKIE}"
"""Its name over TLS: a browser takes it from this host alone, so that no neighbouring host can plant a session."""
IDLE = 4 * 3600
"""Seconds since the last request, after which a session ends; whoever goes on working ends at the lifetime."""
LIFETIME = 12 * 3600
"""Seconds since the sign-in, unless the operator sets another number."""
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
    opened_at: float = 0.0

    def may(self, permission: str) -> bool:
        """As the gateway decides it; only what is shown depends on it here."""
        return permission in self.permissions or "admin" in self.permissions


class Sessions:
    """In memory, by the digest of their name. The longest unused one gives way when there are too many."""

    def __init__(self, now: Callable[[], float], lifetime: float = LIFETIME) -> None:
        self._now = now
        self.lifetime = lifetime
        self._sessions: dict[bytes, Session] = {}

    def open(self, key: str, name: str, role: str, permissions: frozenset[str], tenant: str) -> str:
        """Answers the value of the cookie."""
        self._drop_old()
        token = secrets.token_urlsafe(32)
        session = Session(key, name, role, permissions, tenant, secrets.token_urlsafe(32), self._now(), self._now())
        self._sessions[_digest(token)] = session
        return token

    def find(self, token: str) -> Session | None:
        session = self._sessions.get(_digest(token)) if token else None
        if session is None:
            return None
        if self._over(session):
            self.end(token)
            return None
        session.used_at = self._now()
        return session

    def end(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)

    def _over(self, session: Session) -> bool:
        now = self._now()
        return session.used_at + IDLE < now or session.opened_at + self.lifetime < now

    def _drop_old(self) -> None:
        for digest, session in list(self._sessions.items()):
            if self._over(session):
                del self._sessions[digest]
        if len(self._sessions) >= MOST:
            del self._sessions[min(self._sessions, key=lambda digest: self._sessions[digest].used_at)]


def presented(cookies: Mapping[str, str], *, tls: bool) -> str:
    """The value of the session's cookie, empty without one; over TLS only the one that this host alone can have set."""
    return cookies.get(HOST_COOKIE) or ("" if tls else cookies.get(COOKIE, ""))


def genuine(session: Session, token: str) -> bool:
    """Whether a form's token is the session's."""
    return hmac.compare_digest(session.csrf.encode(), token.encode("utf-8", "replace"))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
