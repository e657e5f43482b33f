"""Streams that open pages read: what changed, and what happens to one task."""

from __future__ import annotations

from starlette.responses import Response

from stentor.surfaces.dashboard.site.calls import part, target
from stentor.surfaces.dashboard.site.page import Page
from stentor.web.sse import EventStreamResponse

READ = "read"


async def changes(page: Page) -> Response:
    """Topics that had events since the page was made, at most once a second."""
    return EventStreamResponse(
        page.site.live.frames(page.tenant, page.asked_since), page.site.streams, page.session.csrf
    )


async def task(page: Page) -> Response:
    """A task's stream as the gateway gives it, with the reader's own key."""
    task_id = part(page.param("task_id"))
    await page.get(f"/tasks/{task_id}")  # whoever may not see the task hears so before a stream begins
    address = target(f"/tasks/{task_id}/stream")
    frames = page.site.caller.stream(page.session.key, address, page.request.headers.get("last-event-id"))
    return EventStreamResponse(frames, page.site.streams, page.session.csrf)


ROUTES = [("GET", "/live", changes), ("GET", "/tasks/{task_id}/stream", task)]
