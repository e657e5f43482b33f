"""Webhooks: who hears of what, and how their deliveries went.

What a person does to a webhook. A secret is on the answer of the form that made it, and nowhere else.

One delivery of a webhook: its attempts, and what it carries.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.clock import DAY, format_iso
from stentor.core.db import Tx
from stentor.domains.tasks.store import read_result
from stentor.domains.webhooks import model, payloads, queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.site.page import PageRequest

PAGE_SIZE = 50
DELIVERY_STATUSES = ("waiting", "sending", "delivered", "failed")
EVENTS_BY_KIND: dict[str, list[str]] = {}
for _name in model.EVENTS:
    EVENTS_BY_KIND.setdefault(_name.partition(".")[0], []).append(_name)
OVERLAP_CHOICES = ((0, "not at all"), (3_600, "for an hour"), (86_400, "for a day"), (7 * 86_400, "for a week"))
"""Seconds that the old secret also signs, and how that is said."""
NO_ACTION_RESULT = dict.fromkeys(("secret", "until", "queued", "following", "scope"))


async def list_webhooks(page: PageRequest) -> Response:
    return await render_list(page)


async def render_list(
    page: PageRequest, problem: GatewayError | None = None, given: dict[str, Any] | None = None
) -> Response:
    found = (await page.call("webhooks.list"))["webhooks"]
    ids = [one["id"] for one in found]
    backlogs = await page.read(queries.read_backlogs, ids)
    return page.render(
        "webhooks.html",
        problem.status if problem else 200,
        block="live",
        webhooks=found,
        backlogs=backlogs,
        most=queries.MAX_COUNTED_DELIVERIES,
        problem=problem,
        given=given or {"url": "", "description": "", "events": ["task.*"]},
        kinds=EVENTS_BY_KIND,
    )


async def show_webhook(page: PageRequest) -> Response:
    return await render_webhook(page, page.path_param("webhook_id"))


async def render_webhook(page: PageRequest, webhook_id: str, **told: Any) -> Response:
    """`told` is what an action says here alone: `secret`, `until`, `queued`, `following`, `problem`."""
    wanted = {name: page.query_param(name) for name in ("status", "event", "cursor")}
    path = f"/webhooks/{quote_segment(webhook_id)}"
    found, log, backlogs = await asyncio.gather(
        page.call("webhooks.get", webhook_id=webhook_id),
        page.call("deliveries.list", webhook_id=webhook_id, limit=PAGE_SIZE, **wanted),
        page.read(queries.read_backlogs, [webhook_id]),
    )
    problem = told.pop("problem", None)
    return page.render(
        "webhook.html",
        problem.status if problem else 200,
        block="rows" if wanted["cursor"] else "results",
        hook=found,
        base=path,
        deliveries=log["deliveries"],
        following=log["next_cursor"],
        wanted=wanted,
        more=urlencode({**wanted, "cursor": log["next_cursor"] or ""}),
        backlog=backlogs[webhook_id],
        most=queries.MAX_COUNTED_DELIVERIES,
        states=DELIVERY_STATUSES,
        events=model.EVENTS,
        kinds=EVENTS_BY_KIND,
        overlaps=OVERLAP_CHOICES,
        now=format_iso(page.site.now()),
        yesterday=format_iso(page.site.now() - DAY)[:16],
        problem=problem,
        told=NO_ACTION_RESULT | told,
        answered=bool(told or problem),
    )


ROUTES = [("GET", "/webhooks", list_webhooks), ("GET", "/webhooks/{webhook_id}", show_webhook)]


async def add_webhook(page: PageRequest) -> Response:
    """The answer shows the secret, once."""
    given = await _read_webhook_form(page)
    try:
        made = await page.call("webhooks.subscribe", body=given)
    except GatewayError as refused:
        return await render_list(page, _form_error(refused), given)
    return await render_webhook(page, made["id"], secret=made["secret"])


async def _read_webhook_form(page: PageRequest) -> dict[str, Any]:
    form = await page.read_form()
    events = [text for text in (await page.request.form()).getlist("events") if isinstance(text, str)]
    return {"url": form.get("url", ""), "description": form.get("description", ""), "events": events}


def _form_error(refused: GatewayError) -> GatewayError:
    """A refusal that the form itself shows. Raises any other."""
    if refused.status not in (400, 409, 422):
        raise refused
    return refused


async def update_webhook(page: PageRequest) -> Response:
    try:
        await page.call("webhooks.change", webhook_id=_webhook_id(page), body=await _read_webhook_form(page))
    except GatewayError as refused:
        return await render_webhook(page, page.path_param("webhook_id"), problem=_form_error(refused))
    return page.redirect(_webhook_path(page), "saved")


async def enable_webhook(page: PageRequest) -> Response:
    return await _set_enabled(page, is_enabled=True)


async def disable_webhook(page: PageRequest) -> Response:
    return await _set_enabled(page, is_enabled=False)


async def _set_enabled(page: PageRequest, *, is_enabled: bool) -> Response:
    await page.call("webhooks.change", webhook_id=_webhook_id(page), body={"enabled": is_enabled})
    return page.redirect(_webhook_path(page), "enabled" if is_enabled else "disabled")


async def remove_webhook(page: PageRequest) -> Response:
    await page.call("webhooks.delete", webhook_id=_webhook_id(page))
    return page.redirect("/webhooks", "removed")


async def send_ping(page: PageRequest) -> Response:
    made = await page.call("webhooks.test", webhook_id=_webhook_id(page))
    return page.redirect(f"{_webhook_path(page)}/deliveries/{quote_segment(made['id'])}", "pinged")


async def rotate_secret(page: PageRequest) -> Response:
    """The answer shows the new secret, once."""
    given = (await page.read_form()).get("overlap_seconds", "")
    overlap = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else given
    try:
        made = await page.call("webhooks.rotate", webhook_id=_webhook_id(page), body={"overlap_seconds": overlap})
    except GatewayError as refused:
        return await render_webhook(page, page.path_param("webhook_id"), problem=_form_error(refused))
    return await render_webhook(
        page, page.path_param("webhook_id"), secret=made["secret"], until=made["old_secret_until"]
    )


async def replay_since(page: PageRequest) -> Response:
    form = await page.read_form()
    since = form.get("since", "")
    body = {"since": since if since.endswith("Z") else f"{since}Z", "scope": form.get("scope", "undelivered")}
    try:
        made = await page.call("webhooks.replay", webhook_id=_webhook_id(page), body=body)
    except GatewayError as refused:
        return await render_webhook(page, page.path_param("webhook_id"), problem=_form_error(refused))
    told = {"queued": made["queued"], "following": made["next_since"], "scope": body["scope"]}
    return await render_webhook(page, page.path_param("webhook_id"), **told)


def _webhook_id(page: PageRequest) -> str:
    return page.path_param("webhook_id")


def _webhook_path(page: PageRequest) -> str:
    return f"/webhooks/{quote_segment(_webhook_id(page))}"


ACTION_ROUTES = [
    ("POST", "/webhooks", add_webhook),
    ("POST", "/webhooks/{webhook_id}", update_webhook),
    ("POST", "/webhooks/{webhook_id}/enable", enable_webhook),
    ("POST", "/webhooks/{webhook_id}/disable", disable_webhook),
    ("POST", "/webhooks/{webhook_id}/remove", remove_webhook),
    ("POST", "/webhooks/{webhook_id}/test", send_ping),
    ("POST", "/webhooks/{webhook_id}/rotate", rotate_secret),
    ("POST", "/webhooks/{webhook_id}/replay", replay_since),
]


async def show_delivery(page: PageRequest) -> Response:
    base = f"/webhooks/{quote_segment(page.path_param('webhook_id'))}"
    found, hook = await asyncio.gather(
        page.call("deliveries.get", webhook_id=_webhook_id(page), delivery_id=page.path_param("delivery_id")),
        page.call("webhooks.get", webhook_id=_webhook_id(page)),
    )
    name, event_id = found["event"], found["message_id"]
    body = await page.read(_read_delivery_body, name, event_id)
    return page.render(
        "delivery.html", block="live", delivery=found, hook=hook, base=base, address=f"{base}/deliveries/{found['id']}",
        body=body,
    )  # fmt: skip


async def replay_delivery(page: PageRequest) -> Response:
    base = f"/webhooks/{quote_segment(page.path_param('webhook_id'))}/deliveries"
    made = await page.call(
        "deliveries.replay", webhook_id=_webhook_id(page), delivery_id=page.path_param("delivery_id")
    )
    return page.redirect(f"{base}/{quote_segment(made['id'])}", "replayed")


DELIVERY_ROUTES = [
    ("GET", "/webhooks/{webhook_id}/deliveries/{delivery_id}", show_delivery),
    ("POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/replay", replay_delivery),
]


def _read_delivery_body(tx: Tx, tenant: str, name: str, event_id: str) -> Any:
    """Return the JSON that is posted for an event; None if the run log does not have it."""
    event = queries.find_event(tx, event_id)
    if event is None or event.tenant != tenant:
        return None
    result = read_result(tx, tenant, event.task_id or "") if name == "task.completed" else None
    return jsontext.decode(payloads.build_payload(name, event, result))
