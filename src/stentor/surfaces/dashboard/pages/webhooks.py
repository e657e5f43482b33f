"""The webhook pages: list, one webhook with its deliveries, actions on it, and one delivery with its attempts.

A secret is displayed once, on the page to which the form that created it redirects.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.clock import DAY, format_iso
from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.tasks.store import read_result
from stentor.domains.webhooks import model, payloads, queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.site.forms import find_changed, int_or_text, read_shown
from stentor.surfaces.dashboard.site.page import PageRequest, action

WEBHOOK = "/webhooks/{webhook_id}"
PAGE_SIZE = 50
DELIVERY_STATUSES = ("waiting", "sending", "delivered", "failed")
OVERLAP_CHOICES = ((0, "not at all"), (3_600, "for 1 hour"), (86_400, "for 1 day"), (7 * 86_400, "for 1 week"))
"""Seconds during which the old secret also signs, with labels."""
NO_ACTION_RESULT = dict.fromkeys(("secret", "until", "queued", "following", "scope"))
FORM_ERRORS = (400, 409, 422)
"""Statuses of errors that a form displays."""
EVENT_GROUPS = {
    "task": {
        "task.submitted": "a task was accepted and routed",
        "task.started": "an agent started it",
        "task.completed": "it ended, with a result",
        "task.failed": "its agent or its routing failed",
        "task.aborted": "it was rejected or timed out",
        "task.cancelled": "it was cancelled",
        "task.pending_approval": "it needs an approval",
    },
    "agent": {
        "agent.registered": "an agent was registered",
        "agent.suspended": "it was suspended",
        "agent.quarantined": "it was stopped after violations",
        "agent.cleared": "its violations were cleared",
    },
    "update": {
        "update.submitted": "a change to an agent was proposed",
        "update.approved": "it was approved",
        "update.rejected": "it was rejected",
        "update.deployed": "it took effect",
        "update.rolled_back": "it was rolled back",
    },
    "rollback": {
        "rollback.completed": "an agent was rolled back",
        "rollback.failed": "an agent could not be rolled back",
    },
    "alert": {
        "alert.opened": "an alert opened",
        "alert.resolved": "its cause is gone",
    },
    "memory": {
        "memory.written": "a note was changed",
        "memory.conflict": "two changes could not be merged",
    },
    "sentinel": {"sentinel.alert": "results of an agent alternate"},
    "trust": {"trust.level_changed": "an agent's trust level changed"},
    "webhook": {"webhook.ping": "a test that you send"},
}
"""What each webhook event means, grouped for the form; a test compares the names with those of the domain."""


async def render_list(
    page: PageRequest, problem: GatewayError | None = None, form_values: JsonObject | None = None
) -> Response:
    """Render the list; after a rejected form with the error and the submitted values."""
    webhooks = (await page.call("webhooks.list"))["webhooks"]
    backlogs = await page.read(queries.read_backlogs, [webhook["id"] for webhook in webhooks])
    return page.render(
        "webhooks.html",
        problem.status if problem else 200,
        block="live",
        webhooks=webhooks,
        backlogs=backlogs,
        max_counted=queries.MAX_COUNTED_DELIVERIES,
        problem=problem,
        form_values=form_values or {"url": "", "description": "", "events": []},
        event_groups=EVENT_GROUPS,
    )


async def render_webhook(
    page: PageRequest, problem: GatewayError | None = None, form_values: JsonObject | None = None
) -> Response:
    """Render a webhook; after a rejected change with the submitted values, and with what its form had `shown`."""
    webhook_id = _webhook_id(page)
    filters = {name: page.query_param(name) for name in ("status", "event", "cursor")}
    webhook, deliveries, backlogs = await asyncio.gather(
        page.call("webhooks.get", webhook_id=webhook_id),
        page.call("deliveries.list", webhook_id=webhook_id, limit=PAGE_SIZE, **filters),
        page.read(queries.read_backlogs, [webhook_id]),
    )
    result = page.take_result()  # only now: a page that fails must not lose a secret
    return page.render(
        "webhook.html",
        problem.status if problem else 200,
        shown=form_values["shown"]
        if form_values
        else {name: webhook[name] for name in ("url", "description")} | {"events": sorted(webhook["events"])},
        form_values=form_values,
        block="rows" if filters["cursor"] else "results",
        hook=webhook,
        base=_webhook_path(page),
        deliveries=deliveries["deliveries"],
        following=deliveries["next_cursor"],
        filters=filters,
        more=urlencode({**filters, "cursor": deliveries["next_cursor"] or ""}),
        backlog=backlogs[webhook_id],
        max_counted=queries.MAX_COUNTED_DELIVERIES,
        states=DELIVERY_STATUSES,
        events=model.EVENTS,
        event_groups=EVENT_GROUPS,
        overlaps=OVERLAP_CHOICES,
        now=format_iso(page.site.now()),
        yesterday=format_iso(page.site.now() - DAY)[:16],
        problem=problem,
        action_result=NO_ACTION_RESULT | result,
        answered=bool(result or problem),
    )


async def add_webhook(page: PageRequest) -> Response:
    """Create a webhook and display its secret, once."""
    body = await _read_webhook_form(page)
    try:
        webhook = await page.call("webhooks.subscribe", body=body)
    except GatewayError as error:
        return await render_list(page, error.require_status(*FORM_ERRORS), body)
    return page.redirect_once(f"/webhooks/{quote_segment(webhook['id'])}", {"secret": webhook["secret"]})


async def _read_webhook_form(page: PageRequest) -> JsonObject:
    form = await page.read_form()
    # Not from `read_form`, which keeps only the last of several boxes.
    events = [text for text in (await page.form()).getlist("events") if isinstance(text, str)]
    return {"url": form.get("url", ""), "description": form.get("description", ""), "events": events}


async def update_webhook(page: PageRequest) -> Response:
    fields, shown = await _read_webhook_form(page), read_shown(await page.read_form())
    body = find_changed(fields | {"events": sorted(fields["events"])}, shown)
    try:
        await page.call("webhooks.change", webhook_id=_webhook_id(page), body=body)
    except GatewayError as error:
        problem = error.require_status(*FORM_ERRORS)
        return await render_webhook(page, problem, fields | {"shown": shown})
    return page.redirect(_webhook_path(page), "saved")


async def send_ping(page: PageRequest) -> Response:
    delivery = await page.call("webhooks.test", webhook_id=_webhook_id(page))
    return page.redirect(f"{_webhook_path(page)}/deliveries/{quote_segment(delivery['id'])}", "pinged")


async def rotate_secret(page: PageRequest) -> Response:
    """Create a new secret and display it, once."""
    overlap = int_or_text((await page.read_form()).get("overlap_seconds", ""))
    try:
        rotation = await page.call("webhooks.rotate", webhook_id=_webhook_id(page), body={"overlap_seconds": overlap})
    except GatewayError as error:
        return await render_webhook(page, error.require_status(*FORM_ERRORS))
    result = {"secret": rotation["secret"], "until": rotation["old_secret_until"]}
    return page.redirect_once(_webhook_path(page), result)


async def replay_since(page: PageRequest) -> Response:
    form = await page.read_form()
    since = form.get("since", "")
    # Fields of dates have no zone; the page says that its times are UTC.
    body = {"since": since if since.endswith("Z") else f"{since}Z", "scope": form.get("scope", "undelivered")}
    try:
        replay = await page.call("webhooks.replay", webhook_id=_webhook_id(page), body=body)
    except GatewayError as error:
        return await render_webhook(page, error.require_status(*FORM_ERRORS))
    result = {"queued": replay["queued"], "following": replay["next_since"], "scope": body["scope"]}
    return page.redirect_once(_webhook_path(page), result)


def _webhook_id(page: PageRequest) -> str:
    return page.path_param("webhook_id")


def _webhook_path(page: PageRequest) -> str:
    return f"/webhooks/{quote_segment(_webhook_id(page))}"


async def show_delivery(page: PageRequest) -> Response:
    base = _webhook_path(page)
    delivery, webhook = await asyncio.gather(
        page.call("deliveries.get", webhook_id=_webhook_id(page), delivery_id=page.path_param("delivery_id")),
        page.call("webhooks.get", webhook_id=_webhook_id(page)),
    )
    return page.render(
        "delivery.html",
        block="live",
        delivery=delivery,
        hook=webhook,
        base=base,
        address=f"{base}/deliveries/{delivery['id']}",
        body=await page.read(_read_delivery_body, delivery["event"], delivery["message_id"]),
    )


async def replay_delivery(page: PageRequest) -> Response:
    delivery = await page.call(
        "deliveries.replay", webhook_id=_webhook_id(page), delivery_id=page.path_param("delivery_id")
    )
    return page.redirect(f"{_webhook_path(page)}/deliveries/{quote_segment(delivery['id'])}", "replayed")


def _read_delivery_body(tx: Tx, tenant: str, name: str, event_id: str) -> Any:
    """Return the JSON that is posted for an event, None if the event is no longer in the run log."""
    event = queries.find_event(tx, event_id)  # of any tenant
    # The query finds events of any tenant, so this line keeps tenants apart.
    if event is None or event.tenant != tenant:
        return None
    result = read_result(tx, tenant, event.task_id or "") if name == "task.completed" else None
    return jsontext.decode(payloads.build_payload(name, event, result))


ROUTES = [
    ("GET", "/webhooks", render_list),
    ("GET", WEBHOOK, render_webhook),
    ("POST", "/webhooks", add_webhook),
    ("POST", WEBHOOK, update_webhook),
    ("POST", f"{WEBHOOK}/enable", action("webhooks.change", WEBHOOK, "enabled", enabled=True)),
    ("POST", f"{WEBHOOK}/disable", action("webhooks.change", WEBHOOK, "disabled", enabled=False)),
    ("POST", f"{WEBHOOK}/remove", action("webhooks.delete", "/webhooks", "removed")),
    ("POST", f"{WEBHOOK}/test", send_ping),
    ("POST", f"{WEBHOOK}/rotate", rotate_secret),
    ("POST", f"{WEBHOOK}/replay", replay_since),
    ("GET", f"{WEBHOOK}/deliveries/{{delivery_id}}", show_delivery),
    ("POST", f"{WEBHOOK}/deliveries/{{delivery_id}}/replay", replay_delivery),
]
