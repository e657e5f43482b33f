"""Subscriptions and deliveries, and what becomes of a delivery after an attempt: pure.

Source: core contract, "Webhooks"; Standard Webhooks 1.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from stentor.core.clock import HOUR, SECOND
from stentor.core.errors import InvalidRequest

PING = "webhook.ping"
EVENTS = (
    "task.submitted",
    "task.started",
    "task.completed",
    "task.failed",
    "task.aborted",
    "task.cancelled",
    "task.pending_approval",
    "update.submitted",
    "update.approved",
    "update.rejected",
    "update.deployed",
    "update.rolled_back",
    "rollback.completed",
    "rollback.failed",
    "agent.registered",
    "agent.suspended",
    "agent.quarantined",
    "agent.cleared",
    "memory.written",
    "memory.conflict",
    "sentinel.alert",
    "trust.level_changed",
    PING,
)
EVENT_PATTERNS = ("*", *dict.fromkeys(f"{name.partition('.')[0]}.*" for name in EVENTS))
MINUTE = 60 * SECOND
RETRY_DELAYS_US = (
    *(5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR),
    *(10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR),
)
"""How long after the first, second, ... failed attempt the next one comes, in microseconds."""
JITTER_RATIO = 0.1
"""A wait is lengthened by up to this share of it."""
MAX_HOLD_US = 24 * HOUR
GONE_STATUS = 410
BUSY_STATUSES = (429, 503)

DeliveryStatus = Literal["waiting", "sending", "delivered", "failed"]


class WebhookSubscription(msgspec.Struct, frozen=True):
    """`events` as they were asked for, patterns included. Nothing is sent before `hold_until`."""

    subscription_id: str
    tenant: str
    url: str
    events: list[str]
    description: str
    enabled: bool
    disabled_reason: str | None
    sealed_secret: str
    old_secret: str | None
    old_until: int | None
    hold_until: int
    created_by: str
    created_at: int
    updated_at: int

    @property
    def seal_context(self) -> tuple[str, str, str]:
        """What its secrets are sealed for."""
        return "webhook", self.tenant, self.subscription_id


class Delivery(msgspec.Struct, frozen=True):
    """One event for one subscription. Of those with one `subject`, only the oldest that is open is sent."""

    delivery_id: str
    tenant: str
    subscription_id: str
    event_id: str
    event: str
    subject: str
    status: DeliveryStatus
    attempts: int
    epoch: int
    created_at: int
    due_at: int
    ended_at: int | None
    last_status: int | None
    last_error: str | None
    replay_of: str | None

    @property
    def next_attempt_at(self) -> int | None:
        """When the next attempt is due, in microseconds; None when there is none."""
        return self.due_at if self.status == "waiting" else None


class AttemptResult(msgspec.Struct, frozen=True):
    """What an attempt met: a status, or an error where no answer came. `retry_after` is in microseconds."""

    started_at: int
    duration_ms: int
    status_code: int | None = None
    error: str | None = None
    response: str | None = None
    retry_after: int | None = None

    @property
    def is_success(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


class DeliveryAttempt(msgspec.Struct, frozen=True):
    """An attempt as the log shows it."""

    attempt: int
    started_at: int
    duration_ms: int
    status_code: int | None
    error: str | None
    response: str | None


class DeliveryDecision(msgspec.Struct, frozen=True):
    """`due_at` for waiting; `disable` is the reason to send this endpoint nothing more; `hold_until` for all of it."""

    status: DeliveryStatus
    due_at: int = 0
    disable_reason: str | None = None
    hold_until: int | None = None


def decide_delivery(delivery: Delivery, reply: AttemptResult, now: int, jitter: float) -> DeliveryDecision:
    """What becomes of a delivery. `chance` from 0 to 1 is the draw of the jitter."""
    if reply.is_success:
        return DeliveryDecision("delivered")
    if delivery.event == PING:
        return DeliveryDecision("failed")
    if reply.status_code == GONE_STATUS:
        return DeliveryDecision("failed", disable_reason="The receiver answered 410 Gone.")
    if delivery.attempts >= len(RETRY_DELAYS_US):
        return DeliveryDecision("failed", disable_reason=f"A delivery failed {delivery.attempts + 1} times.")
    asked = min(reply.retry_after or 0, MAX_HOLD_US)
    wait = int(RETRY_DELAYS_US[delivery.attempts] * (1 + JITTER_RATIO * jitter))
    hold = now + asked if asked and reply.status_code in BUSY_STATUSES else None
    return DeliveryDecision("waiting", now + max(wait, asked), hold_until=hold)


def validate_events(names: Iterable[str]) -> list[str]:
    """The names without repetition. Raises InvalidRequest for one that no event has."""
    asked = list(dict.fromkeys(names))
    unknown = [name for name in asked if name not in EVENTS and name not in EVENT_PATTERNS]
    if unknown:
        shown = ", ".join(repr(name[:100]) for name in unknown[:5])
        events, patterns = ", ".join(EVENTS), ", ".join(EVENT_PATTERNS)
        raise InvalidRequest(
            f"events: {shown} is no event. The events are {events}; the patterns {patterns}.",
            {"unknown": unknown[:5], "events": list(EVENTS), "patterns": list(EVENT_PATTERNS)},
        )
    return asked


def expand_events(names: Iterable[str]) -> list[str]:
    """The events that names and patterns stand for."""
    found: set[str] = set()
    for name in names:
        prefix = name.removesuffix("*")
        found.update(event for event in EVENTS if event == name or (name != prefix and event.startswith(prefix)))
    return sorted(found)
