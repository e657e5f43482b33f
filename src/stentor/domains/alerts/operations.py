"""Operations on alerts. Source: docs/operations.md, "Alerts"."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query

from stentor.core.errors import Forbidden
from stentor.domains.alerts.model import AlertKind, Severity
from stentor.domains.alerts.service import AlertService
from stentor.web.operations import operation
from stentor.web.wire import Caller, ResponseModel, Timestamp

State = Annotated[Literal["open", "resolved", "all"], Query(description="Which alerts to list.")]
Limit = Annotated[int, Query(ge=1, le=500)]


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


class SentTest(ResponseModel):
    """The addresses that the mail server has taken a test e-mail for."""

    recipients: list[str]


class AlertOperations:
    """Operations on alerts."""

    def __init__(self, alerts: AlertService) -> None:
        self._alerts = alerts

    @operation("alerts.list", "read", "GET /alerts")
    async def list_alerts(self, caller: Caller, state: State = "open", limit: Limit = 100) -> AlertList:
        """List what is wrong, or was: open alerts first, the newest first. Without `admin` not what others spend."""
        if caller.is_bound_agent:
            raise Forbidden("Keys with the role agent may not read alerts, which describe other agents.")
        is_admin = caller.may("admin")
        alerts = await self._alerts.list_alerts(caller.tenant, None if is_admin else caller.name, state, limit)
        return AlertList(
            alerts=[AlertOut.of(alert) for alert in alerts],
            email_recipients=list(self._alerts.email_recipients) if is_admin else [],
        )

    @operation("alerts.test", "admin", "POST /alerts/test", errors=(409,))
    async def send_test(self, caller: Caller) -> SentTest:
        """Send a test e-mail to the addresses that get alerts."""
        return SentTest(recipients=list(await self._alerts.send_test()))
