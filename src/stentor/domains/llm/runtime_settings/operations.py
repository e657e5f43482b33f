"""Operations on budgets, groups of models and fallbacks. Source: docs/llm.md, "Limit spending and cost"."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator, Field, StringConstraints

from stentor.core.clock import Clock
from stentor.domains.llm.costs import (
    Budget,
    BudgetKind,
    BudgetPeriod,
    BudgetSource,
    BudgetUnit,
    seconds_until_reset,
    unit_scale,
)
from stentor.domains.llm.queries import BudgetSpending
from stentor.domains.llm.runtime_settings.model import RouteKind, route_id
from stentor.domains.llm.runtime_settings.service import RuntimeSettings
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Caller, Name, ResponseModel, Timestamp

BudgetId = Annotated[
    str, Path(description="A budget's id, such as `key:ci:usd:month`."), AfterValidator(decode_path_segment)
]
RouteId = Annotated[
    str, Path(description="A group's or fallbacks' id, such as `group:fast`."), AfterValidator(decode_path_segment)
]
ModelText = Annotated[Name, StringConstraints(strip_whitespace=True)]


class BudgetIn(RequestModel):
    """`subject` is the name of a key, the id of an agent, a team, or the tenant; `*` is each key, agent or team.

    `limit` is in tokens or US dollars; 0 refuses every call. `usd` does not count models without a known price.
    """

    model_config = example_config(kind="key", subject="ci", unit="usd", period="month", limit=20)

    kind: BudgetKind
    subject: Name
    unit: BudgetUnit
    period: BudgetPeriod
    limit: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class SpendingOut(ResponseModel):
    """`unpriced_calls` used models without a known price, so a budget in US dollars does not count them.

    They are counted among the latest 20,000 calls of the period.
    """

    subject: str
    spent: float
    unpriced_calls: int


class BudgetOut(ResponseModel):
    """A limit in tokens or US dollars, and what is spent of it in this period; of each key, agent or team, the ten
    highest.

    `source` is `settings` (SERVICE_LLM_BUDGETS), `key` (set with the key) or `api` (set here, by `set_by`).
    """

    budget_id: str
    kind: BudgetKind
    subject: str
    unit: BudgetUnit
    period: BudgetPeriod
    limit: float
    source: BudgetSource
    set_by: str | None
    set_at: Timestamp | None
    resets_in_seconds: int
    spending: list[SpendingOut]


class BudgetList(ResponseModel):
    budgets: list[BudgetOut]
    total: int


class BudgetSet(ResponseModel):
    budget_id: str
    kind: BudgetKind
    subject: str
    unit: BudgetUnit
    period: BudgetPeriod
    limit: float


class ModelRouteIn(RequestModel):
    """A group has models with weights such as `openai/gpt-5-mini*3`; fallbacks are in the order of their use.

    `name` is the group's, or the model or group that has the fallbacks; `*` is every model.
    """

    model_config = example_config(kind="fallbacks", name="*", models=["openai/gpt-5-mini"])

    kind: RouteKind
    name: Annotated[Name, StringConstraints(strip_whitespace=True)]
    models: Annotated[list[ModelText], Field(min_length=1, max_length=20)]


class ModelRouteOut(ResponseModel):
    """A group or the fallbacks of a model. `source` is `settings` or `api`; a name of the settings wins."""

    route_id: str
    kind: RouteKind
    name: str
    models: list[str]
    source: BudgetSource = "api"
    set_by: str | None = None
    set_at: Timestamp | None = None


class RouteList(ResponseModel):
    routes: list[ModelRouteOut]
    total: int


class SettingRemoved(ResponseModel):
    removed: bool = True


class RuntimeSettingsOperations:
    """Operations on the settings of models that change at runtime."""

    def __init__(self, settings: RuntimeSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock

    @operation("llm.budgets", "read", "GET /llm/budgets")
    async def list_budgets(self, caller: Caller) -> BudgetList:
        """List the budgets with what is spent of them; keys without `admin` see those of their own and of their
        team."""
        listed = await self._settings.list_budgets(caller)
        return BudgetList(budgets=[self._budget(*entry) for entry in listed], total=len(listed))

    @operation("llm.set_budget", "admin", "POST /llm/budgets", 200, (404, 409))
    async def set_budget(self, caller: Caller, body: BudgetIn) -> BudgetSet:
        """Limit what a key, an agent, a team or the whole tenant may spend on models, at once. The strictest counts."""
        budget = await self._settings.set_budget(caller, **body.model_dump())
        return BudgetSet.of(budget, limit=budget.limit / unit_scale(budget.unit))

    @operation("llm.remove_budget", "admin", "DELETE /llm/budgets/{budget_id}", errors=(404, 409))
    async def remove_budget(self, caller: Caller, budget_id: BudgetId) -> SettingRemoved:
        """Remove a budget that was set at runtime."""
        await self._settings.remove_budget(caller, budget_id)
        return SettingRemoved()

    @operation("llm.routes", "read", "GET /llm/routes")
    async def list_routes(self, caller: Caller) -> RouteList:
        """List the groups of models and the fallbacks: those of the settings, then those set at runtime."""
        configured, stored = self._settings.list_routes(caller.tenant)
        routes = [_configured("group", name, configured.group_entries(name)) for name in configured.groups]
        routes += [_configured("fallbacks", name, models) for name, models in configured.fallbacks.items()]
        routes += [ModelRouteOut.of(route) for route in stored]
        return RouteList(routes=routes, total=len(routes))

    @operation("llm.set_route", "admin", "POST /llm/routes", 200, (404, 409))
    async def set_route(self, caller: Caller, body: ModelRouteIn) -> ModelRouteOut:
        """Set a group of models or the fallbacks of a model, at once."""
        return ModelRouteOut.of(await self._settings.set_route(caller, **body.model_dump()))

    @operation("llm.remove_route", "admin", "DELETE /llm/routes/{route_id}", errors=(404, 409))
    async def remove_route(self, caller: Caller, route_id: RouteId) -> SettingRemoved:
        """Remove a group or fallbacks that were set at runtime."""
        await self._settings.remove_route(caller, route_id)
        return SettingRemoved()

    def _budget(self, budget: Budget, spending: list[BudgetSpending]) -> BudgetOut:
        return BudgetOut.of(
            budget,
            limit=budget.limit / unit_scale(budget.unit),
            resets_in_seconds=seconds_until_reset(budget.period, self._clock.now()),
            spending=[SpendingOut.of(row) for row in spending],
        )


def _configured(kind: RouteKind, name: str, models: list[str]) -> ModelRouteOut:
    return ModelRouteOut(route_id=route_id(kind, name), kind=kind, name=name, models=models, source="settings")
