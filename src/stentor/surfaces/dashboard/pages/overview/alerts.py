"""The page of alerts: what is wrong, what was, and the alerts of a Prometheus server if there is one."""

from __future__ import annotations

from typing import NamedTuple

from starlette.responses import Response

from stentor.auth.principal import Principal
from stentor.core.clock import format_iso
from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.alerts import store
from stentor.domains.alerts.model import Alert
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.presenters.recent_changes import MIN_GROUPED_OFFLINE
from stentor.surfaces.dashboard.site.forms import find_changed, number_or_text, read_shown
from stentor.surfaces.dashboard.site.page import PageRequest

MAX_LISTED = 100
PAGES = {
    "queue": "/tasks?status=queued",
    "approvals": "/tasks?status=pending_approval",
    "failures": "/tasks?status=failed",
    "budget": "/models/budgets",
    "component": "/",
    "certificate": "/",
    "key": "/keys",
}
"""The page that shows more about an alert, by kind; alerts about an agent lead to the agent."""


class ThresholdField(NamedTuple):
    """A field of the form for the gateway's threshold `name`. One of its units is `scale` units of the gateway."""

    name: str
    label: str
    unit: str
    scale: int = 1


THRESHOLDS = {
    "failure_percent": ThresholdField("failure_percent", "Failed tasks of an agent", "%"),
    "wait_minutes": ThresholdField("wait_seconds", "Waiting task, offline worker", "minutes", 60),
    "budget_percent": ThresholdField("budget_percent", "Spent of a budget", "%"),
}
"""By the name of the field."""


async def show_alerts(page: PageRequest) -> Response:
    return await _render(page)


async def _render(
    page: PageRequest, problem: GatewayError | None = None, form: dict[str, str] | None = None
) -> Response:
    """Render the page; after a rejected `form` of thresholds with its values, and with what it had shown."""
    open_alerts, resolved, names = await page.read(_read_alerts, page.session.principal)
    listed = await page.find("alerts.list", missing=403, limit=1) if page.session.may("admin") else None
    limits = await page.find("alerts.thresholds", missing=403)
    values = _to_fields(limits) if limits else {}
    return page.render(
        "alerts.html",
        problem.status if problem else 200,
        block="live",
        alerts=present_open_alerts(page, open_alerts),
        resolved=_present_alerts(page, resolved),
        names=names,
        problem=None if form else problem,
        limits=limits,
        thresholds=THRESHOLDS,
        values=values,
        defaults=_to_fields(limits["defaults"]) if limits else {},
        changed=_to_fields({name: limits[name] for name in limits["changed"]}) if limits else {},
        form_problem=_label_fields(problem.message) if problem and form else None,
        form_values=values | (form or {}),
        shown=read_shown(form) if form else values,
        recipients=listed["email_recipients"] if listed else [],
        has_prometheus=page.site.prometheus.is_configured,
    )


def _read_alerts(tx: Tx, tenant: str, reader: Principal) -> tuple[list[Alert], list[Alert], dict[str, str]]:
    open_alerts = store.list_urgent_first(tx, tenant, reader, MAX_LISTED)
    resolved = store.list_alerts(tx, tenant, reader, "resolved", MAX_LISTED)
    return open_alerts, resolved, registry_queries.read_names(tx, tenant)


def present_open_alerts(page: PageRequest, alerts: list[Alert]) -> list[JsonObject]:
    """Return what a page shows of up to MAX_LISTED open alerts in their order, but many offline
    agents as one that unfolds, last."""
    rows = _present_alerts(page, alerts)
    offline = [row for row in rows if row["kind"] == "agent_offline"]
    if len(offline) < MIN_GROUPED_OFFLINE:
        return rows
    number = f"{len(offline)}+" if len(alerts) == MAX_LISTED else str(len(offline))
    group = offline[0] | {"message": f"{number} agents are offline", "members": offline}
    return [*(row for row in rows if row["kind"] != "agent_offline"), group]


def _present_alerts(page: PageRequest, alerts: list[Alert]) -> list[JsonObject]:
    return [present_alert(alert, page.session.may("admin")) for alert in alerts]


def present_alert(alert: Alert, is_admin: bool) -> JsonObject:
    """Return what a page shows of an alert."""
    return {
        "severity": alert.severity,
        "kind": alert.kind,
        "message": alert.message,
        "agent_id": alert.agent_id,
        "opened_at": format_iso(alert.opened_at),
        "resolved_at": format_iso(alert.resolved_at) if alert.resolved_at else None,
        "duration_ms": (alert.resolved_at - alert.opened_at) / 1_000 if alert.resolved_at else None,
        "url": alert_url(alert, is_admin),
        "members": [],
    }


def alert_url(alert: Alert, is_admin: bool) -> str:
    """Return the page with more about an alert; only admins may open the pages of agents and keys."""
    if alert.agent_id and is_admin:
        return f"/agents/{quote_segment(alert.agent_id)}"
    if alert.kind == "key" and not is_admin:
        return "/alerts"
    return PAGES.get(alert.kind, "/alerts")


def _to_fields(limits: JsonObject) -> dict[str, str]:
    """Return the thresholds of the gateway as the fields of the form."""
    return {name: f"{limits[field.name] / field.scale:g}" for name, field in THRESHOLDS.items() if field.name in limits}


def _label_fields(message: str) -> str:
    """Return the gateway's message about a threshold with the label of its field."""
    for field in THRESHOLDS.values():
        message = message.replace(f"{field.name}:", f"{field.label}:")
    return message


async def set_thresholds(page: PageRequest) -> Response:
    """Set the thresholds that differ from what the page had shown; an empty field resets one."""
    form = await page.read_form()
    given = {name: form[name].strip() for name in THRESHOLDS if name in form}
    changes = find_changed(given, read_shown(form))
    body = {THRESHOLDS[name].name: _to_threshold(text, THRESHOLDS[name].scale) for name, text in changes.items()}
    try:
        if body:
            await page.call("alerts.set_thresholds", body=body)
    except GatewayError as error:
        return await _render(page, error.require_status(400, 403), form)
    return page.redirect("/alerts", "thresholds-set")


async def reset_thresholds(page: PageRequest) -> Response:
    await page.call("alerts.set_thresholds", body=dict.fromkeys(field.name for field in THRESHOLDS.values()))
    return page.redirect("/alerts", "thresholds-set")


def _to_threshold(text: str, scale: int) -> float | str | None:
    """Return a number in the gateway's unit; None for an empty text, and a text that is no number as it is."""
    value = number_or_text(text)
    return value * scale if isinstance(value, float) else value or None


async def send_test(page: PageRequest) -> Response:
    try:
        await page.call("alerts.test")
    except GatewayError as error:
        if error.status not in (409, 503):
            raise
        return await _render(page, error)
    return page.redirect("/alerts", "test-sent")


async def show_prometheus(page: PageRequest) -> Response:
    """Render the alerts of the metrics backend. A request of its own, as the backend may be slow."""
    snapshot = await page.site.prometheus.fetch_snapshot()
    firing = [alert for alert in snapshot["alerts"] if alert["state"] != "inactive"]
    return page.render("prometheus.html", alerts=firing, available=snapshot["available"], url=snapshot["url"])


ROUTES = [
    ("GET", "/alerts", show_alerts),
    ("POST", "/alerts/thresholds", set_thresholds),
    ("POST", "/alerts/thresholds/reset", reset_thresholds),
    ("POST", "/alerts/test", send_test),
    ("GET", "/alerts/prometheus", show_prometheus),
]
