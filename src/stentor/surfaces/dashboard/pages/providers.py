"""Providers of models as they are now: asked live, so apart from the page; added and removed by admins."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from stentor.surfaces.dashboard.pages import models_rows
from stentor.surfaces.dashboard.site.calls import Refused, part
from stentor.surfaces.dashboard.site.page import Page

FORMATS = ("openai", "anthropic", "gemini")
LISTED = 300
"""Models of one provider that are shown."""


async def providers(page: Page) -> Response:
    """The providers as they are now, their models, and the budgets."""
    return await _shown(page)


async def _shown(page: Page, problem: Refused | None = None, given: dict[str, str] | None = None) -> Response:
    """With the form again, when the gateway refused what it was given; never with a key."""
    admin = page.session.may("admin")
    config, found, offered, registered, lately, names = await asyncio.gather(
        page.get("/llm/config"),
        page.get("/llm/providers") if admin else _nothing(),
        page.get("/llm/models"),
        page.rows.read(lambda tx: models_rows.registered(tx, page.tenant)),
        page.rows.read(lambda tx: models_rows.lately(tx, page.tenant, page.site.now())),
        page.rows.names(page.tenant),
    )
    settings = config["data"]
    spending = await page.rows.read(
        lambda tx: models_rows.spending(tx, page.tenant, settings["budgets"], page.site.now())
    )
    return page.render(
        "providers.html",
        problem.status if problem else 200,
        block="providers",
        config=settings,
        providers=found["data"] if admin else settings["providers"],
        models=_by_provider(offered["data"]),
        registered=registered,
        lately=lately,
        spending=[one for one in spending if admin or (one.kind, one.subject) == ("key", page.session.name)],
        names=names,
        problem=problem,
        given=given or dict.fromkeys(("provider", "baseUrl", "default_model", "format"), ""),
        formats=FORMATS,
        listed=LISTED,
    )


async def _nothing() -> dict[str, Any]:
    return {"data": []}


def _by_provider(offered: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in offered:
        found.setdefault(one["provider"], []).append(one)
    return found


async def add(page: Page) -> Response:
    form = await page.form()
    given = {name: form.get(name, "") for name in ("provider", "baseUrl", "default_model", "format")}
    body: dict[str, Any] = {"provider": given["provider"], "apiKey": form.get("apiKey", "")}
    body |= {"baseUrl": given["baseUrl"], "format": given["format"]}
    body = {name: value for name, value in body.items() if value or name == "provider"}
    if given["default_model"]:
        body["options"] = {"default_model": given["default_model"]}
    try:
        await page.post("/llm/provider", body)
    except Refused as refused:
        if refused.status not in (400, 409, 422):
            raise
        return await _shown(page, refused, given)
    return page.back("/models/providers", "saved")


async def remove(page: Page) -> Response:
    await page.call("DELETE", f"/llm/provider/{part(page.param('name'))}")
    return page.back("/models/providers", "removed")


ROUTES = [
    ("GET", "/models/providers", providers),
    ("POST", "/models/providers", add),
    ("POST", "/models/providers/{name}/remove", remove),
]
