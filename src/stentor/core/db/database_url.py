"""Addresses of databases: `postgresql://user:password@host:port/name` and `sqlite:///path`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

SCHEMES = ("postgresql", "postgres")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_FORMS = "must be an address such as postgresql://user:password@host:5432/name"


@dataclass(frozen=True)
class DatabaseUrl:
    """`path` is a SQLite file, `url` what PostgreSQL's client takes: one of them is set.

    `shown` is for people and has no password, `secrets` are those that must not be repeated.
    """

    display: str
    path: Path | None = None
    url: str = ""
    secrets: tuple[str, ...] = ()


def parse_database_url(text: str) -> DatabaseUrl:
    """Either kind. Raises ValueError, which repeats nothing of a password."""
    if text.startswith("sqlite:"):
        return parse_sqlite_url(text)
    if text.split(":", 1)[0] in SCHEMES:
        return parse_postgres_url(text)
    raise ValueError("must begin with sqlite:/// or postgresql://")


def parse_sqlite_url(text: str) -> DatabaseUrl:
    """`sqlite:///relative/path` or `sqlite:////absolute/path`. Raises ValueError."""
    if not text.startswith("sqlite:///") or len(text) == len("sqlite:///"):
        raise ValueError("must name a file: sqlite:///data/stentor.db, or sqlite:////var/lib/... from the root")
    path = Path(unquote(text.removeprefix("sqlite:///")))
    return DatabaseUrl(display=str(path), path=path)


def parse_postgres_url(text: str) -> DatabaseUrl:
    """Raises ValueError."""
    if text.split("://", 1)[0] not in SCHEMES or "://" not in text:
        raise ValueError(_FORMS)
    if _ESCAPE.search(text):
        raise ValueError("has a % in it that begins no escape: write it as %25")
    try:
        parts = urlsplit(text)
        query = parse_qs(parts.query)
    except ValueError:
        raise ValueError(_FORMS) from None
    who, at, where = parts.netloc.rpartition("@")
    user, _, password = who.partition(":")
    if any(not port.isdigit() for port in _ports(where)):
        raise ValueError("has a port that is no number")
    secrets = {password, unquote(password), *query.get("password", ()), *query.get("sslpassword", ())}
    host = where or ",".join(query.get("host", ()))
    shown = f"postgresql://{user}{at}{host}{parts.path}"
    return DatabaseUrl(display=shown, url=text, secrets=tuple(sorted(secret for secret in secrets if secret)))


def _ports(hosts: str) -> list[str]:
    """Those that stand behind the hosts, of which there may be several."""
    return [port for host in hosts.split(",") if (port := host.rpartition("]")[2].partition(":")[2])]


def url_secrets(url: str) -> tuple[str, ...]:
    """What of a PostgreSQL address must not be repeated; nothing of one that cannot be read."""
    try:
        return parse_postgres_url(url).secrets if url else ()
    except ValueError:
        return ()
