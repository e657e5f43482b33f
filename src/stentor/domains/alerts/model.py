"""Alerts: what a check finds wrong, and which alerts open and resolve because of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from stentor.auth.principal import DEFAULT_TENANT
from stentor.core.clock import DAY, MINUTE, SECOND, format_iso

AlertKind = Literal[
    "failures",
    "queue",
    "approvals",
    "agent_offline",
    "agent_quarantined",
    "budget",
    "component",
    "certificate",
    "key",
]
Severity = Literal["warning", "critical"]
AlertKey = tuple[str, str, str]
"""Tenant, kind and subject: of each there is at most one open alert."""
RESOLVE_AFTER_US = MINUTE
"""How long a condition must be gone before its alert resolves, in microseconds.

After a start of the service, workers count as online for a shorter time than this, so a restart resolves no alert.
"""
FAILURE_WINDOW_US = 15 * MINUTE
CERTIFICATE_WARNING_US = 14 * DAY
"""How long before it expires a certificate opens an alert; one that Stentor makes is renewed 30 days before."""
KEY_WARNING_US = 7 * DAY
"""A key's alert opens this long before it expires; the alert about an expired key stays open at most as long."""
SHORT_LIVED_KEY_US = 14 * DAY
"""A key with at most this lifetime is expected to expire, so it opens no alert."""
MIN_FAILURES = 5
"""Fewer failures than this open no alert, whatever their share."""


class Thresholds(msgspec.Struct, frozen=True):
    """When a condition is wrong; 0 switches a check off."""

    failure_percent: float
    wait_seconds: float
    budget_percent: float

    @property
    def wait_us(self) -> int:
        return int(self.wait_seconds * SECOND)


class StoredThresholds(msgspec.Struct, frozen=True):
    """The thresholds that a tenant's admins set; None where the service's setting applies.

    `set_by` made the last change, at `set_at` in microseconds.
    """

    tenant: str
    failure_percent: float | None = None
    wait_seconds: float | None = None
    budget_percent: float | None = None
    set_by: str = ""
    set_at: int = 0

    @property
    def own(self) -> dict[str, float]:
        """The thresholds that were set, by name."""
        values = {name: getattr(self, name) for name in Thresholds.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}

    def in_force(self, configured: Thresholds) -> Thresholds:
        return msgspec.structs.replace(configured, **self.own)


class Finding(msgspec.Struct, frozen=True):
    """A condition that is wrong now. `subject` distinguishes findings of the same kind, such as an agent's id."""

    tenant: str
    kind: AlertKind
    subject: str
    severity: Severity
    message: str
    agent_id: str | None = None

    @property
    def key(self) -> AlertKey:
        return self.tenant, self.kind, self.subject


class Alert(msgspec.Struct, frozen=True):
    """A condition that was wrong from `opened_at` to `resolved_at` (microseconds); None while it still is."""

    alert_id: str
    tenant: str
    kind: AlertKind
    subject: str
    severity: Severity
    message: str
    agent_id: str | None
    opened_at: int
    resolved_at: int | None

    @property
    def key(self) -> AlertKey:
        return self.tenant, self.kind, self.subject


class AlertMail(msgspec.Struct, frozen=True):
    """An e-mail about alerts, as it is sent each time. `message_id` is its `Message-ID`; the time in microseconds."""

    mail_id: str
    message_id: str
    subject: str
    body: str
    created_at: int


class AlertChanges(msgspec.Struct, frozen=True):
    """What a check changes: new alerts, alerts with a new message, and alerts that resolve."""

    opened: list[Finding] = []
    updated: list[tuple[Alert, Finding]] = []
    resolved: list[Alert] = []

    def __bool__(self) -> bool:
        return bool(self.opened or self.updated or self.resolved)


def compare(findings: Iterable[Finding], open_alerts: Iterable[Alert], overdue: set[AlertKey]) -> AlertChanges:
    """Return what changes. Only the alerts in `overdue` resolve: their conditions have been gone long enough."""
    found = {finding.key: finding for finding in findings}
    alerts = {alert.key: alert for alert in open_alerts}
    both = [(alert, found[key]) for key, alert in alerts.items() if key in found]
    return AlertChanges(
        opened=[finding for key, finding in found.items() if key not in alerts],
        updated=[(alert, finding) for alert, finding in both if alert.message != finding.message],
        resolved=[alert for key, alert in alerts.items() if key not in found and key in overdue],
    )


def failure_findings(
    tenant: str, outcomes: Mapping[str, tuple[int, int]], names: Mapping[str, str], percent: float
) -> list[Finding]:
    """Return a finding for each agent that fails too often; if there is none, one for all tasks together.

    `outcomes` are the numbers of failed and of ended tasks, by agent id; the empty id stands for no agent.
    """
    failing = [
        Finding(
            tenant, "failures", agent_id, "critical", _describe_failures(agent_id, names, *counts), agent_id or None
        )
        for agent_id, counts in outcomes.items()
        if _is_failing(*counts, percent)
    ]
    failed, ended = (sum(counts[n] for counts in outcomes.values()) for n in (0, 1))
    if not failing and _is_failing(failed, ended, percent):
        text = f"{failed} of the last {ended} tasks failed, in {FAILURE_WINDOW_US // MINUTE} minutes."
        return [Finding(tenant, "failures", "all", "critical", text)]
    return failing


def _is_failing(failed: int, ended: int, percent: float) -> bool:
    return failed >= MIN_FAILURES and failed * 100 >= percent * ended


def _describe_failures(agent_id: str, names: Mapping[str, str], failed: int, ended: int) -> str:
    minutes = FAILURE_WINDOW_US // MINUTE
    if not agent_id:
        return f"{failed} tasks failed in {minutes} minutes because no agent could take them."
    return f"{names.get(agent_id, agent_id)} failed {failed} of its last {ended} tasks, in {minutes} minutes."


def certificate_findings(expires_at: int, now: int, advice: str) -> list[Finding]:
    """Return a finding if the certificate has expired or expires soon; its message ends with `advice`.

    `expires_at` and `now` in microseconds.
    """
    left, day = expires_at - now, format_iso(expires_at)[:10]
    if left > CERTIFICATE_WARNING_US:
        return []
    # Two subjects, as for budgets: the expiry opens a new alert after the warning.
    if left <= 0:
        text = f"The HTTPS certificate expired on {day}, and clients refuse to connect. {advice}"
        return [Finding(DEFAULT_TENANT, "certificate", "expired", "critical", text)]
    text = f"The HTTPS certificate expires in {describe_duration(left)}, on {day}. {advice}"
    return [Finding(DEFAULT_TENANT, "certificate", "expires soon", "warning", text)]


def key_finding(tenant: str, name: str, created_at: int, expires_at: int, now: int) -> Finding | None:
    """Return a finding if the key expires soon or expired recently, else None (times in microseconds)."""
    left, day = expires_at - now, format_iso(expires_at)[:10]
    if expires_at - created_at <= SHORT_LIVED_KEY_US or abs(left) >= KEY_WARNING_US:
        return None
    advice = f"Extend it (stentor keys change {name} --expires 90d) or revoke it (stentor keys revoke {name})."
    # Two subjects, as for certificates.
    if left <= 0:
        text = f"The key {name} expired on {day}, and its requests are refused. {advice}"
        return Finding(tenant, "key", f"key:{name}:expired", "warning", text)
    text = f"The key {name} expires in {describe_duration(left)}, on {day}. {advice}"
    return Finding(tenant, "key", f"key:{name}:expires soon", "warning", text)


def describe_duration(us: int) -> str:
    """Return a duration in microseconds in words, such as `7 minutes`: whole units, the largest that fits."""
    minutes = max(us, 0) // MINUTE
    for size, unit in ((60 * 24, "day"), (60, "hour"), (1, "minute")):
        if minutes >= size:
            number = minutes // size
            return f"{number} {unit}" + "s" * (number > 1)
    return "less than a minute"
