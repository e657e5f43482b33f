"""Rollbacks: restore an agent to a checkpoint and verify the result.

A rollback is stored first and executed by the runner of `deployment`, so that it survives a killed process. The agent
is restored, read back and compared in one transaction: it is restored completely or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stentor.auth.principal import Principal, RoleRegistry
from stentor.core import ids
from stentor.core.clock import SECOND
from stentor.core.db import Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.errors import Conflict, NotFound
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.domains.governance import checkpoints, impact, review, store
from stentor.domains.governance.checkpoints import AgentState, CheckpointService, RestoreFailed
from stentor.domains.governance.model import (
    Checkpoint,
    CheckpointCorrupt,
    Rollback,
    RollbackDraft,
    RollbackStatus,
    SelfApproval,
    Update,
)
from stentor.domains.registry import authorization
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent, is_looser

ESTIMATED_DURATION_US = 2 * SECOND
ROLLBACK_EVENTS: dict[RollbackStatus, tuple[EventType, str]] = {
    "initiated": ("rollback_started", "Rollback started."),
    "in_progress": ("rollback_in_progress", "Rollback in progress."),
    "completed": ("rollback_completed", "Rolled back and verified."),
    "failed": ("rollback_failed", "The rollback failed; the agent is as it was."),
}


class RollbackService:
    """Starts, reads and executes rollbacks. `wake` tells the runner that there is work."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        checkpoints: CheckpointService,
        wake: Callable[[], None],
        roles: RoleRegistry,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._checkpoints = checkpoints
        self._wake = wake
        self._roles = roles

    async def start(self, principal: Principal, draft: RollbackDraft, key: IdempotencyKey | None = None) -> Rollback:
        """Start a rollback. Raises NotFound, CheckpointCorrupt, Forbidden."""

        def work(tx: Tx) -> Rollback:
            if key is not None and (known := idempotency.find_response(tx, key)):
                return require_rollback(tx, principal.tenant, known.body)
            rollback = self.start_in_tx(tx, principal, draft)
            if key is not None:
                idempotency.store_response(tx, key, StoredResponse(202, rollback.rollback_id))
            return rollback

        return await self._db.write(work)

    def start_in_tx(
        self,
        tx: Tx,
        principal: Principal,
        draft: RollbackDraft,
        parent: str | None = None,
        undone_update: Update | None = None,
    ) -> Rollback:
        """Start a rollback inside the caller's transaction; `undone_update` is the update whose failure caused it.

        Raises NotFound, CheckpointCorrupt, Forbidden.
        """
        checkpoint = checkpoints.require_checkpoint(tx, principal.tenant, draft.checkpoint_id)
        state = checkpoints.open_state(checkpoint)
        agent = checkpoints.require_agent(tx, principal.tenant, checkpoint.agent_id)
        _authorize(principal, agent, state)
        rollback_id = ids.new_id()
        meta = {"rollback_id": rollback_id, "checkpoint_id": checkpoint.checkpoint_id, "status": "initiated"}
        meta |= {"by": principal.name, "reason": draft.reason}
        started = EventDraft("rollback_started", "governance", "Rollback started.", meta, agent_id=checkpoint.agent_id)
        event = self._runlog.append(tx, principal.tenant, [started], parent=parent)
        rollback = Rollback(
            tenant=principal.tenant,
            rollback_id=rollback_id,
            checkpoint_id=checkpoint.checkpoint_id,
            agent_id=checkpoint.agent_id,
            update_id=undone_update.update_id if undone_update else None,
            status="initiated",
            initiated_by=principal.name,
            claimed_by=draft.claimed,
            reason=draft.reason,
            details=draft.details,
            initiated_at=tx.now,
            estimated_completion=tx.now + ESTIMATED_DURATION_US,
            completed_at=None,
            verified=False,
            notes=None,
            provenance_id=event,
            head_id=event,
        )
        store.insert_rollback(tx, rollback)
        # After the commit: the runner reads the row, which must be there.
        tx.after_commit(self._wake)
        return rollback

    def undo_update(self, tx: Tx, principal: Principal, update: Update, reason: str) -> str | None:
        """Roll back a failed update and return the rollback's id; None if the agent has no intact checkpoint.

        Prefers the checkpoint that a person's update names to the one taken at its approval. Raises Forbidden.
        """
        checkpoint = self._find_checkpoint(tx, update)
        if checkpoint is None:
            note = f"{reason} There is no checkpoint of this agent, so nothing was restored."
            review.change_status(tx, self._runlog, update, "rolled_back", note, {}, rolled_back_at=tx.now, notes=note)
            return None
        draft = RollbackDraft(checkpoint.checkpoint_id, reason)
        return self.start_in_tx(tx, principal, draft, update.head_id, update).rollback_id

    def _find_checkpoint(self, tx: Tx, update: Update) -> Checkpoint | None:
        agent = agents.find(tx, update.tenant, update.agent_id)
        # An agent could otherwise name a checkpoint from before it was restricted, and let its own update fail.
        is_persons = self._roles.is_person(update.tenant, update.proposed_by)
        may_name = is_persons and agent is not None and agent.key_name != update.proposed_by
        # A corrupt one is passed over: the other may still bring the agent back.
        for checkpoint_id in (update.named_checkpoint if may_name else None, update.checkpoint_id):
            checkpoint = store.find_checkpoint(tx, update.tenant, checkpoint_id) if checkpoint_id else None
            if checkpoint and checkpoint.agent_id == update.agent_id and checkpoints.is_intact(checkpoint):
                return checkpoint
        return None

    async def get(self, tenant: str, rollback_id: str) -> Rollback:
        """Return a rollback. Raises NotFound."""
        return await self._db.read(lambda tx: require_rollback(tx, tenant, rollback_id))

    async def list_page(
        self, tenant: str, agent_id: str | None, before: store.PageBefore, limit: int
    ) -> list[Rollback]:
        return await self._db.read(lambda tx: store.list_rollbacks(tx, tenant, agent_id, before, limit))

    async def execute(self, tenant: str, rollback_id: str) -> None:
        """Execute a rollback from whatever state it is in; does nothing if it has ended."""
        # Two transactions, so that callers see `in_progress`. Both check the status again: another process may have
        # finished the rollback, or been killed between the two.
        await self._db.write(lambda tx: self._begin(tx, tenant, rollback_id))
        await self._db.write(lambda tx: self._finish(tx, tenant, rollback_id))

    def _begin(self, tx: Tx, tenant: str, rollback_id: str) -> None:
        rollback = require_rollback(tx, tenant, rollback_id)
        if rollback.status == "initiated":
            self._change_status(tx, rollback, "in_progress")

    def _finish(self, tx: Tx, tenant: str, rollback_id: str) -> None:
        rollback = require_rollback(tx, tenant, rollback_id)
        if rollback.status != "in_progress":
            return
        try:
            checkpoint = checkpoints.require_checkpoint(tx, tenant, rollback.checkpoint_id)
            self._checkpoints.restore(tx, checkpoint, rollback.initiated_by, rollback.head_id)
        except (CheckpointCorrupt, NotFound, RestoreFailed) as error:
            self._change_status(tx, rollback, "failed", notes=error.message, completed_at=tx.now)
            return
        completed = self._change_status(
            tx, rollback, "completed", verified=True, completed_at=tx.now, notes="Read back and compared by hash."
        )
        self._mark_undone_updates(tx, completed, checkpoint)

    def _mark_undone_updates(self, tx: Tx, rollback: Rollback, checkpoint: Checkpoint) -> None:
        note = f"Undone by the rollback {rollback.rollback_id}."
        for update in store.list_undone_by(
            tx, rollback.tenant, rollback.agent_id, checkpoint.checkpoint_id, rollback.update_id, checkpoint.taken_at
        ):
            meta = {"rollback_id": rollback.rollback_id}
            review.change_status(tx, self._runlog, update, "rolled_back", note, meta, rolled_back_at=tx.now, notes=note)

    def _change_status(self, tx: Tx, rollback: Rollback, status: RollbackStatus, **fields: Any) -> Rollback:
        event, message = ROLLBACK_EVENTS[status]
        meta: JsonObject = {"rollback_id": rollback.rollback_id, "checkpoint_id": rollback.checkpoint_id}
        meta |= {"status": status, "verified": fields.get("verified", False), "notes": fields.get("notes")}
        draft = EventDraft(event, "governance", message, meta, agent_id=rollback.agent_id)
        head = self._runlog.append(tx, rollback.tenant, [draft], parent=rollback.head_id)
        changed = msgspec.structs.replace(rollback, status=status, head_id=head, **fields)
        if not store.change_rollback(tx, rollback, changed):
            raise Conflict("The rollback was changed concurrently. Read it again.")
        return changed


def _authorize(principal: Principal, agent: Agent, state: AgentState) -> None:
    """Refuse a rollback that the caller may not order. Raises Forbidden."""
    if authorization.can_work_as(principal, agent):
        raise SelfApproval("An agent's own key may not roll it back. Ask a person whose key has the role admin.")
    authorization.authorize_change(principal, "rollback", agent)
    if _permits_more(agent, state) and not authorization.is_other_person(principal, agent):
        raise SelfApproval(
            "The checkpoint permits the agent more than it may do now (access, runtime or trust tier), and only a "
            "person with another key than the agent's may restore it."
        )


def _permits_more(agent: Agent, state: AgentState) -> bool:
    config = impact.agent_config(agent)
    return (
        impact.is_widening(config, state.config)
        or impact.changes_runtime(config, state.config)
        or is_looser(agent.trust_tier, state.trust_tier)
    )


def require_rollback(tx: Tx, tenant: str, rollback_id: str) -> Rollback:
    """Return a rollback. Raises NotFound."""
    rollback = store.find_rollback(tx, tenant, rollback_id) if checkpoints.is_valid_id(rollback_id) else None
    if rollback is None:
        raise NotFound("No rollback has this id.")
    return rollback
