"""Operations on webhooks, for admins. Source: core contract, "Webhooks"; docs/webhooks.md."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import AfterValidator

from stentor.core import jsontext
from stentor.core.clock import SECOND, micros_from_datetime
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.errors import InvalidRequest
from stentor.domains.webhooks import model, wire
from stentor.domains.webhooks.delivery_log import DeliveryLog
from stentor.domains.webhooks.service import WebhookService
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.wire import After, Caller, IdempotencyHeader, decode_cursor, encode_cursor

WebhookId = Annotated[str, Path(description="The webhook's id."), AfterValidator(decode_path_segment)]
DeliveryId = Annotated[str, Path(description="The delivery's id."), AfterValidator(decode_path_segment)]


class WebhookOperations:
    """Operations on webhooks and their deliveries."""

    def __init__(self, webhooks: WebhookService, history: DeliveryLog) -> None:
        self._webhooks, self._history = webhooks, history

    @operation("webhooks.subscribe", "admin", "POST /webhooks", 201, (409, 422))
    async def subscribe(
        self, caller: Caller, body: wire.Subscribe, idempotency_key: IdempotencyHeader = None
    ) -> wire.Subscribed:
        """Subscribe a URL to events. Only this response shows the secret that signs the deliveries."""
        key = None
        if idempotency_key is not None:
            digest = jsontext.sorted_digest(body.model_dump())
            key = IdempotencyKey(caller.tenant, caller.name, "webhooks", idempotency_key, digest)
        subscription, secret = await self._webhooks.subscribe(caller, body.url, body.events, body.description, key)
        return wire.Subscribed.of(subscription, secret=secret)

    @operation("webhooks.list", "admin", "GET /webhooks")
    async def list_webhooks(self, caller: Caller) -> wire.Webhooks:
        """List webhooks, oldest first, without their secrets; with the failures among their newest deliveries."""
        webhooks = [
            wire.ListedWebhook.of(subscription, failed=failed, last_failure=last)
            for subscription, failed, last in await self._webhooks.list_subscriptions(caller.tenant)
        ]
        return wire.Webhooks(webhooks=webhooks, total=len(webhooks))

    @operation("webhooks.get", "admin", "GET /webhooks/{webhook_id}", errors=(404,))
    async def read(self, caller: Caller, webhook_id: WebhookId) -> wire.WebhookOut:
        """Return a webhook without its secret."""
        return wire.WebhookOut.of(await self._webhooks.get(caller.tenant, webhook_id))

    @operation("webhooks.change", "admin", "PATCH /webhooks/{webhook_id}", errors=(404,))
    async def change(self, caller: Caller, webhook_id: WebhookId, body: wire.Change) -> wire.WebhookOut:
        """Change the URL, the events or the description; disable or enable."""
        return wire.WebhookOut.of(await self._webhooks.change(caller, webhook_id, body.model_dump(exclude_none=True)))

    @operation("webhooks.delete", "admin", "DELETE /webhooks/{webhook_id}", errors=(404,))
    async def delete(self, caller: Caller, webhook_id: WebhookId) -> wire.Deleted:
        """Delete a webhook; its waiting deliveries are not sent."""
        await self._webhooks.delete(caller, webhook_id)
        return wire.Deleted(id=webhook_id, deleted=True)

    @operation("webhooks.rotate", "admin", "POST /webhooks/{webhook_id}/rotate", 200, (404, 409))
    async def rotate(self, caller: Caller, webhook_id: WebhookId, body: wire.Rotate | None = None) -> wire.Rotated:
        """Rotate the secret. Only this response shows it; for a while deliveries are also signed with the old one."""
        overlap = (body or wire.Rotate()).overlap_seconds * SECOND
        subscription, secret = await self._webhooks.rotate(caller, webhook_id, overlap)
        return wire.Rotated(id=webhook_id, secret=secret, old_secret_until=subscription.old_until)

    @operation("webhooks.test", "admin", "POST /webhooks/{webhook_id}/test", 200, (404,))
    async def test(self, caller: Caller, webhook_id: WebhookId) -> wire.DeliveryDetail:
        """Deliver webhook.ping now and return the result; also to a disabled webhook."""
        delivery, attempts = await self._webhooks.ping(caller, webhook_id)
        return wire.DeliveryDetail.of(delivery, log=attempts)

    @operation("deliveries.list", "admin", "GET /webhooks/{webhook_id}/deliveries", 200, (404,))
    async def deliveries(
        self,
        caller: Caller,
        webhook_id: WebhookId,
        status: Annotated[model.DeliveryStatus | None, Query()] = None,
        event: Annotated[str | None, Query(max_length=100, description="An event's name.")] = None,
        created_after: After = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[str | None, Query(max_length=512)] = None,
    ) -> wire.Deliveries:
        """List deliveries, newest first."""
        if event is not None and event not in model.EVENTS:
            raise InvalidRequest(f"event: must be one of {', '.join(model.EVENTS)}")
        filters = model.DeliveryFilter(
            status,
            event,
            created_after=None if created_after is None else micros_from_datetime(created_after),
            before=None if cursor is None else decode_cursor(cursor, str)[0],
        )
        rows, has_more = await self._history.list_page(caller.tenant, webhook_id, limit, filters)
        following = encode_cursor(rows[-1].delivery_id) if has_more else None
        return wire.Deliveries.of(deliveries=rows, limit=limit, next_cursor=following)

    @operation("deliveries.get", "admin", "GET /webhooks/{webhook_id}/deliveries/{delivery_id}", errors=(404,))
    async def delivery(self, caller: Caller, webhook_id: WebhookId, delivery_id: DeliveryId) -> wire.DeliveryDetail:
        """Return a delivery with all attempts."""
        delivery, attempts = await self._history.get(caller.tenant, webhook_id, delivery_id)
        return wire.DeliveryDetail.of(delivery, log=attempts)

    @operation("webhooks.replay", "admin", "POST /webhooks/{webhook_id}/replay", 202, (404, 409))
    async def replay_since(self, caller: Caller, webhook_id: WebhookId, body: wire.ReplaySince) -> wire.ReplayedOut:
        """Queue the events since a time again: undelivered ones or all."""
        since = micros_from_datetime(body.since)
        # Later than any event: in microseconds this is the year 2255.
        until = 2**53 if body.until is None else micros_from_datetime(body.until)
        if until <= since:
            raise InvalidRequest("until: must be later than since")
        return wire.ReplayedOut.of(await self._history.replay_since(caller, webhook_id, since, until, body.scope))

    @operation(
        "deliveries.replay", "admin", "POST /webhooks/{webhook_id}/deliveries/{delivery_id}/replay", 202, (404, 409)
    )
    async def replay(self, caller: Caller, webhook_id: WebhookId, delivery_id: DeliveryId) -> wire.DeliveryOut:
        """Deliver the event of an ended delivery again, with the same message id."""
        return wire.DeliveryOut.of(await self._history.replay(caller, webhook_id, delivery_id))
