"""What a person does to a webhook. A secret is on the answer of the form that made it, and nowhere else."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from stentor.surfaces.dashboard.pages.webhooks import list_page, one_page
from stentor.surfaces.dashboard.site.calls import Refused, part
from stentor.surfaces.dashboard.site.page import Page


async def add(page: Page) -> Response:
    """The answer shows the secret, once."""
    given = await _given(page)
    try:
        made = await page.post("/webhooks", given)
    except Refused as refused:
        return await list_page(page, _own(refused), given)
    return await one_page(page, made["id"], secret=made["secret"])


async def _given(page: Page) -> dict[str, Any]:
    form = await page.form()
    events = [text for text in (await page.request.form()).getlist("events") if isinstance(text, str)]
    return {"url": form.get("url", ""), "description": form.get("description", ""), "events": events}


def _own(refused: Refused) -> Refused:
    """A refusal that the form itself shows. Raises any other."""
    if refused.status not in (400, 409, 422):
        raise refused
    return refused


async def change(page: Page) -> Response:
    try:
        await page.call("PATCH", _path(page), None, await _given(page))
    except Refused as refused:
        return await one_page(page, page.param("webhook_id"), problem=_own(refused))
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
        return await one_page(page, page.param("webhook_id"), problem=_own(refused))
    return await one_page(page, page.param("webhook_id"), secret=made["secret"], until=made["old_secret_until"])


async def replay_since(page: Page) -> Response:
    form = await page.form()
    since = form.get("since", "")
    body = {"since": since if since.endswith("Z") else f"{since}Z", "scope": form.get("scope", "undelivered")}
    try:
        made = await page.post(f"{_path(page)}/replay", body)
    except Refused as refused:
        return await one_page(page, page.param("webhook_id"), problem=_own(refused))
    told = {"queued": made["queued"], "following": made["next_since"], "scope": body["scope"]}
    return await one_page(page, page.param("webhook_id"), **told)


def _path(page: Page) -> str:
    return f"/webhooks/{part(page.param('webhook_id'))}"


ROUTES = [
    ("POST", "/webhooks", add),
    ("POST", "/webhooks/{webhook_id}", change),
    ("POST", "/webhooks/{webhook_id}/enable", enable),
    ("POST", "/webhooks/{webhook_id}/disable", disable),
    ("POST", "/webhooks/{webhook_id}/remove", remove),
    ("POST", "/webhooks/{webhook_id}/test", ping),
    ("POST", "/webhooks/{webhook_id}/rotate", rotate),
    ("POST", "/webhooks/{webhook_id}/replay", replay_since),
]
