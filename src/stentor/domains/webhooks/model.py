"""Subscriptions and deliveries, and the decision after an attempt. Pure.

Source: core contract, "Webhooks"; Standard Webhooks 1.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from stentor.core.clock import HOUR, MINUTE, SECOND, format_iso
from stentor.core.errors import Conflict, InvalidRequest

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
    "alert.opened",
    "alert.resolved",
    "trust.level_changed",
    PING,
)
EVENT_PATTERNS = ("*", *dict.fromkeys(f"{name.partition('.')[0]}.*" for name in EVENTS))
RETRY_DELAYS_US = (
    *(5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR),
    *(10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR),
)
"""Microseconds from the first, second, ... failed attempt to the next one."""
JITTER_RATIO = 0.1
"""A delay is lengthened at random by up to this fraction."""
MAX_HOLD_US = 24 * HOUR
MAX_OLD_SECRETS = 5
"""Old secrets that sign at a time. More would make a long header of signatures."""
GONE_STATUS = 410
BUSY_STATUSES = (429, 503)

DeliveryStatus = Literal["waiting", "sending", "delivered", "failed"]


class WebhookSubscription(msgspec.Struct, frozen=True):
    """A webhook. `events` are names and patterns as requested. Nothing is sent before `hold_until`.

    `old_secret` is the secret before this one, which signs until `old_until`. After a space come earlier ones, each as
    `secret:end`, the end in microseconds.
    """

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
        """The record that its encrypted secrets are bound to."""
        return "webhook", self.tenant, self.subscription_id

    def old_secrets(self, now: int) -> dict[str, int]:
        """Return the encrypted old secrets that still sign, latest first, each with its end in microseconds."""
        parts = (part.partition(":") for part in (self.old_secret or "").split())
        ends = {sealed: int(end or self.old_until or 0) for sealed, _, end in parts}
        return {sealed: end for sealed, end in ends.items() if end > now}


def keep_old_secrets(subscription: WebhookSubscription, overlap_us: int, now: int) -> dict[str, Any]:
    """Return the fields for a rotation, after which the current secret signs for the overlap, and the older ones as
    long as they would have. Without an overlap none of them does. Raises Conflict if they are too many.
    """
    if not overlap_us:
        return {"old_secret": None, "old_until": None}
    older = subscription.old_secrets(now)
    if len(older) >= MAX_OLD_SECRETS:
        raise Conflict(
            f"The last {MAX_OLD_SECRETS} secrets still sign, the first of them until "
            f"{format_iso(min(older.values()))}. Rotate then, or with overlap_seconds 0, which ends them all now."
        )
    kept = [subscription.sealed_secret, *(f"{sealed}:{end}" for sealed, end in older.items())]
    return {"old_secret": " ".join(kept), "old_until": now + overlap_us}


class Delivery(msgspec.Struct, frozen=True):
    """One event for one subscription. Of the open deliveries with the same `subject` only the oldest is sent."""

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
        """The time of the next attempt in microseconds; None if there is none."""
        return self.due_at if self.status == "waiting" else None


class AttemptResult(msgspec.Struct, frozen=True):
    """The result of an attempt: a status, or an error without a response. `retry_after` is in microseconds.

    `is_final`: no attempt was made, and none can be.
    """

    started_at: int
    duration_ms: int
    status_code: int | None = None
    error: str | None = None
    response: str | None = None
    retry_after: int | None = None
    is_final: bool = False

    @property
    def is_success(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


class DeliveryAttempt(msgspec.Struct, frozen=True):
    """An attempt in the delivery log."""

    attempt: int
    started_at: int
    duration_ms: int
    status_code: int | None
    error: str | None
    response: str | None


class DeliveryFilter(msgspec.Struct, frozen=True):
    """A selection of deliveries; None means all. `created_after` is in microseconds, `before` a delivery id."""

    status: DeliveryStatus | None = None
    event: str | None = None
    created_after: int | None = None
    before: str | None = None


class DeliveryDecision(msgspec.Struct, frozen=True):
    """The new status, with `due_at` if it waits.

    `disable_reason` disables the webhook; `hold_until` pauses all its deliveries.
    """

    status: DeliveryStatus
    due_at: int = 0
    disable_reason: str | None = None
    hold_until: int | None = None


def decide_delivery(delivery: Delivery, result: AttemptResult, now: int, jitter: float) -> DeliveryDecision:
    """Return what happens to a delivery after an attempt. `jitter` is a random number from 0 to 1."""
    if result.is_success:
        return DeliveryDecision("delivered")
    if delivery.event == PING or result.is_final:
        return DeliveryDecision("failed")
    if result.status_code == GONE_STATUS:
        return DeliveryDecision("failed", disable_reason="The receiver responded with 410 Gone.")
    if delivery.attempts >= len(RETRY_DELAYS_US):
        return DeliveryDecision("failed", disable_reason=f"A delivery failed {delivery.attempts + 1} times.")
    # A receiver may not hold its deliveries for longer than this.
    requested = min(result.retry_after or 0, MAX_HOLD_US)
    delay = int(RETRY_DELAYS_US[delivery.attempts] * (1 + JITTER_RATIO * jitter))
    hold_until = now + requested if requested and result.status_code in BUSY_STATUSES else None
    return DeliveryDecision("waiting", now + max(delay, requested), hold_until=hold_until)


def validate_events(names: Iterable[str]) -> list[str]:
    """Return the distinct names. Raises InvalidRequest for one that is neither an event nor a pattern."""
    distinct = list(dict.fromkeys(names))
    unknown = [name for name in distinct if name not in EVENTS and name not in EVENT_PATTERNS]
    if unknown:
        unknown_names = ", ".join(repr(name[:100]) for name in unknown[:5])
        events, patterns = ", ".join(EVENTS), ", ".join(EVENT_PATTERNS)
        raise InvalidRequest(
            f"events: {unknown_names} is not an event. The events are {events}; the patterns {patterns}.",
            {"unknown": unknown[:5], "events": list(EVENTS), "patterns": list(EVENT_PATTERNS)},
        )
    return distinct


def expand_events(names: Iterable[str]) -> list[str]:
    """Return the events that names and patterns match."""
    events: set[str] = set()
    for name in names:
        prefix = name.removesuffix("*")
        events.update(event for event in EVENTS if event == name or (name != prefix and event.startswith(prefix)))
    return sorted(events)
