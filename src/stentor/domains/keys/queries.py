"""Reads of the API keys for other parts of the service."""

from __future__ import annotations

from stentor.core.db import Sql, Tx

_EXPIRING = Sql(
    """select tenant, name, created_at, expires_at from api_keys
    where revoked_at is null and created_by <> '' and expires_at between :since and :until
    order by expires_at, name"""
)


def list_expiring(tx: Tx, since: int, until: int) -> list[tuple[str, str, int, int]]:
    """Return (tenant, name, created_at, expires_at) of the keys of all tenants that expire between two times.

    Times in microseconds. Revoked keys are left out.
    """
    return [
        (str(tenant), str(name), int(made), int(ends))
        for tenant, name, made, ends in tx.rows(_EXPIRING, since=since, until=until)
    ]
