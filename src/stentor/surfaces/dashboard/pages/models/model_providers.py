"""The page of the model providers, and of the groups and fallbacks of models.

Apart from the usage, because the providers' state is requested live and may be slow.
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from stentor.core.jsontext import JsonObject
from stentor.domains.llm import queries
from stentor.domains.llm.formats import FORMATS
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.site.page import PageRequest, action

PATH = "/models/providers"
MAX_LISTED_MODELS = 300
"""Models per provider on a page."""
FORM_FIELDS = ("provider", "baseUrl", "default_model", "format")
"""Without the key, which is never sent back to the browser."""
ROUTE_FIELDS = {"kind": "group", "name": "", "models": ""}
FORM_ERRORS = (400, 404, 409, 422)


async def show_providers(page: PageRequest) -> Response:
    """Render the providers and their models, the groups and the fallbacks; the query fills in the form of a group."""
    return await _render(page, route_values={name: page.query_param(name, v) for name, v in ROUTE_FIELDS.items()})


async def _render(
    page: PageRequest,
    problem: GatewayError | None = None,
    form_values: dict[str, str] | None = None,
    route_problem: GatewayError | None = None,
    route_values: dict[str, str] | None = None,
) -> Response:
    """Render the page; after a rejected form with the error and the submitted values, but never with a key."""
    is_admin = page.session.may("admin")
    config, routes, live_providers, models, registered, recent_calls = await asyncio.gather(
        page.call("llm.config"),
        page.call("llm.routes"),
        page.call("llm.providers") if is_admin else _no_providers(),
        page.call("llm.models"),
        page.read(queries.read_registered_providers),
        page.read(queries.read_recent_calls, page.site.now()),
    )
    rejection = problem or route_problem
    return page.render(
        "providers.html",
        rejection.status if rejection else 200,
        block="providers",
        config=config,
        routes=routes["routes"],
        segment=quote_segment,
        providers=live_providers if is_admin else config["providers"],
        models=_group_by_provider(models),
        registered=registered,
        recent_calls=recent_calls,
        problem=problem,
        form_values=form_values or dict.fromkeys(FORM_FIELDS, ""),
        route_problem=route_problem,
        route_values=route_values or ROUTE_FIELDS,
        formats=FORMATS,
        listed=MAX_LISTED_MODELS,
    )


async def _no_providers() -> list[JsonObject]:
    return []


def _group_by_provider(models: list[JsonObject]) -> dict[str, list[JsonObject]]:
    groups: dict[str, list[JsonObject]] = {}
    for model in models:
        groups.setdefault(model["provider"], []).append(model)
    return groups


async def save_provider(page: PageRequest) -> Response:
    form = await page.read_form()
    values = {name: form.get(name, "") for name in FORM_FIELDS}
    optional = {"apiKey": form.get("apiKey", ""), "baseUrl": values["baseUrl"], "format": values["format"]}
    body: JsonObject = {"provider": values["provider"]}
    body |= {name: value for name, value in optional.items() if value}
    if values["default_model"]:
        body["options"] = {"default_model": values["default_model"]}
    try:
        await page.call("llm.set_provider", body=body)
    except GatewayError as error:
        return await _render(page, error.require_status(*FORM_ERRORS), values)
    return page.redirect(PATH, "saved")


async def set_route(page: PageRequest) -> Response:
    form = await page.read_form()
    values = {name: form.get(name) or default for name, default in ROUTE_FIELDS.items()}
    models = [part.strip() for part in values["models"].split(",") if part.strip()]
    try:
        await page.call("llm.set_route", body=values | {"models": models})
    except GatewayError as error:
        return await _render(page, route_problem=error.require_status(*FORM_ERRORS), route_values=values)
    return page.redirect(PATH, "saved")


ROUTES = [
    ("GET", PATH, show_providers),
    ("POST", PATH, save_provider),
    ("POST", f"{PATH}/{{name}}/remove", action("llm.remove_provider", PATH, "removed")),
    ("POST", "/models/routes", set_route),
    ("POST", "/models/routes/{route_id}/remove", action("llm.remove_route", PATH, "removed")),
]
