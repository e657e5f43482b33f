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
PATTERNS = ("*", *dict.fromkeys(f"{name.partition('.')[0]}.*" for name in EVENTS))
MINUTE = 60 * SECOND
RETRIES = (
    *(5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR),
    *(10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR),
)
"""How long after the first, second, ... failed attempt the next one comes, in microseconds."""
JITTER = 0.1
"""A wait is lengthened by up to this share of it."""
LONGEST_HOLD = 24 * HOUR
GONE = 410
BUSY = (429, 503)

Status = Literal["waiting", "sending", "delivered", "failed"]


class Subscription(msgspec.Struct, frozen=True):
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
    def bound(self) -> tuple[str, str, str]:
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
    status: Status
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


class Reply(msgspec.Struct, frozen=True):
    """What an attempt met: a status, or an error where no answer came. `retry_after` is in microseconds."""

    started_at: int
    duration_ms: int
    status_code: int | None = None
    error: str | None = None
    response: str | None = None
    retry_after: int | None = None

    @property
    def success(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


class Attempt(msgspec.Struct, frozen=True):
    """An attempt as the log shows it."""

    attempt: int
    started_at: int
    duration_ms: int
    status_code: int | None
    error: str | None
    response: str | None


class Verdict(msgspec.Struct, frozen=True):
    """`due_at` for waiting; `disable` is the reason to send this endpoint nothing more; `hold_until` for all of it."""

    status: Status
    due_at: int = 0
    disable: str | None = None
    hold_until: int | None = None


def judge(delivery: Delivery, reply: Reply, now: int, chance: float) -> Verdict:
    """What becomes of a delivery. `chance` from 0 to 1 is the draw of the jitter."""
    if reply.success:
        return Verdict("delivered")
    if delivery.event == PING:
        return Verdict("failed")
    if reply.status_code == GONE:
        return Verdict("failed", disable="The receiver answered 410 Gone.")
    if delivery.attempts >= len(RETRIES):
        return Verdict("failed", disable=f"A delivery failed {delivery.attempts + 1} times.")
    asked = min(reply.retry_after or 0, LONGEST_HOLD)
    wait = int(RETRIES[delivery.attempts] * (1 + JITTER * chance))
    hold = now + asked if asked and reply.status_code in BUSY else None
    return Verdict("waiting", now + max(wait, asked), hold_until=hold)


def checked(names: Iterable[str]) -> list[str]:
    """The names without repetition. Raises InvalidRequest for one that no event has."""
    asked = list(dict.fromkeys(names))
    unknown = [name for name in asked if name not in EVENTS and name not in PATTERNS]
    if unknown:
        shown = ", ".join(repr(name[:100]) for name in unknown[:5])
        raise InvalidRequest(
            f"events: {shown} is no event. The events are {', '.join(EVENTS)}; the patterns {', '.join(PATTERNS)}.",
            {"unknown": unknown[:5], "events": list(EVENTS), "patterns": list(PATTERNS)},
        )
    return asked


def meant(names: Iterable[str]) -> list[str]:
    """The events that names and patterns stand for."""
    found: set[str] = set()
    for name in names:
        prefix = name.removesuffix("*")
        found.update(event for event in EVENTS if event == name or (name != prefix and event.startswith(prefix)))
    return sorted(found)
