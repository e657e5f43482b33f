"""Parse database URLs: `postgresql://user:password@host:port/name` and `sqlite:///path`.

No error message contains a password. Opening the database is up to `sqlite` and `postgres`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

SCHEMES = ("postgresql", "postgres")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_AT_AFTER_HOST = re.compile(r"\w+://(?:[^/]*@|[^/?#]*/[^?#]*@[^?#]*/)")
"""An @ before the path or within it, which no host and no name of a database has."""
_ESCAPES = "in a password write / as %2F, ? as %3F and # as %23"
_FORMAT_ERROR = "must be a URL such as postgresql://user:password@host:5432/name"


@dataclass(frozen=True)
class DatabaseUrl:
    """A parsed database URL: either `path` (a SQLite file) or `url` (for PostgreSQL's client) is set.

    `display` has no password and may be printed. `secrets` are the texts that must not appear in logs or errors.
    """

    display: str
    path: Path | None = None
    url: str = ""
    secrets: tuple[str, ...] = ()


def parse_database_url(text: str) -> DatabaseUrl:
    """Parse a SQLite or PostgreSQL URL. Raises ValueError with a message that contains no part of a password."""
    if text.startswith("sqlite:"):
        return parse_sqlite_url(text)
    if text.split(":", 1)[0] in SCHEMES:
        return parse_postgres_url(text)
    raise ValueError("must begin with sqlite:/// or postgresql://")


def parse_sqlite_url(text: str) -> DatabaseUrl:
    """Parse `sqlite:///relative/path` or `sqlite:////absolute/path`. Raises ValueError."""
    if not text.startswith("sqlite:///") or len(text) == len("sqlite:///"):
        raise ValueError("must name a file: sqlite:///data/stentor.db, or sqlite:////var/lib/... from the root")
    path = Path(unquote(text.removeprefix("sqlite:///")))
    return DatabaseUrl(display=str(path), path=path)


def parse_postgres_url(text: str) -> DatabaseUrl:
    """Parse a PostgreSQL URL, in which several hosts are allowed. Raises ValueError."""
    if text.split("://", 1)[0] not in SCHEMES or "://" not in text:
        raise ValueError(_FORMAT_ERROR)
    if _BAD_ESCAPE.search(text):
        raise ValueError("has a % that does not begin an escape: write it as %25")
    try:
        parts = urlsplit(text)
        query = parse_qs(parts.query)
    except ValueError:
        raise ValueError(_FORMAT_ERROR) from None
    credentials, at, hosts = parts.netloc.rpartition("@")
    if "@" in credentials:
        # The client would take the part after the first one as the host, and print it.
        raise ValueError("has an @ in its user or password: write it as %40")
    user, _, password = credentials.partition(":")
    # The password may begin with digits, which look like a port.
    if not at and _AT_AFTER_HOST.match(text):
        raise ValueError(f"has an @ after the host; {_ESCAPES}")
    if any(not port.isdigit() for port in _ports(hosts)):
        raise ValueError(f"has a port that is not a number; {_ESCAPES}")
    # The password can also be in the query, and the client may report it decoded.
    secrets = {password, unquote(password), *query.get("password", ()), *query.get("sslpassword", ())}
    host = hosts or ",".join(query.get("host", ()))
    display = f"postgresql://{user}{at}{host}{parts.path}"
    return DatabaseUrl(display=display, url=text, secrets=tuple(sorted(secret for secret in secrets if secret)))


def _ports(hosts: str) -> list[str]:
    # An IPv6 host has colons of its own, inside brackets.
    return [port for host in hosts.split(",") if (port := host.rpartition("]")[2].partition(":")[2])]


def url_secrets(url: str) -> tuple[str, ...]:
    """Return the texts of a PostgreSQL URL that must not be printed; none for a URL that cannot be parsed."""
    try:
        return parse_postgres_url(url).secrets if url else ()
    except ValueError:
        return ()
