"""What a provider's answer other than 200 means, with at most the message of its body and no key."""

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

MAX_MESSAGE = 500
WAIT = 5
"""Seconds that callers are told to wait when a busy provider does not say."""
NOT_TAKEN = (429, 503, 529)
"""The provider says that it did not take the request; after any other failure it may have been carried out."""
MAX_RETRY_AFTER = 86_400
_LIKE_A_KEY = re.compile(r"(?i)\b(sk|pk|rk|gsk|xai|aiza|key|bearer)[-_ ]?[\w*.-]{8,}")


def refusal(provider: Provider, status: int, retry_after: str, body: bytes) -> ProviderFault:
    """The fault that an answer with this status stands for."""
    fault = _kind(provider, status, body)
    fault.upstream_status = status
    fault.details = {"provider": provider.name, "status": status}
    if status in NOT_TAKEN:
        wait = seconds(retry_after)
        fault.has_retry_after = wait is not None
        fault.retry_after = wait or (WAIT if status == 429 else 1)
    return fault


def _kind(provider: Provider, status: int, body: bytes) -> ProviderFault:
    name = provider.name
    if status == 429:
        return ProviderBusy(f"The provider {name} has no capacity for this key now.")
    if status in (408, 504):
        return ProviderTimeout(f"The provider {name} did not answer in time.")
    if status in (502, 503, 529):
        return ProviderUnreachable(f"The provider {name} is not available ({status}).")
    if status in (401, 403):
        return ProviderError(f"The provider {name} refused the key that is configured for it ({status}).")
    if 300 <= status < 400:
        return ProviderError(f"The provider {name} sent the request elsewhere ({status}), which is not followed.")
    said = message_of(body, provider.key)
    return ProviderError(f"The provider {name} answered {status}{': ' + said if said else '.'}")


MAX_BODY = 64 * 1024
"""Bytes of a body that is looked at for a message: a larger one is none that tells one."""


def message_of(body: bytes, key: str) -> str:
    """The message in an error's body, one line without secrets; empty when there is none."""
    if len(body) > MAX_BODY:
        return ""
    try:
        answer = jsontext.load(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
    if isinstance(answer, list) and answer:
        answer = answer[0]
    found: Any = answer.get("error", answer) if isinstance(answer, dict) else None
    text = found.get("message") if isinstance(found, dict) else found
    if not isinstance(text, str):
        return ""
    if key:
        text = text.replace(key, MASK)
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return _LIKE_A_KEY.sub(MASK, line)[:MAX_MESSAGE]


def seconds(value: str) -> int | None:
    """Of a Retry-After, a number or a date, at least 1; None for what is neither."""
    try:
        wait = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value).astimezone(UTC)
        except (ValueError, OverflowError):
            return None
        wait = (moment - datetime.now(UTC)).total_seconds()
    if wait != wait:
        return None
    return int(max(1, min(MAX_RETRY_AFTER, wait + 0.999)))
