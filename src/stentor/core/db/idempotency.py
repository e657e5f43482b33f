"""Responses stored under an Idempotency-Key, in the same transaction as the work that they report.

Scope of a key: tenant, API key, route. Retention: 24 hours. Source: docs/decisions, "HTTP everywhere".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from stentor.core import jsontext
from stentor.core.clock import HOUR
from stentor.core.db import Sql, Tx
from stentor.core.db.locks import locks
from stentor.core.errors import IdempotencyMismatch

T = TypeVar("T")
RETENTION_US = 24 * HOUR

_GET = Sql(
    """select body_hash, status_code, answer from idempotency_keys
    where tenant = :tenant and key_name = :key_name and route = :route and idempotency_key = :value
        and created_at > :since"""
)
_PUT = Sql(
    """insert into idempotency_keys
        (tenant, key_name, route, idempotency_key, body_hash, status_code, answer, created_at)
    values (:tenant, :key_name, :route, :value, :body_hash, :status_code, :answer, :now)
    on conflict (tenant, key_name, route, idempotency_key) do update set body_hash = excluded.body_hash,
        status_code = excluded.status_code, answer = excluded.answer, created_at = excluded.created_at"""
)
_FORGET = Sql(
    """delete from idempotency_keys where tenant = :tenant and key_name = :key_name and route = :route
        and idempotency_key = :value and status_code = :status_code"""
)
# The function's rows do not fit into that little memory and go to a temporary file.
_USE_LITTLE_MEMORY, _USE_USUAL_MEMORY = Sql("set local work_mem = '64kB'"), Sql("set local work_mem to default")
_WRITE_TO_FILE = Sql("select count(*) from generate_series(1, 5000)")
_PURGE = Sql("delete from idempotency_keys where created_at <= :before")


class IdempotencyKey(msgspec.Struct, frozen=True):
    """The client's key in its scope, with the hash of the request body."""

    tenant: str
    key_name: str
    route: str
    value: str
    body_hash: str

    @property
    def scope(self) -> tuple[str, str, str, str]:
        return self.tenant, self.key_name, self.route, self.value


class StoredResponse(msgspec.Struct, frozen=True):
    """The HTTP status and JSON body of the first response."""

    status_code: int
    body: Any


def find_response(tx: Tx, key: IdempotencyKey) -> StoredResponse | None:
    """Return the stored response, if any. Raises IdempotencyMismatch if the key was used with another body.

    Without a stored response, the key stays locked until this transaction ends: a concurrent request with the same
    key waits, and then finds the response of this one.
    """
    # Lock before the read: two requests with the same key would otherwise both find nothing and both do the work.
    tx.lock(locks.idempotency_lock(*key.scope))
    row = tx.row(_GET, **_identity(key), since=tx.now - RETENTION_US)
    if row is None:
        return None
    if row[0] != key.body_hash:
        raise IdempotencyMismatch("This Idempotency-Key was used before with another request body. Use a new key.")
    return StoredResponse(row[1], jsontext.load(row[2]))


def store_response(tx: Tx, key: IdempotencyKey, response: StoredResponse) -> None:
    """Store the response; it replaces an expired one of the same key."""
    tx.run(
        _PUT,
        **_identity(key),
        body_hash=key.body_hash,
        status_code=response.status_code,
        answer=jsontext.dump(response.body),
        now=tx.now,
    )


def forget_response(tx: Tx, key: IdempotencyKey, status_code: int) -> None:
    """Delete the stored response if it has this status."""
    tx.run(_FORGET, **_identity(key), status_code=status_code)


def _identity(key: IdempotencyKey) -> dict[str, str]:
    return {"tenant": key.tenant, "key_name": key.key_name, "route": key.route, "value": key.value}


def run_once(tx: Tx, key: IdempotencyKey | None, kind: type[T], work: Callable[[], T]) -> T:
    """Do the work and store what it returns; with a key that was used before, return the stored result. `kind` is the
    type of the result, to which msgspec decodes it. Raises IdempotencyMismatch.
    """
    if key is None:
        return work()
    if (response := find_response(tx, key)) is not None:
        return msgspec.convert(response.body, kind)
    result = work()
    store_response(tx, key, StoredResponse(200, msgspec.to_builtins(result)))
    return result


def purge_expired(tx: Tx) -> int:
    """Delete the responses older than the retention; returns their number."""
    return tx.run(_PURGE, before=tx.now - RETENTION_US)


def probe_write(tx: Tx) -> None:
    """Store a response and delete it again, for health checks. Raises like any write."""
    # A delete of nothing would succeed on a full disk: SQLite writes nothing if no page changes. The value is random
    # so that processes that share a database do not wait for each other.
    key = IdempotencyKey("", "", "health", secrets.token_hex(8), "")
    store_response(tx, key, StoredResponse(0, None))
    forget_response(tx, key, 0)


def probe_disk(tx: Tx) -> None:
    """Write what is not a row to PostgreSQL's disk, for health checks. Raises like any write."""
    # Storing and deleting a row reuses the space of an earlier one, so it works on a full disk too.
    for sql in (_USE_LITTLE_MEMORY, _WRITE_TO_FILE, _USE_USUAL_MEMORY):
        tx.run(sql)
