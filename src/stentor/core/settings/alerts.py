"""Settings of alerts: when they open, and where their e-mails go."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import msgspec

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting

# The ports for submission by clients, not port 25 for relay between servers.
DEFAULT_PORTS = {"smtp": 587, "smtps": 465}


class SmtpServer(msgspec.Struct, frozen=True):
    """A mail server; `tls` from the first byte, or else as soon as the server offers it."""

    host: str
    port: int
    tls: bool
    user: str
    password: str


def parse_smtp_url(url: str) -> SmtpServer:
    """Parse `smtp://[user:password@]host[:port]`, or `smtps://` for TLS from the first byte. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("must be a URL such as smtps://user:password@mail.example.com")
    if bool(parts.username) != bool(parts.password):
        raise ValueError("needs both a user and a password, or neither; write special characters as %40")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    return SmtpServer(parts.hostname, port, parts.scheme == "smtps", user, password)


def mail_addresses(value: str) -> tuple[str, ...]:
    """Parse comma-separated addresses. Raises ValueError."""
    addresses = parsers.text_list(value)
    for address in addresses:
        name, _, domain = address.rpartition("@")
        if not name or not domain or not address.isprintable() or any(c in " <>\"',;:\\" for c in address):
            raise ValueError("must be addresses such as ops@example.com, comma separated")
    return addresses


def smtp_url(value: str) -> str:
    """Check the URL of a mail server. Raises ValueError."""
    if value:
        parse_smtp_url(value)
    return value


def mail_address(value: str) -> str:
    """Parse one address or none. Raises ValueError."""
    if len(mail_addresses(value)) > 1:
        raise ValueError("must be one address")
    return value


@dataclass(frozen=True)
class AlertSettings:
    failure_percent: float = setting(
        "SERVICE_ALERT_FAILURE_PERCENT",
        50.0,
        "Share of an agent's tasks of the last 15 minutes in percent that may fail before an alert; fewer than 5 "
        "failures never open one. 0 switches it off.",
        parsers.number(0, 100, float),
    )
    wait_seconds: float = setting(
        "SERVICE_ALERT_WAIT_SECONDS",
        300.0,
        "Seconds that a task may wait in the queue or for approval, and a worker be offline, before an alert; 0 "
        "switches these off.",
        parsers.number(0, 1e7, float),
    )
    budget_percent: float = setting(
        "SERVICE_ALERT_BUDGET_PERCENT",
        80.0,
        "Share of a budget for model calls in percent that is spent before an alert; 0 switches it off.",
        parsers.number(0, 100, float),
    )
    emails: tuple[str, ...] = setting(
        "SERVICE_ALERT_EMAILS",
        (),
        "Addresses that get an e-mail when an alert opens and when it resolves, comma separated. Needs "
        "SERVICE_SMTP_URL.",
        mail_addresses,
    )
    email_from: str = setting(
        "SERVICE_ALERT_EMAIL_FROM",
        "",
        "Sender of these e-mails; empty means `stentor@` and the name of this machine.",
        mail_address,
    )
    smtp_url: str = setting(
        "SERVICE_SMTP_URL",
        "",
        "Mail server, such as smtps://user:password@mail.example.com (TLS) or smtp://mail.example.com:587 (TLS if it "
        "is offered; a password is sent over TLS only).",
        smtp_url,
        secret=True,
    )
