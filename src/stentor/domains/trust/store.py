"""SQL of trust scores and their changes."""

from __future__ import annotations

from stentor.core import ids
from stentor.core.db import AppendOnlyTable, Prefetch, RowsSql, Sql, Tx
from stentor.domains.trust.model import ChangeKind, TrustChange, TrustEntity

_FIND = RowsSql(
    ("tenant", "entity_id"),
    """select t.tenant, t.entity_id, t.entity_type, t.score, t.updated_at from given join trust_scores as t
    on t.tenant = given.tenant and t.entity_id = given.entity_id""",
)
_LIST = Sql(
    "select entity_id, entity_type, score, updated_at from trust_scores where tenant = :tenant order by entity_id"
)
_CHANGED = Sql("select tenant, entity_id, entity_type, score, updated_at from trust_scores where updated_at >= :since")
_PUT = Sql(
    """insert into trust_scores (tenant, entity_id, entity_type, score, updated_at)
    values (:tenant, :entity_id, :entity_type, :score, :now)
    on conflict (tenant, entity_id) do update set
        entity_type = excluded.entity_type, score = excluded.score, updated_at = excluded.updated_at"""
)
_CHANGES_TABLE = AppendOnlyTable(
    "trust_changes", ("change_id", "tenant", "entity_id", "kind", "delta", "score", "cause", "happened_at")
)
_LIST_RECENT_CHANGES = Sql(
    """select entity_id, kind, delta, score, cause, happened_at from trust_changes
    where tenant = :tenant order by change_id desc limit :limit"""
)
MAX_SCANNED_CHANGES = 20_000
"""Newest changes of the tenant among which those of one entity are searched."""
_LIST_CHANGES_OF_ENTITY = Sql(
    f"""select entity_id, kind, delta, score, cause, happened_at from (
        select change_id, entity_id, kind, delta, score, cause, happened_at from trust_changes
        where tenant = :tenant order by change_id desc limit {MAX_SCANNED_CHANGES}
    ) as newest where entity_id = :entity_id order by change_id desc limit :limit"""
)


def find(tx: Tx, tenant: str, entity_id: str) -> TrustEntity | None:
    if put := tx.find_put(_PUT, (tenant, entity_id)):
        return TrustEntity(entity_id, put["entity_type"], put["score"], put["now"])
    rows = tx.prefetched_rows(_FIND, (tenant, entity_id))
    return TrustEntity(*rows[0][1:]) if rows else None


def prefetch_score(tenant: str, entity_id: str) -> Prefetch:
    """Return what `find` reads, for `Database.write`."""
    return _FIND, (tenant, entity_id)


def list_entities(tx: Tx, tenant: str) -> list[TrustEntity]:
    return [TrustEntity(*row) for row in tx.rows(_LIST, tenant=tenant)]


def changed_since(tx: Tx, since: int) -> list[tuple[str, TrustEntity]]:
    """List the entities that changed since a time, each with its tenant."""
    return [(row[0], TrustEntity(*row[1:])) for row in tx.rows(_CHANGED, since=since)]


def put(tx: Tx, tenant: str, entity: TrustEntity) -> None:
    tx.put(
        _PUT,
        (tenant, entity.entity_id),
        tenant=tenant,
        entity_id=entity.entity_id,
        entity_type=entity.entity_type,
        score=entity.score,
        now=entity.updated_at,
    )


def insert_change(tx: Tx, tenant: str, entity: TrustEntity, kind: ChangeKind, delta: float, cause: str | None) -> None:
    """Insert a change. The unique index rejects a second one for the same cause and entity."""
    key = (ids.new_id(), tenant, entity.entity_id)
    tx.append(_CHANGES_TABLE, (*key, kind, delta, entity.score, cause, entity.updated_at))


def list_recent_changes(tx: Tx, tenant: str, limit: int) -> list[TrustChange]:
    return [TrustChange(*row) for row in tx.rows(_LIST_RECENT_CHANGES, tenant=tenant, limit=limit)]


def list_entity_changes(tx: Tx, tenant: str, entity_id: str, limit: int) -> list[TrustChange]:
    """List the newest changes of one entity, as far as they are among the newest of the tenant."""
    rows = tx.rows(_LIST_CHANGES_OF_ENTITY, tenant=tenant, entity_id=entity_id, limit=limit)
    return [TrustChange(*row) for row in rows]
