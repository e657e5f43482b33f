"""Sets and removes budgets, groups of models and fallbacks of a tenant, and puts them in force in this process.

Other processes load a change when they are told of it, at the latest with their next poll. What the settings of the
service say stays: a budget set here never raises a limit, and a group or fallbacks of the settings cannot be replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx
from stentor.core.db.polling import PollQuery
from stentor.core.errors import Conflict, Forbidden, InvalidRequest, ModelNotFound, NotFound
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.llm import queries
from stentor.domains.llm.calls.budget_ledger import BudgetLedger
from stentor.domains.llm.costs import (
    Budget,
    BudgetAccount,
    BudgetKind,
    BudgetPeriod,
    BudgetUnit,
    FindTeam,
    first_day_of_period,
    format_dollars,
    is_possible_subject,
    scale_limit,
    unit_scale,
)
from stentor.domains.llm.model_routes import ModelRoutes
from stentor.domains.llm.queries import BudgetSpending
from stentor.domains.llm.runtime_settings import model, store
from stentor.domains.llm.runtime_settings.model import RouteKind, StoredBudget, StoredRoute, TenantSettings
from stentor.domains.llm.service import AGENT_PREFIX, AUTO_GROUP_PREFIX, AUTO_MODEL, LlmGateway


class NamedAgent(Protocol):
    """An agent of the registry, a domain that this one does not import."""

    @property
    def name(self) -> str: ...


FindAgent = Callable[[str, str], NamedAgent | None]
"""Returns an agent of a tenant by its id."""


class RuntimeSettings:
    """The use cases."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        ledger: BudgetLedger,
        gateway: LlmGateway,
        find_agent: FindAgent,
        find_team: FindTeam,
    ) -> None:
        self._db, self._runlog, self._ledger, self._gateway = db, runlog, ledger, gateway
        self._find_agent, self._find_team = find_agent, find_team
        self._by_tenant: dict[str, TenantSettings] = {}

    def poll_query(self, since: int) -> PollQuery:
        """Return the poll that loads what changed since a time in microseconds."""
        return lambda tx: partial(self._apply, store.changed_since(tx, since))

    async def list_budgets(self, caller: Principal) -> list[tuple[Budget, list[BudgetSpending]]]:
        """Return the budgets of the caller's tenant with what is spent; without `admin` those of its own key and team.

        For a budget of each key or agent, those that spent most.
        """
        tenant = caller.tenant
        budgets = [budget for budget in self._ledger.budgets if budget.concerns(tenant)]
        only = None if caller.may("admin") else caller.name
        if only is not None:
            own: tuple[BudgetAccount, ...] = (tenant, "key", caller.name), (tenant, "team", caller.team)
            budgets = [budget for budget in budgets if any(budget.applies_to(account) for account in own if account[2])]

        def read(tx: Tx) -> list[tuple[Budget, list[BudgetSpending]]]:
            unpriced = {
                period: queries.count_unpriced(tx, tenant, first_day_of_period(period, tx.now), self._find_team)
                for period in {budget.period for budget in budgets if budget.unit == "usd"}
            }
            return [
                (budget, [_with_unpriced(row, budget, tenant, unpriced) for row in rows])
                for budget in budgets
                for subject in [caller.team if only and budget.kind == "team" else only]
                for rows in [queries.read_spending(tx, tenant, budget, tx.now, subject)]
            ]

        return await self._db.read(read)

    async def set_budget(
        self, caller: Principal, kind: BudgetKind, subject: str, unit: BudgetUnit, period: BudgetPeriod, limit: float
    ) -> Budget:
        """Set a budget, in tokens or US dollars, or change the limit of one. It is in force at once.

        Raises Forbidden, InvalidRequest, NotFound for an unknown agent, and Conflict for too many budgets.
        """
        _require_person(caller)
        if unit == "tokens" and limit != round(limit):
            raise InvalidRequest("limit: must be a whole number of tokens")
        self._check_subject(caller.tenant, kind, subject)

        def work(tx: Tx) -> StoredBudget:
            settings = self._lock(tx, caller.tenant)
            budget = StoredBudget(kind, subject, unit, period, scale_limit(unit, limit), caller.name, tx.now)
            before = settings.find_budget(budget.budget_id)
            if before is not None and before.limit == budget.limit:
                return before
            if before is None and len(settings.budgets) >= model.MAX_BUDGETS:
                raise Conflict(f"This tenant has {model.MAX_BUDGETS} budgets, which is the limit: remove one.")
            budgets = (*(other for other in settings.budgets if other.budget_id != budget.budget_id), budget)
            event = self._budget_event(budget, caller, previous=before)
            self._save(tx, msgspec.structs.replace(settings, budgets=budgets), event)
            return budget

        return (await self._db.write(work)).in_tenant(caller.tenant)

    async def remove_budget(self, caller: Principal, budget_id: str) -> None:
        """Remove a budget that was set here. Raises Forbidden, NotFound, Conflict for one of the settings or a key."""
        _require_person(caller)

        def work(tx: Tx) -> None:
            settings = self._lock(tx, caller.tenant)
            budget = settings.find_budget(budget_id)
            if budget is None:
                raise self._missing_budget(caller.tenant, budget_id)
            budgets = tuple(other for other in settings.budgets if other.budget_id != budget_id)
            event = self._budget_event(budget, caller, removed=True)
            self._save(tx, msgspec.structs.replace(settings, budgets=budgets), event)

        await self._db.write(work)

    def list_routes(self, tenant: str) -> tuple[ModelRoutes, tuple[StoredRoute, ...]]:
        """Return the groups and fallbacks of the service's settings, and those that the tenant's admins set."""
        return self._gateway.routes.configured, self._settings(tenant).routes

    async def set_route(self, caller: Principal, kind: RouteKind, name: str, models: list[str]) -> StoredRoute:
        """Set a group or the fallbacks of a model, or change their models. They are in force at once.

        Raises Forbidden, InvalidRequest, ModelNotFound, and Conflict for a name of the settings.
        """
        _require_person(caller)
        self._require_own(kind, name)
        await self._check_models(caller.tenant, kind, name, model.model_names(kind, models))

        def work(tx: Tx) -> StoredRoute:
            settings = self._lock(tx, caller.tenant)
            route = StoredRoute(kind, name, tuple(models), caller.name, tx.now)
            before = settings.find_route(route.route_id)
            if before is not None and before.models == route.models:
                return before
            if before is None and len(settings.routes) >= model.MAX_ROUTES:
                raise Conflict(f"This tenant has {model.MAX_ROUTES} groups and fallbacks, which is the limit.")
            routes = (*(other for other in settings.routes if other.route_id != route.route_id), route)
            event = _route_event(route, caller, f"set to {', '.join(models)}")
            self._save(tx, msgspec.structs.replace(settings, routes=routes), event)
            return route

        return await self._db.write(work)

    async def remove_route(self, caller: Principal, route_id: str) -> None:
        """Remove a group or fallbacks that were set here. Raises Forbidden, NotFound, Conflict like `set_route`."""
        _require_person(caller)

        def work(tx: Tx) -> None:
            settings = self._lock(tx, caller.tenant)
            route = settings.find_route(route_id)
            if route is None:
                kind, _, name = route_id.partition(":")
                self._require_own(kind, name)
                raise NotFound("No group and no fallbacks have this id.")
            routes = tuple(other for other in settings.routes if other.route_id != route_id)
            event = _route_event(route, caller, "removed", removed=True)
            self._save(tx, msgspec.structs.replace(settings, routes=routes), event)

        await self._db.write(work)

    def _settings(self, tenant: str) -> TenantSettings:
        return self._by_tenant.get(tenant) or TenantSettings(tenant)

    def _apply(self, changed: list[TenantSettings]) -> None:
        for settings in changed:
            # A poll may bring a row that is older than what this process has written in the meantime.
            if settings.version > self._settings(settings.tenant).version:
                self._by_tenant[settings.tenant] = settings
                groups, fallbacks = (
                    {route.name: route.models for route in settings.routes if route.kind == kind}
                    for kind in ("group", "fallbacks")
                )
                self._gateway.routes.set_stored(settings.tenant, groups, fallbacks)
        stored = self._by_tenant.values()
        self._ledger.set_stored_budgets(b.in_tenant(settings.tenant) for settings in stored for b in settings.budgets)

    def _lock(self, tx: Tx, tenant: str) -> TenantSettings:
        # The settings of a tenant are one row, which is read, changed and written.
        tx.lock(f"llm settings of {tenant}")
        return store.find(tx, tenant)

    def _save(self, tx: Tx, settings: TenantSettings, event: EventDraft) -> None:
        settings = msgspec.structs.replace(settings, version=settings.version + 1, updated_at=tx.now)
        store.save(tx, settings)
        self._runlog.append(tx, settings.tenant, [event])
        # After the commit: calls must not go by settings that are rolled back.
        tx.after_commit(partial(self._apply, [settings]))

    def _check_subject(self, tenant: str, kind: BudgetKind, subject: str) -> None:
        """Raise for an agent, a tenant or a team that cannot exist: its budget would limit nothing.

        Keys and teams are not checked: people who sign in call under their names, and a key may be made later.
        """
        if kind == "agent" and subject != "*" and self._find_agent(tenant, subject) is None:
            raise NotFound(f"No agent has the id {subject!r}.")
        if not is_possible_subject(kind, subject):
            raise InvalidRequest(f"subject: no team has the name {subject!r}; use a-z, 0-9, `_`, `-` and `.`, or `*`")
        if kind == "tenant" and subject != tenant:
            raise InvalidRequest(f"subject: must be the tenant of the key, {tenant!r}")

    def _missing_budget(self, tenant: str, budget_id: str) -> NotFound | Conflict:
        known = [b for b in self._ledger.budgets if b.budget_id == budget_id and b.concerns(tenant)]
        if any(budget.source == "settings" for budget in known):
            return Conflict("This budget is set in SERVICE_LLM_BUDGETS: change it there, and restart the service.")
        if any(budget.source == "key" for budget in known):
            return Conflict(f"This budget belongs to the key {known[0].subject!r}: change the key.")
        return NotFound("There is no such budget.")

    def _budget_event(
        self,
        budget: StoredBudget,
        caller: Principal,
        *,
        previous: StoredBudget | None = None,
        removed: bool = False,
    ) -> EventDraft:
        scale = unit_scale(budget.unit)
        meta = {
            "kind": budget.kind,
            "subject": budget.subject,
            "unit": budget.unit,
            "period": budget.period,
            "limit": budget.limit / scale,
            "previous": previous and previous.limit / scale,
            "removed": removed,
            "by": caller.name,
        }
        agent_id = budget.subject if budget.kind == "agent" and budget.subject != "*" else None
        agent = self._find_agent(caller.tenant, agent_id) if agent_id else None
        who = f"{budget.kind} {agent.name if agent else budget.subject}"
        who = f"each {budget.kind}" if budget.subject == "*" else "the tenant" if budget.kind == "tenant" else who
        change = f"({_limit(budget)}) removed" if removed else f"set to {_limit(budget)}"
        return EventDraft("budget_changed", "llm", f"Budget of {who} {change}.", meta, agent_id)

    def _require_own(self, kind: str, name: str) -> None:
        """Raise Conflict for a group or fallbacks of the settings, which win against those set here."""
        routes = self._gateway.routes.configured
        if kind == "group" and name in routes.groups:
            raise Conflict(f"The group {name!r} is set in SERVICE_LLM_GROUPS: change it there, and restart.")
        if kind == "fallbacks" and name in routes.fallbacks:
            raise Conflict(f"The fallbacks of {name!r} are set in SERVICE_LLM_FALLBACKS: change it, and restart.")

    async def _check_models(self, tenant: str, kind: RouteKind, name: str, models: list[str]) -> None:
        """Raise for a name that would never match. Raises InvalidRequest, ModelNotFound."""
        groups = self._gateway.routes.of(tenant).groups
        if kind == "group" and "/" in name:
            raise InvalidRequest("name: the name of a group has no slash; provider/model is a model")
        if kind == "group" and name.startswith((AGENT_PREFIX, AUTO_GROUP_PREFIX)):
            raise InvalidRequest(f"name: {AGENT_PREFIX} and {AUTO_GROUP_PREFIX} begin other names than those of groups")
        if kind == "fallbacks" and name != "*" and name not in groups:
            # A model that has fallbacks must exist too, or they would never be used.
            models = [*models, name]
        providers = await self._gateway.provider_registry.providers_of(tenant)
        for candidate in models:
            if candidate == AUTO_MODEL or candidate.startswith((AGENT_PREFIX, AUTO_GROUP_PREFIX)):
                raise InvalidRequest(f"models: {candidate!r} is not a model of a provider")
            # No groups inside groups and fallbacks: names are resolved once, without recursion.
            if candidate in groups or await self._gateway.resolve_target(candidate, providers) is None:
                raise ModelNotFound(f"No provider has the model {candidate!r}. GET /api/v1/llm/models lists them.")


def _with_unpriced(
    row: BudgetSpending, budget: Budget, tenant: str, unpriced: Mapping[BudgetPeriod, Counter[BudgetAccount]]
) -> BudgetSpending:
    if budget.unit != "usd":
        return row
    count = unpriced[budget.period][tenant, budget.kind, row.subject]
    return msgspec.structs.replace(row, unpriced_calls=count)


def _require_person(caller: Principal) -> None:
    """Raises Forbidden for an agent's key: an agent could lift its own limit."""
    if not caller.is_person:
        raise Forbidden(
            f"The key {caller.name!r} has the role agent, so it may not change budgets, groups or fallbacks."
        )


def _limit(budget: StoredBudget) -> str:
    limit = budget.limit / unit_scale(budget.unit)
    amount = format_dollars(limit) if budget.unit == "usd" else f"{limit:,.0f} tokens"
    return f"{amount} a {budget.period}"


def _route_event(route: StoredRoute, caller: Principal, change: str, *, removed: bool = False) -> EventDraft:
    meta = {"kind": route.kind, "name": route.name, "models": list(route.models), "removed": removed, "by": caller.name}
    what = "Group of models" if route.kind == "group" else "Fallbacks of"
    name = "every model" if (route.kind, route.name) == ("fallbacks", "*") else route.name
    return EventDraft("model_route_changed", "llm", f"{what} {name} {change}.", meta)
