"""Sessions of signed-in users, the throttle of failed sign-ins, and the CSRF and same-origin checks.

The cookie holds a random token; the gateway key stays in this process's memory, never in a page, cookie or log. A
restart ends all sessions. The HTTP API has its own check: `authentication`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

from stentor.auth.principal import Principal, Role
from stentor.core.jsontext import JsonObject

SESSION_COOKIE = "stentor_session"
HOST_SESSION_COOKIE = f"__Host-{SESSION_COOKIE}"
"""The name over TLS: with the `__Host-` prefix a browser accepts it from this host only, not from a sibling domain."""
IDLE_SECONDS = 4 * 3600
"""Seconds without a request after which a session ends; an active session ends at its lifetime."""
DEFAULT_LIFETIME_SECONDS = 12 * 3600
"""Seconds since the sign-in, unless the operator sets another lifetime."""
MAX_SESSIONS = 1_000
MAX_KEPT = 8
"""Values that a session keeps for pages after a redirect."""
THROTTLE_WINDOW_SECONDS = 60.0
MAX_ADDRESSES = 1_000


class BrowserSession(msgspec.Struct):
    """A gateway key with its name, role and permissions; every form of this session carries the token `csrf`."""

    key: str
    name: str
    role: str
    permissions: frozenset[str]
    tenant: str
    csrf: str
    used_at: float
    opened_at: float = 0.0
    is_personal: bool = False
    """Whether `key` is a session of the gateway, which ends with a sign-out, instead of an API key."""
    visited_at: int = 0
    """When the browser last had the overview before this session, in microseconds; 0 if that is unknown."""
    team: str = ""
    kept: dict[tuple[str, str], JsonObject] = msgspec.field(default_factory=dict)
    """What the page after a redirect shows, by its path and the key in its address; the newest `MAX_KEPT`."""

    def set_holder(self, holder: Mapping[str, Any]) -> None:
        """Set the name, role, permissions and team that the gateway reports for the key."""
        self.name, self.role = holder["name"], holder["role"]
        self.permissions = frozenset(holder["permissions"])
        self.team = holder.get("team", "")

    def may(self, permission: str) -> bool:
        """Return whether the key has a permission. Decides what pages show; the gateway enforces it."""
        return permission in self.permissions or "admin" in self.permissions

    @property
    def may_configure(self) -> bool:
        """Whether the key may make keys and set budgets, groups and fallbacks: an admin's, unless it is an agent's."""
        return self.may("admin") and self.role != "agent"

    @property
    def principal(self) -> Principal:
        """The holder of the key, for the rules by which the gateway decides on an action."""
        return Principal(self.name, cast("Role", self.role), self.permissions, self.tenant, team=self.team)

    def keep(self, path: str, values: JsonObject) -> str:
        """Keep the values for the page at `path` after a redirect; return their key."""
        key = secrets.token_urlsafe(8)
        self.kept[path, key] = values
        while len(self.kept) > MAX_KEPT:
            del self.kept[next(iter(self.kept))]
        return key


class SessionStore:
    """Sessions in memory by the digest of their token; evicts the least recently used one when full."""

    def __init__(self, now: Callable[[], float], lifetime: float = DEFAULT_LIFETIME_SECONDS) -> None:
        self._now = now
        self.lifetime_seconds = lifetime
        self._sessions: dict[bytes, BrowserSession] = {}

    def create(self, key: str, holder: Mapping[str, Any], visited_at: int = 0, *, is_personal: bool = False) -> str:
        """Create a session for the holder of a key, as the gateway describes it; return the value of the cookie."""
        self._evict()
        token, now = secrets.token_urlsafe(32), self._now()
        self._sessions[_digest(token)] = BrowserSession(
            key,
            holder["name"],
            holder["role"],
            frozenset(holder["permissions"]),
            holder["tenant"],
            secrets.token_urlsafe(32),
            now,
            now,
            is_personal,
            visited_at,
            holder.get("team", ""),
        )
        return token

    def find(self, token: str) -> BrowserSession | None:
        """Return the session of a token, None when it does not exist or has expired."""
        session = self._sessions.get(_digest(token)) if token else None
        if session is None:
            return None
        if self._is_expired(session):
            self.delete(token)
            return None
        session.used_at = self._now()  # extends the idle time
        return session

    def is_open(self, token: str) -> bool:
        """Return whether a token's session exists and has not expired; it does not count as a request."""
        session = self._sessions.get(_digest(token))
        return session is not None and not self._is_expired(session)

    def delete(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)

    def _is_expired(self, session: BrowserSession) -> bool:
        now = self._now()
        return session.used_at + IDLE_SECONDS < now or session.opened_at + self.lifetime_seconds < now

    def _evict(self) -> None:
        for digest, session in list(self._sessions.items()):
            if self._is_expired(session):
                del self._sessions[digest]
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda digest: self._sessions[digest].used_at)]


def is_bound_agent(holder: Mapping[str, Any]) -> bool:
    """Return whether the holder of a key is an agent without `admin`, which has no session of the pages."""
    return holder["role"] == "agent" and "admin" not in holder["permissions"]


def read_session_cookie(cookies: Mapping[str, str], *, is_tls: bool) -> str:
    """Return the session's token, empty without a cookie; over TLS only from the `__Host-` cookie."""
    # Over TLS the other name is not accepted: a sibling domain could have set it.
    return cookies.get(HOST_SESSION_COOKIE) or ("" if is_tls else cookies.get(SESSION_COOKIE, ""))


def mask_csrf_token(token: str) -> str:
    """Return a session's CSRF token as a page has it: different in each response.

    Pages are compressed, and what stays the same in compressed responses can be guessed from their lengths (BREACH).
    """
    secret = token.encode()
    mask = secrets.token_bytes(len(secret))
    return base64.urlsafe_b64encode(mask + _xor(mask, secret)).decode()


def is_csrf_token_valid(session: BrowserSession, token: str) -> bool:
    """Return whether a form's CSRF token, masked as in a page, belongs to the session."""
    try:
        masked = base64.urlsafe_b64decode(token)
    except ValueError:
        return False
    half = len(masked) // 2
    return hmac.compare_digest(session.csrf.encode(), _xor(masked[:half], masked[half:]))


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=False))


class LoginThrottle:
    """Tells after `max_failures` failed sign-ins within a minute that there were many from an address.

    It only changes the message about the next failure: behind a proxy all users share one address, and no user may lock
    out others.
    """

    def __init__(self, max_failures: int, now: Callable[[], float]) -> None:
        self._max_failures = max_failures
        self._now = now
        self._failures: dict[str, deque[float]] = {}

    def record_failure(self, address: str) -> None:
        # The oldest entry goes, so that many addresses cannot fill the memory.
        if address not in self._failures and len(self._failures) >= MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        self._failures.setdefault(address, deque(maxlen=self._max_failures)).append(self._now())

    def is_blocked(self, address: str) -> bool:
        times = self._failures.get(address)
        if times is None or len(times) < self._max_failures:
            return False
        return times[0] > self._now() - THROTTLE_WINDOW_SECONDS


def is_same_origin(request: Request) -> bool:
    """Return whether the browser reports the request as same-origin.

    Allows requests with neither header: they come from no browser, so there is no victim's cookie to misuse.
    """
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
    """Return whether the browser uses TLS, also when a proxy terminates it (then the headers say so).

    A false claim harms only its sender, who gets a `Secure` cookie that is not sent back without TLS.
    """
    return is_tls_request(request) or request.headers.get("origin", "").startswith("https://")


def is_tls_request(request: Request) -> bool:
    """Return whether the connection, or the proxy by its header, says that the request came over TLS."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


# Digests, so that a dump of this process's memory does not show tokens that are still valid.
def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
