"""Map error responses of providers to faults.

A fault carries at most the message of the response's body, without keys. Retries within a call are in `transport`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.errors import (
    ProviderBusy,
    ProviderError,
    ProviderFault,
    ProviderTimeout,
    ProviderUnreachable,
)
from stentor.core.security.redaction import MASK
from stentor.domains.llm.providers import Provider

MAX_MESSAGE_LENGTH = 500
DEFAULT_RETRY_SECONDS = 5
"""Retry-After of a 429 without one of its own."""
NOT_ACCEPTED_STATUSES = (429, 503, 529)
"""The provider did not process the request, so a retry is safe; after any other failure it may have done so."""
ACCOUNT_MARKS = (b"API_KEY_INVALID", b"credit balance is too low")
"""Parts of a 400 of Gemini and Anthropic that is not about the request, but about the key or an empty account."""
MAX_RETRY_AFTER_SECONDS = 86_400
MAX_BODY_BYTES = 64 * 1024
"""Largest body that is searched for a message."""
_KEY_PATTERN = re.compile(r"(?i)\b(sk|pk|rk|gsk|xai|aiza|key|bearer)[-_ ]?[\w*.-]{8,}")

_NAME_PATTERN = re.compile(r"(?=.{1,100}$)[a-z_]+(\.[a-z_]+|\[\d+\])*")


def fault_from_response(provider: Provider, status: int, retry_after: str, body: bytes) -> ProviderFault:
    """Return the fault for an error response."""
    fault = _classify(provider, status, body)
    is_about_account = status == 400 and any(mark in body for mark in ACCOUNT_MARKS)
    fault.upstream_status = 401 if is_about_account else status
    fault.details = {"provider": provider.name, "status": status}
    fault.reported_code, fault.reported_param = _extract_name(body, "code"), _extract_name(body, "param")
    if status in NOT_ACCEPTED_STATUSES:
        wait = parse_retry_after(retry_after)
        fault.has_retry_after = wait is not None
        fault.retry_after = wait or (DEFAULT_RETRY_SECONDS if status == 429 else 1)
    return fault


def _classify(provider: Provider, status: int, body: bytes) -> ProviderFault:
    name = provider.name
    message = extract_error_message(body, provider.key)
    said = f": {message}" if message else ""
    if status == 429:
        limited = f"The provider {name} limits the rate of the configured key ({status})"
        return ProviderBusy(limited + (said or ". Retry later."))
    if status in (408, 504):
        return ProviderTimeout(f"The provider {name} timed out ({status}){said or '.'}")
    if status in (502, 503, 529):
        return ProviderUnreachable(f"The provider {name} is unavailable ({status}){said or '. Retry later.'}")
    if status == 401:
        return ProviderError(f"The provider {name} rejected its configured key ({status}){said or '. Check the key.'}")
    if status == 403:
        return ProviderError(f"The provider {name} refused access ({status}){said or '. Check its key.'}")
    if 300 <= status < 400:
        return ProviderError(f"The provider {name} redirected the request ({status}). Check its base address.")
    return ProviderError(f"The provider {name} returned {status}{said or '.'}")


def extract_error_message(body: bytes, key: str) -> str:
    """Return the message of an error body as one line without secrets, empty if there is none."""
    error = _find_error(body)
    text = error.get("message") if isinstance(error, dict) else error
    if not isinstance(text, str):
        return ""
    if key:
        text = text.replace(key, MASK)
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return _KEY_PATTERN.sub(MASK, line)[:MAX_MESSAGE_LENGTH]


def _find_error(body: bytes) -> Any:
    if len(body) > MAX_BODY_BYTES:
        return None
    try:
        document = jsontext.load(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if isinstance(document, list) and document:  # some servers wrap the error in a list
        document = document[0]
    return document.get("error", document) if isinstance(document, dict) else None


def _extract_name(body: bytes, field: str) -> str | None:
    """Return the code or the parameter that an error body names; None for anything but a plain name."""
    error = _find_error(body)
    name = error.get(field) if isinstance(error, dict) else None
    return name if isinstance(name, str) and _NAME_PATTERN.fullmatch(name) else None


def parse_retry_after(value: str) -> int | None:
    """Return the seconds of a Retry-After header (a number or a date), at least 1; None if it is neither."""
    try:
        wait = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value).astimezone(UTC)
        except (ValueError, OverflowError):
            return None
        wait = (moment - datetime.now(UTC)).total_seconds()
    if wait != wait:  # NaN, which float() accepts
        return None
    # Rounded up, because a retry a moment too early is rejected again.
    return int(max(1, min(MAX_RETRY_AFTER_SECONDS, wait + 0.999)))
