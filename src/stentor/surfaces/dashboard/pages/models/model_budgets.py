"""The page of budgets: what is spent of each, and a form to set, change and remove those that were set at runtime."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core.clock import SECOND, format_iso
from stentor.core.jsontext import JsonObject
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.site.forms import number_or_text
from stentor.surfaces.dashboard.site.page import PageRequest, action

PATH = "/models/budgets"
FIELDS = {"who": "", "limit": "", "unit": "usd", "period": "month"}
"""The fields of the form with their defaults; `who` is the kind and the subject, such as `key:ci`."""
Choices = list[tuple[str, list[tuple[str, str]]]]


async def show_budgets(page: PageRequest) -> Response:
    """Render the budgets; the query fills the form in, so that other pages can link to it."""
    return await _render(page, {name: page.query_param(name, default) for name, default in FIELDS.items()})


async def _render(page: PageRequest, form_values: dict[str, str], problem: GatewayError | None = None) -> Response:
    is_admin = page.session.may("admin")
    listed, names = await asyncio.gather(page.call("llm.budgets"), page.read(registry_queries.read_names))
    return page.render(
        "budgets.html",
        problem.status if problem else 200,
        block="budgets",
        budgets=listed["budgets"],
        names=names,
        choices=await _choices(page, names, form_values["who"]) if is_admin else [],
        form_values=form_values,
        problem=problem,
        segment=quote_segment,
        change_query=_change_query,
        reset_date=lambda budget: format_iso(page.site.now() + budget["resets_in_seconds"] * SECOND),
    )


async def _choices(page: PageRequest, names: dict[str, str], chosen: str) -> Choices:
    """Return whom a budget can limit, in groups; what was chosen is among them even if it is unknown."""
    listed = await asyncio.gather(page.call("keys.list"), page.call("people.list"))
    holders = [key for key in listed[0]["keys"] if key["status"] != "revoked"]
    teams = sorted({holder["team"] for holder in (*holders, *listed[1]["people"]) if holder["team"]})
    general = [(f"tenant:{page.tenant}", "everybody together"), ("agent:*", "each agent"), ("key:*", "each key")]
    general += [("team:*", "each team")] if teams else []
    agents = [(f"agent:{agent_id}", name) for agent_id, name in sorted(names.items(), key=lambda pair: pair[1])]
    keys = [(f"key:{name}", name) for name in sorted(key["name"] for key in holders)]
    of_teams = [(f"team:{name}", name) for name in teams]
    choices: Choices = [("", general), ("Agents", agents), ("Keys", keys), ("Teams", of_teams)]
    if chosen and all(chosen != value for _, options in choices for value, _ in options):
        general.append((chosen, chosen))
    return [(label, options) for label, options in choices if options]


async def set_budget(page: PageRequest) -> Response:
    form = await page.read_form()
    values = {name: form.get(name) or default for name, default in FIELDS.items()}
    kind, _, subject = values["who"].partition(":")
    if not (kind and subject):
        return await _render(page, values, GatewayError(400, "INVALID_REQUEST", "Choose whom the budget limits."))
    try:
        body = {"kind": kind, "subject": subject, "unit": values["unit"], "period": values["period"]}
        await page.call("llm.set_budget", body=body | {"limit": number_or_text(values["limit"])})
    except GatewayError as error:
        return await _render(page, values, error.require_status(400, 404, 409, 422))
    return page.redirect(PATH, "budget-set")


def _change_query(budget: JsonObject) -> str:
    """Return the query that fills the form in with a budget."""
    who, limit = f"{budget['kind']}:{budget['subject']}", f"{budget['limit']:f}".rstrip("0").rstrip(".")
    return urlencode({"who": who, "limit": limit, "unit": budget["unit"], "period": budget["period"]})


ROUTES = [
    ("GET", PATH, show_budgets),
    ("POST", PATH, set_budget),
    ("POST", f"{PATH}/{{budget_id}}/remove", action("llm.remove_budget", PATH, "removed")),
]
