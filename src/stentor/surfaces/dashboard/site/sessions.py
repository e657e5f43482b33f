"""Who is signed in: a random name in a cookie, and the key with this process alone.

A key never lies in a page, a cookie or a log. A restart forgets all sessions.

How many sign-ins failed in the last minute, by the address that they came from: nobody locks others out.

Whether a request comes from a page of ours.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

SESSION_COOKIE = "stentor_session"
HOST_SESSION_COOKIE = f"__Host-{SESSION_COOKIE}"
"""Its name over TLS: a browser takes it from this host alone, so that no neighbouring host can plant a session."""
IDLE_SECONDS = 4 * 3600
"""Seconds since the last request, after which a session ends; whoever goes on working ends at the lifetime."""
DEFAULT_LIFETIME_SECONDS = 12 * 3600
"""Seconds since the sign-in, unless the operator sets another number."""
MAX_SESSIONS = 1_000


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


class SessionStore:
    """In memory, by the digest of their name. The longest unused one gives way when there are too many."""

    def __init__(self, now: Callable[[], float], lifetime: float = DEFAULT_LIFETIME_SECONDS) -> None:
        self._now = now
        self.lifetime_seconds = lifetime
        self._sessions: dict[bytes, Session] = {}

    def create(self, key: str, name: str, role: str, permissions: frozenset[str], tenant: str) -> str:
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
            self.delete(token)
            return None
        session.used_at = self._now()
        return session

    def delete(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)

    def _over(self, session: Session) -> bool:
        now = self._now()
        return session.used_at + IDLE_SECONDS < now or session.opened_at + self.lifetime_seconds < now

    def _drop_old(self) -> None:
        for digest, session in list(self._sessions.items()):
            if self._over(session):
                del self._sessions[digest]
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda digest: self._sessions[digest].used_at)]


def read_session_cookie(cookies: Mapping[str, str], *, is_tls: bool) -> str:
    """The value of the session's cookie, empty without one; over TLS only the one that this host alone can have set."""
    return cookies.get(HOST_SESSION_COOKIE) or ("" if is_tls else cookies.get(SESSION_COOKIE, ""))


def is_csrf_token_valid(session: Session, token: str) -> bool:
    """Whether a form's token is the session's."""
    return hmac.compare_digest(session.csrf.encode(), token.encode("utf-8", "replace"))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


THROTTLE_WINDOW_SECONDS = 60.0
MAX_ADDRESSES = 1_000


class LoginThrottle:
    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most = most
        self._now = now
        self._failed: dict[str, deque[float]] = {}

    def record_failure(self, address: str) -> None:
        if address not in self._failed and len(self._failed) >= MAX_ADDRESSES:
            del self._failed[next(iter(self._failed))]
        self._failed.setdefault(address, deque(maxlen=self._most)).append(self._now())

    def is_blocked(self, address: str) -> bool:
        failed = self._failed.get(address)
        return failed is not None and len(failed) == self._most and failed[0] > self._now() - THROTTLE_WINDOW_SECONDS


def is_same_origin(request: Request) -> bool:
    """What the browser says of itself; a client that says nothing is not a browser, and has no cookie to misuse."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is None or _origin_host(origin) == request.headers.get("host")


def _origin_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def is_https_request(request: Request) -> bool:
    """Whether the browser came by TLS: the origin of a form says so also behind a proxy that ends it, as the proxy may.

    Who claims it without TLS gets a cookie that only TLS brings back.
    """
    headers = request.headers
    said = headers.get("origin", "").startswith("https://") or headers.get("x-forwarded-proto") == "https"
    return request.url.scheme == "https" or said
