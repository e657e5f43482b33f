"""Redaction of logs: the formatter masks every known secret, and everything that looks like one.

Kept prompts and answers are redacted in `content_redaction`, whose shapes of secrets are masked here too.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING

from stentor.core.lazy_import import lazy_module

if TYPE_CHECKING:
    from stentor.core.security import content_redaction
else:
    # Imported late: it imports this module, and compiles patterns that most commands do not need.
    content_redaction = lazy_module("stentor.core.security.content_redaction")

URL_PARAMETER = (
    r"[\w.%-]{0,40}"
    r"(?:token|key|secret|passw(?:or)?d|pwd|sig|signature|auth|assertion|credential|jwt|(?<![a-z_.-])code)"
    r"(?:\[\w{0,20}\]|%(?:25){0,3}5b\w{0,20}%(?:25){0,3}5d)?(?:=|%(?:25){0,3}3d)"
)
"""The name of a parameter of a URL whose value is secret, up to the value."""
ESCAPED_SEPARATOR = r"\\u0026|%(?:25){0,3}(?:3f|26|23)"
"""What stands before a parameter, as JSON or another URL's parameter has it."""
_LOOKS_SECRET = re.compile(
    r"(?i)(bearer\s+|x-api-key['\"]?\s*[:=]\s*['\"]?|api[-_]?key['\"]?\s*[:=]\s*['\"]?"
    # Also without a scheme.
    r"|authorization['\"]?\s*[:=]\s*['\"]?(?:(?:apikey|basic|bearer|token)\s+)?"
    # A token in place of a URL's user, also one with a password.
    r"|://(?=[^/?#\s:@'\",;]{16,}(?::[^/?#\s'\",;@]*)?@)"
    # The password of a URL, also one that was cut off, but not its port.
    r"|://(?!\[)[^/\s:@]*:(?!\d{1,5}\b(?![^/?#\s'\",;]*@))"
    # A parameter of a URL or of its fragment, also as written in HTML, in JSON or in another URL's parameter.
    rf"|(?:[?&#;]|{ESCAPED_SEPARATOR}){URL_PARAMETER})([^\s'\",;@]+)"
)
MASK = "[redacted]"


class Redactor:
    """Masks the secrets of this process. Add each secret when it is loaded."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()

    def add_secret(self, secret: str) -> None:
        # Shorter ones would mask ordinary words all over the log.
        if len(secret) >= 4:
            # Also in the escaped form that it has in JSON inside a text.
            self._secrets |= {secret, json.dumps(secret)[1:-1]}

    def mask_known(self, text: str, mask: str = MASK) -> str:
        """Replace the secrets of this process."""
        # The longest first: another may be a part of it.
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, mask)
        return text

    def redact(self, text: str) -> str:
        # Shapes first, because some of them are longer than what only looks like a secret.
        text = content_redaction.mask_shapes(self.mask_known(text), lambda kind: MASK)
        return _LOOKS_SECRET.sub(lambda match: match.group(1) + MASK, text)


class RedactingFormatter(logging.Formatter):
    """Formats a record with its traceback, then redacts the complete text.

    All lines but the first are indented, so that no text in a message or an error looks like a line of the log.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(self._redactor.redact(super().format(record)).splitlines())


def configure_logging(level: str, redactor: Redactor) -> None:
    """Log to standard error, redacted. Replaces all existing handlers."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter(redactor))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Otherwise Python prints warnings itself, unredacted.
    logging.captureWarnings(True)
    # It warns of each malformed request, so a client without a key could fill the log.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    for noisy in ("alembic", "aiohttp.access", "asyncio", "httpx", "httpx2", "mcp", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
