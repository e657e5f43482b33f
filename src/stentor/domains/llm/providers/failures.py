"""What a provider's answer other than 200 means, with at most the message of its body and no key.

Leaves a provider alone for a while after it failed several times in a row, then tries it with one call.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import SECOND, Clock
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
"""Seconds that callers are told to wait when a busy provider does not say."""
NOT_ACCEPTED_STATUSES = (429, 503, 529)
"""The provider says that it did not take the request; after any other failure it may have been carried out."""
MAX_RETRY_AFTER_SECONDS = 86_400
_LIKE_A_KEY = re.compile(r"(?i)\b(sk|pk|rk|gsk|xai|aiza|key|bearer)[-_ ]?[\w*.-]{8,}")


def fault_from_response(provider: Provider, status: int, retry_after: str, body: bytes) -> ProviderFault:
    """The fault that an answer with this status stands for."""
    fault = _classify(provider, status, body)
    fault.upstream_status = status
    fault.details = {"provider": provider.name, "status": status}
    if status in NOT_ACCEPTED_STATUSES:
        wait = parse_retry_after(retry_after)
        fault.has_retry_after = wait is not None
        fault.retry_after = wait or (DEFAULT_RETRY_SECONDS if status == 429 else 1)
    return fault


def _classify(provider: Provider, status: int, body: bytes) -> ProviderFault:
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
    said = extract_error_message(body, provider.key)
    return ProviderError(f"The provider {name} answered {status}{': ' + said if said else '.'}")


MAX_BODY_BYTES = 64 * 1024
"""Bytes of a body that is looked at for a message: a larger one is none that tells one."""


def extract_error_message(body: bytes, key: str) -> str:
    """The message in an error's body, one line without secrets; empty when there is none."""
    if len(body) > MAX_BODY_BYTES:
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
    return _LIKE_A_KEY.sub(MASK, line)[:MAX_MESSAGE_LENGTH]


def parse_retry_after(value: str) -> int | None:
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
    return int(max(1, min(MAX_RETRY_AFTER_SECONDS, wait + 0.999)))


FAILURE_THRESHOLD = 5
COOLDOWN_SECONDS = 30
"""Seconds."""


class _CircuitState(msgspec.Struct):
    failures: int = 0
    rests_until: int = 0
    trying: bool = False


class CircuitBreaker:
    """Counted in this process, per tenant and provider: what one tenant's calls run into rests nobody else's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[tuple[str, str, str], _CircuitState] = {}

    def before_call(self, tenant: str, provider: Provider) -> None:
        """Raises ProviderUnreachable while the provider rests."""
        name = provider.name
        state = self._states.setdefault((tenant, name, provider.base_url), _CircuitState())
        if state.failures < FAILURE_THRESHOLD:
            return
        left = state.rests_until - self._clock.now()
        if left > 0 or state.trying:
            fault = ProviderUnreachable(f"The provider {name} failed {state.failures} times and is left alone for now.")
            fault.retry_after = max(1, left // SECOND)
            fault.was_called = False
            raise fault
        state.trying = True

    def is_open(self, tenant: str, provider: Provider) -> bool:
        """Whether a call would not be let in now."""
        state = self._states.get((tenant, provider.name, provider.base_url))
        if state is None or state.failures < FAILURE_THRESHOLD:
            return False
        return state.trying or state.rests_until > self._clock.now()

    def count_open(self) -> int:
        """How many providers are left alone now."""
        now = self._clock.now()
        return sum(
            state.failures >= FAILURE_THRESHOLD and state.rests_until > now for state in list(self._states.values())
        )

    def after_call(self, tenant: str, provider: Provider, error: BaseException | None) -> None:
        """How a call that entered has ended; what was given up says nothing."""
        at = (tenant, provider.name, provider.base_url)
        state = self._states.setdefault(at, _CircuitState())
        state.trying = False
        if error is None or (isinstance(error, ProviderFault) and not _is_outage(error)):
            self._states.pop(at)
        elif isinstance(error, ProviderFault):
            state.failures += 1
            state.rests_until = self._clock.now() + COOLDOWN_SECONDS * SECOND


def _is_outage(fault: ProviderFault) -> bool:
    """Whether it says that the provider itself is in trouble, and not this request or this key."""
    if isinstance(fault, ProviderBusy):
        return False
    unwell = isinstance(fault, ProviderUnreachable | ProviderTimeout)
    return unwell or fault.upstream_status is None or fault.upstream_status >= 500
