"""ATP messages: the queue, the list, one message with its answer, and a form to send one."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core.clock import iso
from stentor.core.errors import InvalidRequest
from stentor.domains.atp.jsonform import UUID
from stentor.domains.atp.model import ACTION_TYPES, MAX_CONTEXT, MAX_NOTES, MODES, PRIORITIES, ZONES
from stentor.surfaces.dashboard.pages import messages_rows
from stentor.surfaces.dashboard.pages.calls import Refused, decoded, part
from stentor.surfaces.dashboard.pages.shown import pretty
from stentor.surfaces.dashboard.pages.site import Page

SHOWN = 50
STATUSES = ("queued", "executing", "completed", "failed")
HEADER = ("mode", "context", "priority", "actionType", "targetZone", "specialNotes")
CHOICES = {"mode": MODES, "priority": PRIORITIES, "actionType": ACTION_TYPES, "targetZone": ZONES}


async def messages(page: Page) -> Response:
    """Newest first. The queue is asked first of all: whoever may not see it sees no rows either."""
    wanted = {"status": page.query("status"), "priority": page.query("priority"), "before": page.query("before")}
    queue = (await page.get("/atp/queue"))["data"]
    if wanted["status"] not in ("", *STATUSES) or wanted["priority"] not in ("", *PRIORITIES):
        raise InvalidRequest(f"A status is one of {', '.join(STATUSES)}; a priority one of {', '.join(PRIORITIES)}.")
    if wanted["before"] and not UUID.fullmatch(wanted["before"]):
        raise InvalidRequest("before: must be the id of a message.")
    (found, following), states, names = await asyncio.gather(
        page.rows.read(lambda tx: messages_rows.page(tx, page.tenant, **wanted, limit=SHOWN)),
        page.rows.read(lambda tx: messages_rows.states(tx, page.tenant)),
        page.rows.names(page.tenant),
    )
    return page.render(
        "messages.html",
        block="rows" if wanted["before"] else "results",
        messages=found,
        queue=queue,
        states=states,
        latest=messages_rows.LATEST,
        names=names,
        wanted=wanted,
        more=urlencode({**wanted, "before": following}) if following else None,
        statuses=STATUSES,
        priorities=PRIORITIES,
    )


async def message(page: Page) -> Response:
    message_id = page.param("message_id")
    found, answer, more, names = await asyncio.gather(
        page.get(f"/atp/message/{part(message_id)}"),
        _answer(page, message_id),
        page.rows.read(lambda tx: messages_rows.more(tx, page.tenant, message_id)),
        page.rows.names(page.tenant),
    )
    content = found["data"]["message"]["payload"]["content"]
    return page.render(
        "message.html",
        block="live",
        message=found["data"],
        message_id=message_id,
        header=found["data"]["message"]["header"],
        content=decoded(content.encode("utf-8", "replace")) or content,
        answer=answer,
        more=more,
        names=names,
        now=iso(page.site.now()),
    )


async def _answer(page: Page, message_id: str) -> dict[str, Any] | None:
    """None until it is known."""
    try:
        return dict((await page.get(f"/atp/response/{part(message_id)}"))["data"])
    except Refused as refused:
        if refused.status != 404:
            raise
        return None


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
        longest={"context": MAX_CONTEXT, "specialNotes": MAX_NOTES},
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


ROUTES = [
    ("GET", "/messages", messages),
    ("GET", "/messages/new", compose),
    ("POST", "/messages/new", send),
    ("GET", "/messages/{message_id}", message),
]
