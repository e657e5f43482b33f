"""One delivery of a webhook: its attempts, and what it carries."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from stentor.surfaces.dashboard.pages import webhooks_rows
from stentor.surfaces.dashboard.site.calls import part
from stentor.surfaces.dashboard.site.page import Page


async def delivery(page: Page) -> Response:
    base = f"/webhooks/{part(page.param('webhook_id'))}"
    found, hook = await asyncio.gather(page.get(f"{base}/deliveries/{part(page.param('delivery_id'))}"), page.get(base))
    name, event_id = found["event"], found["message_id"]
    body = await page.rows.read(lambda tx: webhooks_rows.body(tx, page.tenant, name, event_id))
    return page.render(
        "delivery.html", block="live", delivery=found, hook=hook, base=base, address=f"{base}/deliveries/{found['id']}",
        body=body,
    )  # fmt: skip


async def replay(page: Page) -> Response:
    base = f"/webhooks/{part(page.param('webhook_id'))}/deliveries"
    made = await page.post(f"{base}/{part(page.param('delivery_id'))}/replay")
    return page.back(f"{base}/{part(made['id'])}", "replayed")


ROUTES = [
    ("GET", "/webhooks/{webhook_id}/deliveries/{delivery_id}", delivery),
    ("POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/replay", replay),
]
