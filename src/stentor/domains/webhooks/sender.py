"""Sends one attempt of a delivery: a signed POST through the SSRF guard.

Signatures follow Standard Webhooks 1.0: HMAC-SHA256 over `id.timestamp.body`, one for each secret.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from stentor import __version__
from stentor.core.clock import SECOND, Clock, micros_from_datetime
from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.http_client.ssrf_guard import TargetRefused
from stentor.core.lazy_import import lazy_module
from stentor.domains.webhooks.model import AttemptResult

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")


BODY_SECONDS = 2.0
"""Limit for the response body. The status counts even if the body is cut off."""
MAX_BODY_BYTES = 4096
"""Bytes of a response body that are read; for a longer one the connection is closed."""
MAX_LOGGED_CHARACTERS = 1000
"""Characters of a response body in the delivery log."""
SECRET_PREFIX = "whsec_"  # noqa: S105
_SECRET_BYTES = 32
REQUEST_HEADERS = {
    "Content-Type": "application/json",
    "User-Agent": f"stentor-webhooks/{__version__}",
    "Accept-Encoding": "identity",
}


class WebhookSender:
    """Sends attempts. `outbound` is not shared with agents, so that they do not wait for each other's connections.

    `timeout_seconds` limits the time until the head of the response: name resolution, connection, request and status.
    """

    def __init__(self, outbound: OutboundHttp, clock: Clock, timeout_seconds: float) -> None:
        self._outbound = outbound
        self._clock = clock
        self._timeout = timeout_seconds

    def now(self) -> int:
        return self._clock.now()

    async def send(self, url: str, message_id: str, body: bytes, secrets: list[str]) -> AttemptResult:
        """Send one attempt and return its result; never raises for what a receiver does."""
        now, started = self._clock.now(), time.perf_counter()
        headers = REQUEST_HEADERS | signature_headers(message_id, now // SECOND, body, secrets)
        status = retry_after = text = error = None
        try:
            self._outbound.check_url(url)
            status, text, after = await self._post(url, body, headers)
            retry_after = _retry_after(after, now)
        except (InvalidRequest, TimeoutError, aiohttp.ClientError, OSError, ValueError) as failure:
            error = _describe_failure(failure, self._timeout)
        duration = int((time.perf_counter() - started) * 1000)
        if status is not None and 300 <= status < 400:
            error = "The receiver redirects. Redirects are not followed: change the webhook's URL."
        return AttemptResult(now, duration, status, error, text, retry_after)

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str, str | None]:
        # No total limit of aiohttp: it would cover head and body together, which have limits of their own.
        session, unlimited = self._outbound.session, aiohttp.ClientTimeout(total=None)
        async with asyncio.timeout(self._timeout):
            response = await session.post(url, data=body, headers=headers, timeout=unlimited, allow_redirects=False)
        async with response:
            text = await _read_start(response)
            return response.status, text, response.headers.get("Retry-After")


async def _read_start(response: aiohttp.ClientResponse) -> str:
    """Return the first characters of the body."""
    start = bytearray()
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            while len(start) < MAX_BODY_BYTES and (chunk := await response.content.read(MAX_BODY_BYTES - len(start))):
                start += chunk
    if not response.content.at_eof():
        response.close()
    # PostgreSQL cannot store NUL.
    return start.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")[:MAX_LOGGED_CHARACTERS]


def _describe_failure(failure: Exception, timeout: float) -> str:
    """Return the error for the log; it reveals nothing about what is behind a private address."""
    refused = isinstance(failure, TargetRefused | InvalidRequest)
    if refused or isinstance(getattr(failure, "os_error", None), TargetRefused):
        return "The receiver's address is not public."
    if isinstance(failure, TimeoutError):
        return f"The receiver did not respond within {timeout:g} s."
    if isinstance(failure, aiohttp.ClientConnectorDNSError):
        return "The receiver's name cannot be resolved."
    if isinstance(failure, aiohttp.ClientSSLError):
        return "The receiver's certificate is not valid for its name."
    if isinstance(failure, aiohttp.ClientConnectorError):
        return "The receiver cannot be reached."
    return f"The receiver closed the connection, or its response is not HTTP ({type(failure).__name__})."


def _retry_after(value: str | None, now: int) -> int | None:
    """Parse Retry-After, seconds or a date, to microseconds from `now`; None for anything else."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        # Ten digits are more than any useful delay, and int() refuses a text of thousands.
        return min(int(text[:10]), 10**9) * SECOND
    try:
        moment = parsedate_to_datetime(text)
        return max(0, micros_from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now)
    except (ValueError, TypeError, OverflowError):
        return None


def new_secret() -> str:
    """Return `whsec_` and 32 random bytes in base64."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signature_headers(message_id: str, seconds: int, body: bytes, keys: Iterable[str]) -> dict[str, str]:
    """Return the three headers of an attempt at the Unix time `seconds`. `keys` are secrets with their prefix."""
    content = f"{message_id}.{seconds}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(_signature(key, content) for key in keys),
    }


def _signature(secret: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
