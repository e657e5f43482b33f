"""Operations on alerts. Source: docs/monitoring.md, "Alerts"."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import Field

from stentor.auth.principal import Principal
from stentor.core.errors import Forbidden
from stentor.domains.alerts.model import AlertKind, Severity, StoredThresholds
from stentor.domains.alerts.service import AlertService
from stentor.web.operations import operation
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Caller, ResponseModel, Timestamp

State = Annotated[Literal["open", "resolved", "all"], Query(description="Which alerts to list.")]
Limit = Annotated[int, Query(ge=1, le=500)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


class AlertOut(ResponseModel):
    """A condition that was wrong from `opened_at` to `resolved_at`, null while it still is.

    `subject` tells alerts of one kind apart: an agent's id, a component, a budget.
    """

    alert_id: str
    kind: AlertKind
    subject: str
    severity: Severity
    message: str
    agent_id: str | None
    opened_at: Timestamp
    resolved_at: Timestamp | None


class AlertList(ResponseModel):
    """`email_recipients` is who gets an e-mail of each alert; empty without `admin`."""

    alerts: list[AlertOut]
    email_recipients: list[str]


class ThresholdValues(ResponseModel):
    """When alerts open; 0 switches them off.

    `failure_percent` is the share of an agent's tasks of the last 15 minutes that failed, `wait_seconds` how long a
    task waits or a worker is offline, `budget_percent` the share of a budget for model calls that is spent.
    """

    failure_percent: float
    wait_seconds: float
    budget_percent: float


class ThresholdsOut(ThresholdValues):
    """The thresholds in force. `changed` names those that were set here, which count instead of the `defaults`.

    The defaults are the service's settings; `set_by` and `set_at` are null if all of them are in force.
    """

    defaults: ThresholdValues
    changed: list[str]
    set_by: str | None
    set_at: Timestamp | None


class ThresholdsIn(RequestModel):
    """Omitted fields stay unchanged; null resets one to its default. 0 switches the alerts off."""

    model_config = example_config(failure_percent=30, wait_seconds=600)

    failure_percent: Percent | None = None
    wait_seconds: Seconds | None = None
    budget_percent: Percent | None = None


class SentTest(ResponseModel):
    """The addresses that the mail server has taken a test e-mail for."""

    recipients: list[str]


class AlertOperations:
    """Operations on alerts."""

    def __init__(self, alerts: AlertService) -> None:
        self._alerts = alerts

    @operation("alerts.list", "read", "GET /alerts")
    async def list_alerts(self, caller: Caller, state: State = "open", limit: Limit = 100) -> AlertList:
        """List what is wrong, or was: open alerts first, the newest first.

        Without `admin`, of budgets only those of the caller's key and its team.
        """
        _require_reader(caller)
        is_admin = caller.may("admin")
        alerts = await self._alerts.list_alerts(caller, state, limit)
        return AlertList(
            alerts=[AlertOut.of(alert) for alert in alerts],
            email_recipients=list(self._alerts.email_recipients) if is_admin else [],
        )

    @operation("alerts.thresholds", "read", "GET /alerts/thresholds")
    async def list_thresholds(self, caller: Caller) -> ThresholdsOut:
        """Return when alerts of the tenant open, with the defaults of the service's settings."""
        _require_reader(caller)
        return self._output(await self._alerts.read_thresholds(caller.tenant))

    @operation("alerts.set_thresholds", "admin", "PATCH /alerts/thresholds")
    async def set_thresholds(self, caller: Caller, body: ThresholdsIn) -> ThresholdsOut:
        """Set when alerts of the tenant open, from the next check on, or reset it to the service's settings."""
        return self._output(await self._alerts.set_thresholds(caller, body.model_dump(exclude_unset=True)))

    @operation("alerts.test", "admin", "POST /alerts/test", errors=(409,))
    async def send_test(self, caller: Caller) -> SentTest:
        """Send a test e-mail to the addresses that get alerts."""
        return SentTest(recipients=list(await self._alerts.send_test()))

    def _output(self, stored: StoredThresholds) -> ThresholdsOut:
        configured = self._alerts.configured
        return ThresholdsOut.of(
            stored.in_force(configured),
            defaults=ThresholdValues.of(configured),
            changed=list(stored.own),
            set_by=stored.set_by if stored.own else None,
            set_at=stored.set_at if stored.own else None,
        )


def _require_reader(caller: Principal) -> None:
    """Raise Forbidden for the key of an agent."""
    if caller.is_bound_agent:
        raise Forbidden("Keys with the role agent may not read alerts, which describe other agents.")
