"""One attempt: a signed POST through the guard of outbound HTTP, and what came back, cut short.

Signatures as Standard Webhooks 1.0 has them: HMAC-SHA256 over `id.timestamp.body`, one for each secret.
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
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from stentor import __version__
from stentor.core.clock import SECOND, Clock, micros_from_datetime
from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import OutboundHttp, TargetRefused
from stentor.core.lazy_import import lazy_module
from stentor.domains.webhooks.model import AttemptResult

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")


DEFAULT_TIMEOUT_SECONDS = 15.0
"""Seconds until the head of the answer: name, connection, request and its status."""
BODY_SECONDS = 2.0
"""How long its body may take; the status counts whatever becomes of the body."""
MAX_BODY_BYTES = 4096
"""Bytes of an answer's body that are read; the connection is closed when there are more."""
MAX_LOGGED_CHARACTERS = 1000
"""Characters of it that the log keeps."""
REQUEST_HEADERS = {
    "Content-Type": "application/json",
    "User-Agent": f"stentor-webhooks/{__version__}",
    "Accept-Encoding": "identity",
}


class WebhookSender:
    """`outbound` is its own, so that receivers and agents do not wait for each other's connections."""

    def __init__(self, outbound: OutboundHttp, clock: Clock, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._outbound = outbound
        self._clock = clock
        self._timeout = timeout_seconds

    def now(self) -> int:
        return self._clock.now()

    async def send(self, url: str, message_id: str, body: bytes, secrets: list[str]) -> AttemptResult:
        """Never raises for what a receiver does."""
        now, started = self._clock.now(), time.perf_counter()
        headers = REQUEST_HEADERS | signature_headers(message_id, now // SECOND, body, secrets)
        status = retry_after = text = error = None
        try:
            self._outbound.check_url(url)
            status, text, after = await self._post(url, body, headers)
            retry_after = _retry_after(after, now)
        except (InvalidRequest, TimeoutError, aiohttp.ClientError, OSError, ValueError) as failure:
            error = _reason(failure, self._timeout)
        duration = int((time.perf_counter() - started) * 1000)
        if status is not None and 300 <= status < 400:
            error = "The receiver redirects, and redirects are not followed."
        return AttemptResult(now, duration, status, error, text, retry_after)

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str, str | None]:
        session, unlimited = self._outbound.session, aiohttp.ClientTimeout(total=None)
        async with asyncio.timeout(self._timeout):
            answer = await session.post(url, data=body, headers=headers, timeout=unlimited, allow_redirects=False)
        async with answer:
            read = await _start_of(answer)
            return answer.status, read, answer.headers.get("Retry-After")


async def _start_of(answer: aiohttp.ClientResponse) -> str:
    """The first characters of the body."""
    read = bytearray()
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            while len(read) < MAX_BODY_BYTES and (chunk := await answer.content.read(MAX_BODY_BYTES - len(read))):
                read += chunk
    if not answer.content.at_eof():
        answer.close()
    return read.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")[:MAX_LOGGED_CHARACTERS]


def _reason(failure: Exception, timeout: float) -> str:
    """What is told of a failure: nothing of what stands behind a private address."""
    refused = isinstance(failure, TargetRefused | InvalidRequest)
    if refused or isinstance(getattr(failure, "os_error", None), TargetRefused):
        return "The receiver's address is not public."
    if isinstance(failure, TimeoutError):
        return f"The receiver did not answer within {timeout:g} s."
    if isinstance(failure, aiohttp.ClientConnectorDNSError):
        return "The receiver's name cannot be resolved."
    if isinstance(failure, aiohttp.ClientSSLError):
        return "The receiver's certificate is not valid for its name."
    if isinstance(failure, aiohttp.ClientConnectorError):
        return "The receiver cannot be connected to."
    return f"The receiver broke off, or its answer is not HTTP ({type(failure).__name__})."


def _retry_after(value: str | None, now: int) -> int | None:
    """Microseconds from now, of seconds or of a date; None for anything else."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:10]), 10**9) * SECOND
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0, micros_from_datetime(_aware(moment)) - now)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


SECRET_PREFIX = "whsec_"  # noqa: S105
_SECRET_BYTES = 32


def new_secret() -> str:
    """`whsec_` and 32 random bytes in base64."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signature_headers(message_id: str, seconds: int, body: bytes, keys: Iterable[str]) -> dict[str, str]:
    """The three headers of an attempt at a Unix time. `keys` are secrets with their prefix."""
    content = f"{message_id}.{seconds}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(_signature(key, content) for key in keys),
    }


def _signature(secret: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
