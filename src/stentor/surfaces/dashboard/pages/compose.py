"""A form that sends an ATP message, or only checks it."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from stentor.domains.atp.model import ACTION_TYPES, MODES, PRIORITIES, ZONES
from stentor.surfaces.dashboard.site.calls import Refused, decoded, part
from stentor.surfaces.dashboard.site.page import Page
from stentor.surfaces.dashboard.site.shown import pretty

HEADER = ("mode", "context", "priority", "actionType", "targetZone", "specialNotes")
CHOICES = {"mode": MODES, "priority": PRIORITIES, "actionType": ACTION_TYPES, "targetZone": ZONES}


async def compose(page: Page) -> Response:
    template = (await page.get("/atp/template"))["data"]
    form = template["template"]
    content = form["payload"]["content"]
    return _composer(page, template, {**form["header"], "content": pretty(decoded(content.encode()) or content)})


def _composer(page: Page, template: dict[str, Any], given: dict[str, str], **told: Any) -> Response:
    """`told`: `flaws` by field, `problem` that is no field's, `route` and `status`."""
    told = {"flaws": {}, "problem": None, "route": None, "status": 200} | told
    return page.render(
        "compose.html",
        told.pop("status"),
        given=dict.fromkeys((*HEADER, "content"), "") | given,
        choices=CHOICES,
        notes={name.rpartition(".")[2]: note for name, note in template["annotations"].items()},
        **told,
    )


async def send(page: Page) -> Response:
    """Send it, or only check it and tell who would do it."""
    form = await page.form()
    given = {name: form.get(name, "") for name in HEADER} | {"content": form.get("content", "").replace("\r\n", "\n")}
    body = {"header": {name: given[name] for name in HEADER if given[name]}, "payload": {"content": given["content"]}}
    checking = form.get("act") == "check"
    try:
        made = await page.post("/atp/route" if checking else "/atp/send", body)
    except Refused as refused:
        if refused.status not in (400, 409, 422):
            raise
        return await _refused(page, given, refused)
    if not checking:
        return page.back(f"/messages/{part(made['messageId'])}", "sent")
    return _composer(page, (await page.get("/atp/template"))["data"], given, route=made["data"])


async def _refused(page: Page, given: dict[str, str], refused: Refused) -> Response:
    details = refused.details if isinstance(refused.details, dict) else {}
    flaws = details.get("fields")
    flaws = flaws if isinstance(flaws, dict) else {}
    template = (await page.get("/atp/template"))["data"]
    problem = None if flaws else refused.message
    return _composer(page, template, given, flaws=flaws, problem=problem, status=refused.status)


ROUTES = [("GET", "/messages/new", compose), ("POST", "/messages/new", send)]
