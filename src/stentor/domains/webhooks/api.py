"""Routes of webhooks. Source: core contract, "Webhooks"; docs/webhooks.md."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator
from starlette.requests import Request

from stentor.core import jsontext
from stentor.core.clock import SECOND, format_iso, format_iso_or_none, micros_from_datetime
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.errors import InvalidRequest
from stentor.domains.webhooks import model, wire
from stentor.domains.webhooks.history import History
from stentor.domains.webhooks.service import Webhooks
from stentor.domains.webhooks.wire import delivery_out, detail_out, webhook_out
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import requires_permission
from stentor.web.wire import (
    After,
    Caller,
    IdempotencyHeader,
    JsonResponse,
    api_router,
    decode_cursor,
    encode_cursor,
    error_responses,
    next_link,
)

ADMIN: dict[str, Any] = {"openapi_extra": requires_permission("admin")}
WebhookId = Annotated[str, Path(description="The webhook's id."), AfterValidator(decode_path_segment)]
DeliveryId = Annotated[str, Path(description="The delivery's id."), AfterValidator(decode_path_segment)]


def router(webhooks: Webhooks, history: History) -> APIRouter:
    api = api_router("/webhooks", tags=["webhooks"])

    @api.post("", status_code=201, response_model=wire.Subscribed, responses=error_responses(409, 422), **ADMIN)
    async def subscribe(
        caller: Caller, body: wire.Subscribe, idempotency_key: IdempotencyHeader = None
    ) -> JsonResponse:
        """Subscribe a URL to events. The secret that deliveries are signed with is shown here alone."""
        key = None
        if idempotency_key is not None:
            digest = jsontext.sorted_digest(body.model_dump())
            key = IdempotencyKey(caller.tenant, caller.name, "webhooks", idempotency_key, digest)
        made, secret = await webhooks.subscribe(caller, body.url, body.events, body.description, key)
        shown = {"id": made.subscription_id, "url": made.url, "events": made.events, "secret": secret}
        return JsonResponse(shown | {"enabled": made.enabled, "created_at": format_iso(made.created_at)}, 201)

    @api.get("", response_model=wire.Webhooks, **ADMIN)
    async def list_webhooks(caller: Caller) -> JsonResponse:
        """All webhooks, oldest first, without their secrets."""
        found = await webhooks.every(caller.tenant)
        return JsonResponse({"webhooks": [webhook_out(one) for one in found], "total": len(found)})

    @api.get("/{webhook_id}", response_model=wire.WebhookOut, responses=error_responses(404), **ADMIN)
    async def read(caller: Caller, webhook_id: WebhookId) -> JsonResponse:
        """One webhook, without its secret."""
        return JsonResponse(webhook_out(await webhooks.get(caller.tenant, webhook_id)))

    @api.patch("/{webhook_id}", response_model=wire.WebhookOut, responses=error_responses(404), **ADMIN)
    async def change(caller: Caller, webhook_id: WebhookId, body: wire.Change) -> JsonResponse:
        """Change the URL, the events or the description; disable, or enable again."""
        changes = body.model_dump(exclude_none=True)
        return JsonResponse(webhook_out(await webhooks.change(caller, webhook_id, changes)))

    @api.delete("/{webhook_id}", response_model=wire.Deleted, responses=error_responses(404), **ADMIN)
    async def delete(caller: Caller, webhook_id: WebhookId) -> JsonResponse:
        """Delete a webhook; what still waits for it is not sent."""
        await webhooks.delete(caller, webhook_id)
        return JsonResponse({"id": webhook_id, "deleted": True})

    _secrets(api, webhooks)
    _log(api, history)
    _replays(api, history)
    return api


def _secrets(api: APIRouter, webhooks: Webhooks) -> None:
    @api.post("/{webhook_id}/rotate", response_model=wire.Rotated, responses=error_responses(404), **ADMIN)
    async def rotate(caller: Caller, webhook_id: WebhookId, body: wire.Rotate | None = None) -> JsonResponse:
        """A new secret, shown here alone; for a while deliveries are signed with the old one too."""
        overlap = (body or wire.Rotate()).overlap_seconds * SECOND
        changed, secret = await webhooks.rotate(caller, webhook_id, overlap)
        until = format_iso_or_none(changed.old_until)
        return JsonResponse({"id": webhook_id, "secret": secret, "old_secret_until": until})

    @api.post("/{webhook_id}/test", response_model=wire.DeliveryDetail, responses=error_responses(404), **ADMIN)
    async def test(caller: Caller, webhook_id: WebhookId) -> JsonResponse:
        """Deliver webhook.ping now, and answer how it went; also to a disabled webhook."""
        return JsonResponse(detail_out(*await webhooks.ping(caller, webhook_id)))


def _log(api: APIRouter, history: History) -> None:
    @api.get("/{webhook_id}/deliveries", response_model=wire.Deliveries, responses=error_responses(404), **ADMIN)
    async def deliveries(
        request: Request,
        caller: Caller,
        webhook_id: WebhookId,
        status: Annotated[wire.State | None, Query()] = None,
        event: Annotated[str | None, Query(max_length=100, description="An event's name.")] = None,
        created_after: After = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[str | None, Query(max_length=512)] = None,
    ) -> JsonResponse:
        """The delivery log, newest first."""
        if event is not None and event not in model.EVENTS:
            raise InvalidRequest(f"event: is none of {', '.join(model.EVENTS)}")
        after = None if created_after is None else micros_from_datetime(created_after)
        before = None if cursor is None else decode_cursor(cursor, str)[0]
        wanted = {"status": status, "event": event, "created_after": after, "before": before}
        rows, more = await history.page(caller.tenant, webhook_id, limit, wanted)
        following = encode_cursor(rows[-1].delivery_id) if more else None
        body = {"deliveries": [delivery_out(one) for one in rows], "limit": limit, "next_cursor": following}
        return JsonResponse(body, headers=next_link(request, following))

    @api.get(
        "/{webhook_id}/deliveries/{delivery_id}",
        response_model=wire.DeliveryDetail,
        responses=error_responses(404),
        **ADMIN,
    )
    async def delivery(caller: Caller, webhook_id: WebhookId, delivery_id: DeliveryId) -> JsonResponse:
        """One delivery with every attempt."""
        return JsonResponse(detail_out(*await history.get(caller.tenant, webhook_id, delivery_id)))


def _replays(api: APIRouter, history: History) -> None:
    @api.post(
        "/{webhook_id}/replay",
        status_code=202,
        response_model=wire.ReplayedOut,
        responses=error_responses(404, 409),
        **ADMIN,
    )
    async def replay_since(caller: Caller, webhook_id: WebhookId, body: wire.ReplaySince) -> JsonResponse:
        """Queue again what happened since a time: what was never delivered, or everything."""
        since = micros_from_datetime(body.since)
        until = 2**53 if body.until is None else micros_from_datetime(body.until)
        if until <= since:
            raise InvalidRequest("until: must be later than since")
        found = await history.replay_since(caller, webhook_id, since, until, body.scope)
        return JsonResponse({"queued": found.queued, "next_since": format_iso_or_none(found.next_since)}, 202)

    @api.post(
        "/{webhook_id}/deliveries/{delivery_id}/replay",
        status_code=202,
        response_model=wire.DeliveryOut,
        responses=error_responses(404, 409),
        **ADMIN,
    )
    async def replay(caller: Caller, webhook_id: WebhookId, delivery_id: DeliveryId) -> JsonResponse:
        """Deliver an ended delivery's event again, under the same message id."""
        return JsonResponse(delivery_out(await history.replay(caller, webhook_id, delivery_id)), 202)
