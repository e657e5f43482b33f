"""Budgets and model routes that a tenant's admins set at runtime, and their checks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from stentor.core.errors import InvalidRequest
from stentor.domains.llm import costs
from stentor.domains.llm.costs import Budget, BudgetKind, BudgetPeriod, BudgetUnit
from stentor.domains.llm.model_routes import parse_weights

MAX_BUDGETS = 500
"""Budgets that a tenant may have; all are stored in one row."""
MAX_ROUTES = 100
"""Groups and fallbacks that a tenant may have."""
RouteKind = Literal["group", "fallbacks"]


class StoredBudget(msgspec.Struct, frozen=True):
    """A budget; `limit` in tokens or billionths of a US dollar, `set_at` in microseconds."""

    kind: BudgetKind
    subject: str
    unit: BudgetUnit
    period: BudgetPeriod
    limit: int
    set_by: str
    set_at: int

    @property
    def budget_id(self) -> str:
        return costs.budget_id(self.kind, self.subject, self.unit, self.period)

    def in_tenant(self, tenant: str) -> Budget:
        return Budget(**msgspec.structs.asdict(self), source="api", tenant=tenant)


class StoredRoute(msgspec.Struct, frozen=True):
    """A group with its models, each with its weight such as `openai/a*3`, or the fallbacks of a model."""

    kind: RouteKind
    name: str
    models: tuple[str, ...]
    set_by: str
    set_at: int

    @property
    def route_id(self) -> str:
        return route_id(self.kind, self.name)


class TenantSettings(msgspec.Struct, frozen=True):
    """All that a tenant's admins set. `version` counts the changes; `updated_at` in microseconds."""

    tenant: str
    budgets: tuple[StoredBudget, ...] = ()
    routes: tuple[StoredRoute, ...] = ()
    version: int = 0
    updated_at: int = 0

    def find_budget(self, budget_id: str) -> StoredBudget | None:
        return next((budget for budget in self.budgets if budget.budget_id == budget_id), None)

    def find_route(self, route_id: str) -> StoredRoute | None:
        return next((route for route in self.routes if route.route_id == route_id), None)


def route_id(kind: str, name: str) -> str:
    """Return the id of a group or of fallbacks, such as `group:fast`."""
    return f"{kind}:{name}"


def model_names(kind: RouteKind, models: Sequence[str]) -> list[str]:
    """Return the models of a group or of fallbacks without their weights. Raises InvalidRequest for malformed ones."""
    if kind == "group":
        try:
            names = list(parse_weights(models))
        except ValueError as error:
            raise InvalidRequest(f"models: {error}") from None
    else:
        names = list(models)
        if weighted := [name for name in names if "*" in name]:
            raise InvalidRequest(f"models: {weighted[0]!r} has a weight; fallbacks are tried in their order")
    # `parse_weights` returns a dict, so a model that a group names twice counts once.
    if len(set(names)) < len(models):
        raise InvalidRequest("models: names a model twice")
    return names
