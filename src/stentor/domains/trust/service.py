"""Use cases of trust, and the view of all scores in memory that routing reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from stentor.core.clock import DAY, Clock
from stentor.core.db import Database, Tx, locks
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.errors import NotFound
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.trust import model, store
from stentor.domains.trust.model import ChangeKind, TrustChange, TrustEntity

RECENT_CHANGES = 50
EntityKey = tuple[str, str]
"""Tenant and id of an entity."""
BeforeSetHook = Callable[[Tx, str, str, str], None]
"""Looks at a record before it is overridden, in the same transaction: (tx, tenant, id, by whom)."""


class TrustView:
    """Scores in memory. `available` turns false when the source cannot be read."""

    def __init__(self) -> None:
        self._entities: dict[EntityKey, TrustEntity] = {}
        self._meanwhile = ConcurrentWrites[EntityKey]()
        self.is_available = True

    def put(self, tenant: str, entity: TrustEntity) -> None:
        """What this process wrote."""
        self._meanwhile.record_write((tenant, entity.entity_id))
        self._entities[tenant, entity.entity_id] = entity

    def poll_query(self, since: int) -> PollQuery:
        """What changed since, for the view. Fails open: routing goes on without trust and says so."""

        def read(tx: Tx) -> list[tuple[str, TrustEntity]]:
            try:
                return store.changed_since(tx, since)
            except Exception:
                self.is_available = False
                raise

        return self._meanwhile.start_poll(read, self._hear)

    def _hear(self, changed: list[tuple[str, TrustEntity]], written: set[EntityKey]) -> None:
        self.is_available = True
        for tenant, entity in changed:
            if (tenant, entity.entity_id) not in written:
                self._entities[tenant, entity.entity_id] = entity

    def score(self, tenant: str, entity_id: str, now: int) -> float | None:
        """The decayed score, or None for an entity without one."""
        entity = self._entities.get((tenant, entity_id))
        if entity is None:
            return None
        # Each decision asks this of every candidate, and most scores are younger than a day.
        return entity.score if 0 <= now - entity.updated_at < DAY else entity.score_at(now)


class TrustService:
    def __init__(self, db: Database, clock: Clock, runlog: RunLog) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self.view = TrustView()
        self.before_set_hooks: list[BeforeSetHook] = []

    async def get(self, tenant: str, entity_id: str) -> tuple[TrustEntity, float]:
        """The entity and its score now. Raises NotFound."""
        entity = await self._db.read(lambda tx: store.find(tx, tenant, entity_id))
        if entity is None:
            raise NotFound(f"No trust is recorded for {entity_id!r}.")
        return entity, entity.score_at(self._clock.now())

    async def set_score(
        self, tenant: str, entity_id: str, score: float, entity_type: str | None, by: str
    ) -> tuple[TrustEntity, float]:
        """Sets the score; answers the entity and the delta. Without a type a known entity keeps its own."""

        def work(tx: Tx) -> tuple[TrustEntity, float]:
            for look in self.before_set_hooks:
                look(tx, tenant, entity_id, by)
            return self.set_score_in_tx(tx, tenant, entity_id, score, entity_type, by)

        return await self._db.write(work)

    def set_score_in_tx(
        self, tx: Tx, tenant: str, entity_id: str, score: float, entity_type: str | None, by: str
    ) -> tuple[TrustEntity, float]:
        """The same as a part of somebody's own transaction, who has looked already."""
        tx.lock(locks.agent_lock(entity_id))
        known = store.find(tx, tenant, entity_id)
        before = known.score_at(tx.now) if known else None
        kind = entity_type or (known.entity_type if known else model.DEFAULT_ENTITY_TYPE)
        entity = TrustEntity(entity_id, kind, score, tx.now)
        level = model.find_level(known.score).name if known else None
        return self._keep(tx, tenant, entity, "set", before, None, by, level)

    async def reinforce(
        self, tenant: str, entity_id: str, kind: ChangeKind, amount: float, by: str
    ) -> tuple[TrustEntity, float]:
        """One success or failure; `amount` is positive for both."""
        return await self._db.write(lambda tx: self.reinforce_in_tx(tx, tenant, entity_id, kind, amount, by=by))

    def reinforce_in_tx(
        self,
        tx: Tx,
        tenant: str,
        entity_id: str,
        kind: ChangeKind,
        amount: float,
        *,
        cause: str | None = None,
        by: str | None = None,
    ) -> tuple[TrustEntity, float]:
        """The same inside a transaction; a `cause` is applied once. An event tells what `by` did, or a new level."""
        tx.lock(locks.agent_lock(entity_id))
        known = store.find(tx, tenant, entity_id)
        before = known.score_at(tx.now) if known else model.INITIAL_SCORE
        after = model.change_score(before, amount if kind == "success" else -amount)
        entity = TrustEntity(entity_id, known.entity_type if known else model.DEFAULT_ENTITY_TYPE, after, tx.now)
        level = model.find_level(known.score if known else model.INITIAL_SCORE).name
        return self._keep(tx, tenant, entity, kind, before, cause, by, level)

    async def build_report(self, tenant: str) -> dict[str, Any]:
        """Snapshot of every tracked entity, by level and type, with the latest changes."""

        def read(tx: Tx) -> tuple[list[TrustEntity], list[TrustChange]]:
            return store.list_entities(tx, tenant), store.list_recent_changes(tx, tenant, RECENT_CHANGES)

        entities, changes = await self._db.read(read)
        now = self._clock.now()
        scores = [entity.score_at(now) for entity in entities]
        levels = Counter(model.find_level(score).name for score in scores)
        return {
            "entities": list(zip(entities, scores, strict=True)),
            "by_level": {level.name: levels[level.name] for level in model.LEVELS},
            "by_type": dict(Counter(entity.entity_type for entity in entities)),
            "average": model.round_score(sum(scores) / len(scores)) if scores else None,
            "changes": changes,
        }

    def _keep(
        self,
        tx: Tx,
        tenant: str,
        entity: TrustEntity,
        kind: ChangeKind,
        before: float | None,
        cause: str | None,
        by: str | None,
        previous_level: str | None,
    ) -> tuple[TrustEntity, float]:
        """An event tells a change by somebody, and one of the level whoever caused it."""
        level = model.find_level(entity.score).name
        delta = model.round_score(entity.score - (before or 0.0))
        store.put(tx, tenant, entity)
        store.insert_change(tx, tenant, entity, kind, delta, cause)
        if by is not None or level != previous_level:
            meta = {
                "entity_id": entity.entity_id,
                "kind": kind,
                "delta": delta,
                "score": entity.score,
                "level": level,
                "previous_level": previous_level,
                "by": by,
            }
            message = f"Trust of {entity.entity_id} is {entity.score:g}."
            draft = EventDraft("trust_changed", "trust", message, meta, agent_id=entity.entity_id)
            self._runlog.append(tx, tenant, [draft])
        tx.after_commit(lambda: self.view.put(tenant, entity))
        return entity, delta
