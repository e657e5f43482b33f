"""ATP messages: the queue, the list, and one message with its answer."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core.clock import format_iso
from stentor.core.errors import InvalidRequest
from stentor.domains.atp.jsonform import UUID
from stentor.domains.atp.model import PRIORITIES
from stentor.surfaces.dashboard.pages import messages_rows
from stentor.surfaces.dashboard.site.calls import Refused, decoded, part
from stentor.surfaces.dashboard.site.page import Page

SHOWN = 50
STATUSES = ("queued", "executing", "completed", "failed")


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
        now=format_iso(page.site.now()),
    )


async def _answer(page: Page, message_id: str) -> dict[str, Any] | None:
    """None until it is known."""
    try:
        return dict((await page.get(f"/atp/response/{part(message_id)}"))["data"])
    except Refused as refused:
        if refused.status != 404:
            raise
        return None


ROUTES = [("GET", "/messages", messages), ("GET", "/messages/{message_id}", message)]
