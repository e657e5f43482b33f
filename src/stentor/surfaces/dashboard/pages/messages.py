"""ATP messages: the queue, the list, and one message with its answer.

A form that sends an ATP message, or only checks it.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.errors import InvalidRequest
from stentor.domains.atp.json_format import UUID_PATTERN
from stentor.domains.atp.model import ACTION_TYPES, MODES, PRIORITIES, ZONES
from stentor.domains.messaging import queries
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.presenters.filters import format_json
from stentor.surfaces.dashboard.site.page import PageRequest

PAGE_SIZE = 50
MESSAGE_STATUSES = ("queued", "executing", "completed", "failed")


async def list_messages(page: PageRequest) -> Response:
    """Newest first. The queue is asked first of all: whoever may not see it sees no rows either."""
    wanted = {
        "status": page.query_param("status"),
        "priority": page.query_param("priority"),
        "before": page.query_param("before"),
    }
    queue = await page.call("messages.queue")
    if wanted["status"] not in ("", *MESSAGE_STATUSES) or wanted["priority"] not in ("", *PRIORITIES):
        raise InvalidRequest(
            f"A status is one of {', '.join(MESSAGE_STATUSES)}; a priority one of {', '.join(PRIORITIES)}."
        )
    if wanted["before"] and not UUID_PATTERN.fullmatch(wanted["before"]):
        raise InvalidRequest("before: must be the id of a message.")
    (found, following), states, names = await asyncio.gather(
        page.read(queries.list_messages, **wanted, limit=PAGE_SIZE),
        page.read(queries.count_messages_by_status),
        page.read(registry_queries.read_names),
    )
    return page.render(
        "messages.html",
        block="rows" if wanted["before"] else "results",
        messages=found,
        queue=queue,
        states=states,
        latest=queries.MAX_COUNTED_MESSAGES,
        names=names,
        wanted=wanted,
        more=urlencode({**wanted, "before": following}) if following else None,
        statuses=MESSAGE_STATUSES,
        priorities=PRIORITIES,
    )


async def show_message(page: PageRequest) -> Response:
    message_id = page.path_param("message_id")
    found, answer, more, names = await asyncio.gather(
        page.call("messages.get", message_id=message_id),
        _read_response(page, message_id),
        page.read(queries.read_message_details, message_id),
        page.read(registry_queries.read_names),
    )
    content = found["message"]["payload"]["content"]
    return page.render(
        "message.html",
        block="live",
        message=found,
        message_id=message_id,
        header=found["message"]["header"],
        content=jsontext.decode_or_none(content.encode("utf-8", "replace")) or content,
        answer=answer,
        more=more,
        names=names,
        now=format_iso(page.site.now()),
    )


async def _read_response(page: PageRequest, message_id: str) -> dict[str, Any] | None:
    """None until it is known."""
    try:
        return dict(await page.call("messages.response", message_id=message_id))
    except GatewayError as refused:
        if refused.status != 404:
            raise
        return None


ROUTES = [("GET", "/messages", list_messages), ("GET", "/messages/{message_id}", show_message)]


HEADER_FIELDS = ("mode", "context", "priority", "actionType", "targetZone", "specialNotes")
FIELD_CHOICES = {"mode": MODES, "priority": PRIORITIES, "actionType": ACTION_TYPES, "targetZone": ZONES}


async def show_composer(page: PageRequest) -> Response:
    template = await page.call("messages.template")
    form = template["template"]
    content = form["payload"]["content"]
    return _render_composer(
        page, template, {**form["header"], "content": format_json(jsontext.decode_or_none(content.encode()) or content)}
    )


def _render_composer(page: PageRequest, template: dict[str, Any], given: dict[str, str], **told: Any) -> Response:
    """`told`: `flaws` by field, `problem` that is no field's, `route` and `status`."""
    told = {"flaws": {}, "problem": None, "route": None, "status": 200} | told
    return page.render(
        "compose.html",
        told.pop("status"),
        given=dict.fromkeys((*HEADER_FIELDS, "content"), "") | given,
        choices=FIELD_CHOICES,
        notes={name.rpartition(".")[2]: note for name, note in template["annotations"].items()},
        **told,
    )


async def send_message(page: PageRequest) -> Response:
    """Send it, or only check it and tell who would do it."""
    form = await page.read_form()
    given = {name: form.get(name, "") for name in HEADER_FIELDS} | {
        "content": form.get("content", "").replace("\r\n", "\n")
    }
    body = {
        "header": {name: given[name] for name in HEADER_FIELDS if given[name]},
        "payload": {"content": given["content"]},
    }
    checking = form.get("act") == "check"
    try:
        made = await page.call("messages.route" if checking else "messages.send", body=body)
    except GatewayError as refused:
        if refused.status not in (400, 409, 422):
            raise
        return await _render_errors(page, given, refused)
    if not checking:
        return page.redirect(f"/messages/{quote_segment(made['messageId'])}", "sent")
    return _render_composer(page, await page.call("messages.template"), given, route=made)


async def _render_errors(page: PageRequest, given: dict[str, str], refused: GatewayError) -> Response:
    details = refused.details if isinstance(refused.details, dict) else {}
    flaws = details.get("fields")
    flaws = flaws if isinstance(flaws, dict) else {}
    template = await page.call("messages.template")
    problem = None if flaws else refused.message
    return _render_composer(page, template, given, flaws=flaws, problem=problem, status=refused.status)


COMPOSE_ROUTES = [("GET", "/messages/new", show_composer), ("POST", "/messages/new", send_message)]
