"""SQL of the API keys that are made at runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Params
from stentor.domains.keys.model import ApiKey

_FIELDS = ApiKey.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_LISTS = ("permissions", "budgets", "models")
_ONE = Sql(f"select {_COLUMNS} from api_keys where name = :name")
_OF_TENANT = Sql(
    f"select {_COLUMNS} from api_keys where tenant = :tenant and created_by <> '' order by created_at, name"
)
_CHANGED = Sql(f"select {_COLUMNS} from api_keys where updated_at >= :since")
_EXPIRING = Sql(
    """select tenant, name, created_at, expires_at from api_keys
    where revoked_at is null and created_by <> '' and expires_at between :since and :until
    order by expires_at, name"""
)
_COUNT = Sql(
    """select count(*) from api_keys
    where tenant = :tenant and revoked_at is null and (expires_at is null or expires_at > :now)"""
)
_ANY_OF_PERSON = Sql("select 1 from api_keys where tenant = :tenant and role <> 'agent' and created_by <> '' limit 1")
_INSERT = Sql.insert("api_keys", _FIELDS)
_INSERT_MISSING = Sql(f"{_INSERT.text} on conflict (name) do nothing")
_CHANGEABLE = tuple(name for name in _FIELDS if name not in ("name", "tenant", "created_by", "created_at"))
_UPDATE = Sql(f"update api_keys set {', '.join(f'{name} = :{name}' for name in _CHANGEABLE)} where name = :name")
# Not `updated_at`: other processes need not load the key again.
_USED = Sql(
    """update api_keys set last_used_at = :used_at
    where name = :name and (last_used_at is null or last_used_at < :used_at)"""
)


def find(tx: Tx, name: str) -> ApiKey | None:
    """Return the key with this name of any tenant: names are unique in an installation."""
    row = tx.row(_ONE, name=name)
    return _key(row) if row else None


def list_keys(tx: Tx, tenant: str) -> list[ApiKey]:
    """Return all keys of a tenant, revoked ones included, oldest first."""
    return [_key(row) for row in tx.rows(_OF_TENANT, tenant=tenant)]


def changed_since(tx: Tx, since: int) -> list[ApiKey]:
    """Return the keys of all tenants that changed since a time in microseconds."""
    return [_key(row) for row in tx.rows(_CHANGED, since=since)]


def count_active(tx: Tx, tenant: str) -> int:
    row = tx.row(_COUNT, tenant=tenant, now=tx.now)
    return int(row[0]) if row else 0


def has_keys_of_people(tx: Tx, tenant: str) -> bool:
    """Return whether the tenant ever had a key that was made at runtime and has a role of people."""
    return tx.row(_ANY_OF_PERSON, tenant=tenant) is not None


def insert(tx: Tx, key: ApiKey) -> None:
    tx.run(_INSERT, **_row(key))


def insert_missing(tx: Tx, keys: Iterable[ApiKey]) -> None:
    """Insert the keys whose names no row has."""
    tx.many(_INSERT_MISSING, [_row(key) for key in keys])


def update(tx: Tx, key: ApiKey) -> None:
    row = _row(key)
    tx.run(_UPDATE, name=key.name, **{name: row[name] for name in _CHANGEABLE})


def record_use(tx: Tx, used: Mapping[str, int]) -> None:
    """Store when keys were last used, by name, in microseconds."""
    tx.many(_USED, [{"name": name, "used_at": used_at} for name, used_at in used.items()])


def _row(key: ApiKey) -> Params:
    row = {name: getattr(key, name) for name in _FIELDS}
    return row | {name: jsontext.dump(row[name]) for name in _LISTS}


def _key(row: tuple[Any, ...]) -> ApiKey:
    values = dict(zip(_FIELDS, row, strict=True))
    values |= {name: msgspec.json.decode(values[name], type=tuple[str, ...]) for name in _LISTS}
    return ApiKey(**values)


def list_expiring(tx: Tx, since: int, until: int) -> list[tuple[str, str, int, int]]:
    """Return (tenant, name, created_at, expires_at) of the keys of all tenants that expire between two times.

    Times in microseconds. Revoked keys are left out.
    """
    return [
        (str(tenant), str(name), int(made), int(ends))
        for tenant, name, made, ends in tx.rows(_EXPIRING, since=since, until=until)
    ]
