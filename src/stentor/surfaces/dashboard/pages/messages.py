"""The message pages: the queue, the list, one ATP message with its response, and a form that sends or validates one."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.atp.bodies import BODY_TYPES, describe_fields
from stentor.domains.atp.json_format import UUID_PATTERN
from stentor.domains.atp.model import ACTION_TYPES, MODES, PRIORITIES, ZONES
from stentor.domains.messaging import queries
from stentor.domains.messaging.service import SYSTEM_ZONES
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.presenters.filters import format_json
from stentor.surfaces.dashboard.site.page import PageRequest

PAGE_SIZE = 50
MESSAGE_STATUSES = ("queued", "executing", "completed", "failed")
HEADER_FIELDS = ("mode", "context", "priority", "actionType", "targetZone", "specialNotes")
FIELD_HINTS = {
    "targetZone": "kernel: tasks. memory: notes. registry: agents. governance: updates. sandbox: tasks in a sandbox.",
    "actionType": "What the zone does; zones differ in their actions.",
    "mode": "When the response comes. direct: when the work is done. async: at once, the result later.",
    "priority": "Critical messages leave the queue first.",
}
FIELD_CHOICES = {"mode": MODES, "priority": PRIORITIES, "actionType": ACTION_TYPES, "targetZone": ZONES}


async def list_messages(page: PageRequest) -> Response:
    """List messages, newest first."""
    filters = {
        "status": page.query_param("status"),
        "priority": page.query_param("priority"),
        "before": page.query_param("before"),
    }
    # Before the queries below, which check no permission: the gateway rejects users who may not see messages.
    queue = await page.call("messages.queue")
    if filters["status"] not in ("", *MESSAGE_STATUSES) or filters["priority"] not in ("", *PRIORITIES):
        raise InvalidRequest(
            f"status: must be one of {', '.join(MESSAGE_STATUSES)}; priority: one of {', '.join(PRIORITIES)}."
        )
    if filters["before"] and not UUID_PATTERN.fullmatch(filters["before"]):
        raise InvalidRequest("before: must be a message ID.")
    (messages, next_before), counts, names = await asyncio.gather(
        page.read(queries.list_messages, **filters, limit=PAGE_SIZE),
        page.read(queries.count_messages_by_status),
        page.read(registry_queries.read_names),
    )
    return page.render(
        "messages.html",
        block="queue" if page.query_param("part") == "queue" else "rows" if filters["before"] else "results",
        messages=messages,
        queue=queue,
        private_zones=SYSTEM_ZONES,
        states=counts,
        latest=queries.MAX_COUNTED_MESSAGES,
        names=names,
        filters=filters,
        more=urlencode({**filters, "before": next_before}) if next_before else None,
        statuses=MESSAGE_STATUSES,
        priorities=PRIORITIES,
    )


async def show_message(page: PageRequest) -> Response:
    message_id = page.path_param("message_id")
    record, response, details, names = await asyncio.gather(
        page.call("messages.get", message_id=message_id),
        page.find("messages.response", message_id=message_id),
        page.read(queries.read_message_details, message_id),
        page.read(registry_queries.read_names),
    )
    content = record["message"]["payload"]["content"]
    return page.render(
        "message.html",
        block="live",
        message=record,
        message_id=message_id,
        header=record["message"]["header"],
        content=jsontext.decode_or_none(content.encode("utf-8", "replace")) or content,
        answer=response,
        more=details,
        names=names,
        now=format_iso(page.site.now()),
    )


async def show_composer(page: PageRequest) -> Response:
    template = await page.call("messages.template")
    example = template["template"]
    content = example["payload"]["content"]
    content = format_json(jsontext.decode_or_none(content.encode()) or content)
    return _render_composer(page, template, {**example["header"], "content": content})


def _render_composer(
    page: PageRequest,
    template: JsonObject,
    values: dict[str, str],
    *,
    route: JsonObject | None = None,
    field_errors: JsonObject | None = None,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    """Render the form. `route` is the result of a validation, `problem` an error that belongs to no field."""
    return page.render(
        "compose.html",
        status,
        form_values=dict.fromkeys((*HEADER_FIELDS, "content"), "") | values,
        choices=FIELD_CHOICES,
        hints=FIELD_HINTS,
        notes={name.rpartition(".")[2]: note for name, note in template["annotations"].items()},
        bodies=[(*key, describe_fields(body)) for key, body in sorted(BODY_TYPES.items())],
        flaws=field_errors or {},
        problem=problem,
        route=route,
    )


async def send_message(page: PageRequest) -> Response:
    """Send the message, or only validate it and report who would handle it."""
    form = await page.read_form()
    values = {name: form.get(name, "") for name in HEADER_FIELDS}
    values["content"] = form.get("content", "").replace("\r\n", "\n")  # browsers submit CRLF
    body = {
        "header": {name: values[name] for name in HEADER_FIELDS if values[name]},
        "payload": {"content": values["content"]},
    }
    is_check = form.get("act") == "check"
    try:
        result = await page.call("messages.route" if is_check else "messages.send", body=body)
    except GatewayError as error:
        return await _render_errors(page, values, error.require_status(400, 409, 422))
    if not is_check:
        return page.redirect(f"/messages/{quote_segment(result['messageId'])}", "sent")
    return _render_composer(page, await page.call("messages.template"), values, route=result)


async def _render_errors(page: PageRequest, values: dict[str, str], error: GatewayError) -> Response:
    details = error.details if isinstance(error.details, dict) else {}
    fields = details.get("fields")
    field_errors = fields if isinstance(fields, dict) else {}
    template = await page.call("messages.template")
    problem = None if field_errors else error.message
    return _render_composer(page, template, values, field_errors=field_errors, problem=problem, status=error.status)


# `/messages/new` comes first: the other path would take `new` for an id.
ROUTES = [
    ("GET", "/messages/new", show_composer),
    ("POST", "/messages/new", send_message),
    ("GET", "/messages", list_messages),
    ("GET", "/messages/{message_id}", show_message),
]
