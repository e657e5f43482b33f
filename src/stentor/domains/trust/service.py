"""Use cases of trust: set, reinforce and report scores.

`TrustView` has all scores in memory for routing. The rules are in `model`; who may change a score is in `registry`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from stentor.core.clock import DAY, Clock
from stentor.core.db import Database, Tx
from stentor.core.db.locks import locks
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.errors import NotFound
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.trust import model, store
from stentor.domains.trust.model import ChangeKind, TrustChange, TrustEntity

RECENT_CHANGES = 50
EntityKey = tuple[str, str]
"""Tenant and entity id."""
BeforeSetHook = Callable[[Tx, str, str, str], None]
"""Called in the same transaction before a score is overridden, with transaction, tenant, entity id and caller."""


class TrustView:
    """All scores in memory. `is_available` is false while the source cannot be read."""

    def __init__(self) -> None:
        self._entities: dict[EntityKey, TrustEntity] = {}
        self._concurrent_writes = ConcurrentWrites[EntityKey]()
        self.is_available = True

    def put(self, tenant: str, entity: TrustEntity) -> None:
        """Take over a score that this process wrote."""
        # A poll that started before this write has read the older row and must not put it back.
        self._concurrent_writes.record_write((tenant, entity.entity_id))
        self._entities[tenant, entity.entity_id] = entity

    def poll_query(self, since: int) -> PollQuery:
        """Return the query for scores that other processes changed since `since`, in microseconds.

        Fails open: if the scores cannot be read, routing continues without trust and records that. After that all
        scores are read, because the first load may have been missed.
        """
        if not self.is_available:
            since = 0

        def read(tx: Tx) -> list[tuple[str, TrustEntity]]:
            try:
                return store.changed_since(tx, since)
            # Catches any error: even a damaged table must show up as unavailable trust.
            except Exception:
                self.is_available = False
                raise

        return self._concurrent_writes.start_poll(read, self._apply_changes)

    def _apply_changes(self, changed: list[tuple[str, TrustEntity]], written: set[EntityKey]) -> None:
        self.is_available = True
        for tenant, entity in changed:
            if (tenant, entity.entity_id) not in written:
                self._entities[tenant, entity.entity_id] = entity

    def score(self, tenant: str, entity_id: str, now: int) -> float | None:
        """Return the score after its decay, or None for an entity without one."""
        entity = self._entities.get((tenant, entity_id))
        if entity is None:
            return None
        # A shortcut: routing calls this for every candidate, and most scores are younger than a day.
        return entity.score if 0 <= now - entity.updated_at < DAY else entity.score_at(now)


class TrustService:
    """Reads and changes scores, and records the changes."""

    def __init__(self, db: Database, clock: Clock, runlog: RunLog) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self.view = TrustView()
        self.before_set_hooks: list[BeforeSetHook] = []

    async def get(self, tenant: str, entity_id: str) -> tuple[TrustEntity, float]:
        """Return the entity and its score now. Raises NotFound."""
        entity = await self._db.read(lambda tx: store.find(tx, tenant, entity_id))
        if entity is None:
            raise NotFound(f"No trust score is recorded for {entity_id!r}.")
        return entity, entity.score_at(self._clock.now())

    async def set_score(
        self, tenant: str, entity_id: str, score: float, entity_type: str | None, by: str
    ) -> tuple[TrustEntity, float]:
        """Set a score; return the entity and the delta. Without `entity_type` an existing entity keeps its type."""

        def work(tx: Tx) -> tuple[TrustEntity, float]:
            # In the same transaction and before the change: a checkpoint must hold the score that is replaced.
            for hook in self.before_set_hooks:
                hook(tx, tenant, entity_id, by)
            return self.set_score_in_tx(tx, tenant, entity_id, score, entity_type, by)

        return await self._db.write(work)

    def set_score_in_tx(
        self, tx: Tx, tenant: str, entity_id: str, score: float, entity_type: str | None, by: str
    ) -> tuple[TrustEntity, float]:
        """Set a score within the caller's transaction, without calling the hooks."""
        # The score is read, changed and written: two processes must not do that for one entity at the same time.
        tx.lock(locks.agent_lock(entity_id))
        previous = store.find(tx, tenant, entity_id)
        before = previous.score_at(tx.now) if previous else None
        entity_type = entity_type or (previous.entity_type if previous else model.DEFAULT_ENTITY_TYPE)
        entity = TrustEntity(entity_id, entity_type, score, tx.now)
        level = model.find_level(previous.score).name if previous else None
        return self._write(tx, tenant, entity, "set", before, None, by, level)

    async def reinforce(
        self, tenant: str, entity_id: str, kind: ChangeKind, amount: float, by: str
    ) -> tuple[TrustEntity, float]:
        """Apply a success or failure; `amount` is positive for both."""
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
        """Apply a success or failure within the caller's transaction.

        Once per `cause`: the unique index on the changes makes a second call fail.
        """
        # As in `set_score_in_tx`; the learning of an outcome holds this lock already.
        tx.lock(locks.agent_lock(entity_id))
        previous = store.find(tx, tenant, entity_id)
        before = previous.score_at(tx.now) if previous else model.INITIAL_SCORE
        after = model.change_score(before, amount if kind == "success" else -amount)
        entity_type = previous.entity_type if previous else model.DEFAULT_ENTITY_TYPE
        entity = TrustEntity(entity_id, entity_type, after, tx.now)
        # Of the stored score and not of the decayed one: a level that only time has lowered was never recorded.
        level = model.find_level(previous.score if previous else model.INITIAL_SCORE).name
        return self._write(tx, tenant, entity, kind, before, cause, by, level)

    async def build_report(self, tenant: str) -> JsonObject:
        """Return all entities with their scores now, counts by level and type, the average and the latest changes."""

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

    def _write(
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
        """Store a changed score. Recorded in the run log if a caller changed it (`by`) or its level changed."""
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
        # After the commit only: a rollback must not leave a score in memory that the database does not have.
        tx.after_commit(lambda: self.view.put(tenant, entity))
        return entity, delta
