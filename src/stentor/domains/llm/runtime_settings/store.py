"""SQL of what admins set at runtime: one row for each tenant, so that other processes notice removals too."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.domains.llm.runtime_settings.model import StoredBudget, StoredRoute, TenantSettings

_COLUMNS = "tenant, budgets, routes, version, updated_at"
_FIND = Sql(f"select {_COLUMNS} from llm_runtime_settings where tenant = :tenant")
_CHANGED = Sql(f"select {_COLUMNS} from llm_runtime_settings where updated_at >= :since")
_UPSERT = Sql(
    f"""insert into llm_runtime_settings ({_COLUMNS}) values (:tenant, :budgets, :routes, :version, :updated_at)
    on conflict (tenant) do update set budgets = excluded.budgets, routes = excluded.routes,
        version = excluded.version, updated_at = excluded.updated_at"""
)


def find(tx: Tx, tenant: str) -> TenantSettings:
    """Return what the tenant's admins set; empty settings if they set nothing."""
    row = tx.row(_FIND, tenant=tenant)
    return _settings(row) if row else TenantSettings(tenant)


def changed_since(tx: Tx, since: int) -> list[TenantSettings]:
    """Return the settings of all tenants that changed since a time in microseconds."""
    return [_settings(row) for row in tx.rows(_CHANGED, since=since)]


def save(tx: Tx, settings: TenantSettings) -> None:
    values = {name: getattr(settings, name) for name in ("tenant", "version", "updated_at")}
    lists = {"budgets": settings.budgets, "routes": settings.routes}
    tx.run(_UPSERT, **values, **{name: jsontext.dump(msgspec.to_builtins(rows)) for name, rows in lists.items()})


def _settings(row: tuple[Any, ...]) -> TenantSettings:
    budgets = msgspec.json.decode(row[1], type=tuple[StoredBudget, ...])
    routes = msgspec.json.decode(row[2], type=tuple[StoredRoute, ...])
    return TenantSettings(str(row[0]), budgets, routes, int(row[3]), int(row[4]))
