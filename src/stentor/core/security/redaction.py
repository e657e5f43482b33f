"""Secrets never reach a log: the formatter replaces every known key and everything that looks like one."""

from __future__ import annotations

import logging
import re

_LOOKS_SECRET = re.compile(
    r"(?i)(bearer\s+|x-api-key['\"]?\s*[:=]\s*['\"]?|api[-_]?key['\"]?\s*[:=]\s*['\"]?|://[^/\s:@]+:)([^\s'\",;@]+)"
)
_SIGNED = re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+\.[\w-]*")
"""A signed token: a receipt, a proof, a JWT."""
MASK = "[redacted]"


class Redactor:
    """Knows the secrets of this process. `add` each as it is loaded."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()

    def add_secret(self, secret: str) -> None:
        if len(secret) >= 4:
            self._secrets.add(secret)

    def redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = _SIGNED.sub(MASK, text)
        return _LOOKS_SECRET.sub(lambda match: match.group(1) + MASK, text)


class RedactingFormatter(logging.Formatter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.redact(super().format(record))


def configure_logging(level: str, redactor: Redactor) -> None:
    """Log to standard error, redacted. Replaces whatever handlers stood before."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter(redactor))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn", "alembic", "aiohttp.access", "asyncio", "httpx", "httpx2", "mcp", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
