"""Webhooks: who hears of what, how their deliveries went, and what a person may do about it."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core.clock import DAY, iso
from stentor.domains.webhooks import model
from stentor.surfaces.dashboard.pages import webhooks_rows
from stentor.surfaces.dashboard.pages.calls import Refused, part
from stentor.surfaces.dashboard.pages.site import Page

SHOWN = 50
STATES = ("waiting", "sending", "delivered", "failed")
KINDS: dict[str, list[str]] = {}
for _name in model.EVENTS:
    KINDS.setdefault(_name.partition(".")[0], []).append(_name)
OVERLAPS = ((0, "not at all"), (3_600, "for an hour"), (86_400, "for a day"), (7 * 86_400, "for a week"))
"""Seconds that the old secret signs too, and how that is said."""
NOTHING_TOLD = dict.fromkeys(("secret", "until", "queued", "following", "scope"))


async def webhooks(page: Page) -> Response:
    return await _list(page)


async def _list(page: Page, problem: Refused | None = None, given: dict[str, Any] | None = None) -> Response:
    found = (await page.get("/webhooks"))["webhooks"]
    ids = [one["id"] for one in found]
    backlogs = await page.rows.read(lambda tx: webhooks_rows.backlogs(tx, page.tenant, ids))
    return page.render(
        "webhooks.html",
        problem.status if problem else 200,
        block="live",
        webhooks=found,
        backlogs=backlogs,
        most=webhooks_rows.MOST,
        problem=problem,
        given=given or {"url": "", "description": "", "events": ["task.*"]},
        kinds=KINDS,
    )


async def add(page: Page) -> Response:
    """The answer shows the secret, once."""
    given = await _given(page)
    try:
        made = await page.post("/webhooks", given)
    except Refused as refused:
        return await _list(page, _own(refused), given)
    return await _one(page, made["id"], secret=made["secret"])


async def _given(page: Page) -> dict[str, Any]:
    form = await page.form()
    events = [text for text in (await page.request.form()).getlist("events") if isinstance(text, str)]
    return {"url": form.get("url", ""), "description": form.get("description", ""), "events": events}


def _own(refused: Refused) -> Refused:
    """A refusal that the form itself shows. Raises any other."""
    if refused.status not in (400, 409, 422):
        raise refused
    return refused


async def webhook(page: Page) -> Response:
    return await _one(page, page.param("webhook_id"))


async def _one(page: Page, webhook_id: str, **told: Any) -> Response:
    """`told` is what an action says here alone: `secret`, `until`, `queued`, `following`, `problem`."""
    wanted = {name: page.query(name) for name in ("status", "event", "cursor")}
    path = f"/webhooks/{part(webhook_id)}"
    found, log, backlogs = await asyncio.gather(
        page.get(path),
        page.get(f"{path}/deliveries", limit=SHOWN, **wanted),
        page.rows.read(lambda tx: webhooks_rows.backlogs(tx, page.tenant, [webhook_id])),
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
        most=webhooks_rows.MOST,
        states=STATES,
        events=model.EVENTS,
        kinds=KINDS,
        overlaps=OVERLAPS,
        now=iso(page.site.now()),
        yesterday=iso(page.site.now() - DAY)[:16],
        problem=problem,
        told=NOTHING_TOLD | told,
        answered=bool(told or problem),
    )


async def change(page: Page) -> Response:
    try:
        await page.call("PATCH", _path(page), None, await _given(page))
    except Refused as refused:
        return await _one(page, page.param("webhook_id"), problem=_own(refused))
    return page.back(_path(page), "saved")


async def enable(page: Page) -> Response:
    return await _switch(page, enabled=True)


async def disable(page: Page) -> Response:
    return await _switch(page, enabled=False)


async def _switch(page: Page, *, enabled: bool) -> Response:
    await page.call("PATCH", _path(page), None, {"enabled": enabled})
    return page.back(_path(page), "enabled" if enabled else "disabled")


async def remove(page: Page) -> Response:
    await page.call("DELETE", _path(page))
    return page.back("/webhooks", "removed")


async def ping(page: Page) -> Response:
    made = await page.post(f"{_path(page)}/test")
    return page.back(f"{_path(page)}/deliveries/{part(made['id'])}", "pinged")


async def rotate(page: Page) -> Response:
    """The answer shows the new secret, once."""
    given = (await page.form()).get("overlap_seconds", "")
    overlap = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else given
    try:
        made = await page.post(f"{_path(page)}/rotate", {"overlap_seconds": overlap})
    except Refused as refused:
        return await _one(page, page.param("webhook_id"), problem=_own(refused))
    return await _one(page, page.param("webhook_id"), secret=made["secret"], until=made["old_secret_until"])


async def replay_since(page: Page) -> Response:
    form = await page.form()
    since = form.get("since", "")
    body = {"since": since if since.endswith("Z") else f"{since}Z", "scope": form.get("scope", "undelivered")}
    try:
        made = await page.post(f"{_path(page)}/replay", body)
    except Refused as refused:
        return await _one(page, page.param("webhook_id"), problem=_own(refused))
    told = {"queued": made["queued"], "following": made["next_since"], "scope": body["scope"]}
    return await _one(page, page.param("webhook_id"), **told)


def _path(page: Page) -> str:
    return f"/webhooks/{part(page.param('webhook_id'))}"


ROUTES = [
    ("GET", "/webhooks", webhooks),
    ("POST", "/webhooks", add),
    ("GET", "/webhooks/{webhook_id}", webhook),
    ("POST", "/webhooks/{webhook_id}", change),
    ("POST", "/webhooks/{webhook_id}/enable", enable),
    ("POST", "/webhooks/{webhook_id}/disable", disable),
    ("POST", "/webhooks/{webhook_id}/remove", remove),
    ("POST", "/webhooks/{webhook_id}/test", ping),
    ("POST", "/webhooks/{webhook_id}/rotate", rotate),
    ("POST", "/webhooks/{webhook_id}/replay", replay_since),
]
