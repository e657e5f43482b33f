"""The audit page: who signed in, what was changed and what was refused."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.domains.audit.store import CATEGORIES
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.site.page import PageRequest

PAGE_SIZE = 50


async def show_audit(page: PageRequest) -> Response:
    category = page.query_param("category")
    category = category if category in CATEGORIES else ""
    found, names = await asyncio.gather(
        page.call("audit.list", category=category, limit=PAGE_SIZE, cursor=page.query_param("cursor")),
        page.read(registry_queries.read_names),
    )
    following = {"category": category, "cursor": found["next_cursor"]}
    return page.render(
        "audit.html",
        block="rows" if page.query_param("cursor") else "results",
        events=found["events"],
        categories=tuple(CATEGORIES),
        category=category,
        names=names,
        more=urlencode(following) if found["next_cursor"] else "",
    )


ROUTES = [("GET", "/audit", show_audit)]
