"""Checkpoints: the state of an agent with a hash of its canonical JSON, and how a state is restored.

A state has the configuration (capabilities, runtime, allow-list), the three scores, the trust tier, and the trust score
if there was one. Status, violations and learned weights are history: they are neither stored nor restored. Fails
closed: a state that does not match its hash is never restored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.core import ids, jsontext
from stentor.core.clock import DAY
from stentor.core.db import Database, Tx
from stentor.core.errors import NotFound, StentorError
from stentor.core.formats import canonical_json
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.governance import impact, store
from stentor.domains.governance.model import Checkpoint, CheckpointCause, CheckpointCorrupt
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent, TrustTier
from stentor.domains.registry.service import AgentRegistry
from stentor.domains.trust import store as trust_store
from stentor.domains.trust.service import TrustService

EXPIRE_BATCH = 500
MAX_ID_LENGTH = 64


class AgentState(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of a checkpoint, and everything that a rollback restores."""

    agent_id: str
    config: impact.AgentConfig
    alignment_score: float
    accuracy_score: float
    efficiency_score: float
    trust_tier: TrustTier
    trust_score: float | None = None

    @property
    def document(self) -> JsonObject:
        return dict(jsontext.load(jsontext.dump(self)))

    @property
    def text(self) -> str:
        return canonical_json.dumps(self.document)


class RestoreFailed(StentorError):
    """The restored state does not match the checkpoint; the restore was undone."""

    code = "RESTORE_FAILED"


class CheckpointService:
    """Takes, reads, restores and expires checkpoints, which are kept for `keep_days`."""

    def __init__(
        self, db: Database, runlog: RunLog, registry: AgentRegistry, trust: TrustService, keep_days: int
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._registry = registry
        self._trust = trust
        self._keep = keep_days * DAY

    async def create(self, tenant: str, agent_id: str, by: str) -> Checkpoint:
        """Take a checkpoint on request. Raises NotFound."""
        return await self._db.write(lambda tx: self.take(tx, require_agent(tx, tenant, agent_id), "manual", by))

    async def get(self, tenant: str, checkpoint_id: str) -> Checkpoint:
        """Return a checkpoint as it is stored, intact or not (see `is_intact`). Raises NotFound."""
        return await self._db.read(lambda tx: require_checkpoint(tx, tenant, checkpoint_id))

    async def list_page(
        self, tenant: str, agent_id: str | None, before: store.PageBefore, limit: int
    ) -> list[Checkpoint]:
        return await self._db.read(lambda tx: store.list_checkpoints(tx, tenant, agent_id, before, limit))

    def take(self, tx: Tx, agent: Agent, cause: CheckpointCause, by: str, parent: str | None = None) -> Checkpoint:
        """Record the agent's state inside the transaction that is about to change it."""
        state = read_state(tx, agent).text
        checkpoint_id, digest = ids.new_id(), _digest(state)
        meta = {"checkpoint_id": checkpoint_id, "cause": cause, "state_hash": digest, "by": by}
        message = f"Checkpoint of agent {agent.name} taken."
        draft = EventDraft("checkpoint_taken", "governance", message, meta, agent_id=agent.agent_id)
        event = self._runlog.append(tx, agent.tenant, [draft], parent=parent)
        checkpoint = Checkpoint(agent.tenant, checkpoint_id, agent.agent_id, cause, state, digest, by, tx.now, event)
        store.insert_checkpoint(tx, checkpoint)
        return checkpoint

    def take_before(self, cause: CheckpointCause, tx: Tx, tenant: str, agent_id: str, by: str) -> None:
        """Take a checkpoint before another service changes an agent; do nothing for an id that is not an agent's."""
        if (agent := agents.find(tx, tenant, agent_id)) is not None:
            self.take(tx, agent, cause, by)

    def restore(
        self, tx: Tx, checkpoint: Checkpoint, by: str, parent: str | None, only_fields: Sequence[str] = ()
    ) -> None:
        """Restore an agent, read it back and compare the hashes; `only_fields` restricts it to these config fields.

        Raises CheckpointCorrupt, NotFound, RestoreFailed; then nothing was changed.
        """
        state = open_state(checkpoint)
        # A failed restore must leave nothing behind, but the caller records the failure in the same transaction.
        with tx.savepoint():
            self._apply(tx, checkpoint.tenant, state, by, parent, only_fields)
            agent = require_agent(tx, checkpoint.tenant, checkpoint.agent_id)
            if only_fields:
                config = impact.agent_config(agent)
                is_restored = all(getattr(config, name) == getattr(state.config, name) for name in only_fields)
            else:
                is_restored = _digest(read_comparable_state(tx, agent, state).text) == checkpoint.state_hash
            if not is_restored:
                raise RestoreFailed("The restored state does not match the checkpoint's hash, so nothing was changed.")

    def _apply(
        self, tx: Tx, tenant: str, state: AgentState, by: str, parent: str | None, only_fields: Sequence[str]
    ) -> None:
        names = only_fields or impact.PATCHABLE_FIELDS
        fields: dict[str, Any] = {name: getattr(state.config, name) for name in names}
        if not only_fields:
            scores = ("alignment_score", "accuracy_score", "efficiency_score", "trust_tier")
            fields |= {name: getattr(state, name) for name in scores}
        message = "Restored to a checkpoint."
        self._registry.prepare_reconfigure(tenant, state.agent_id, fields, message, by, parent)(tx)
        if state.trust_score is not None and not only_fields:
            self._trust.set_score_in_tx(tx, tenant, state.agent_id, state.trust_score, None, by)

    async def expire(self, now: int) -> int:
        """Delete a batch of checkpoints older than the retention; return how many."""

        def work(tx: Tx) -> int:
            expired = store.list_expired_checkpoints(tx, now - self._keep, EXPIRE_BATCH)
            by_tenant: dict[str, list[str]] = {}
            for tenant, checkpoint_id in expired:
                store.delete_checkpoint(tx, tenant, checkpoint_id)
                by_tenant.setdefault(tenant, []).append(checkpoint_id)
            for tenant, deleted in by_tenant.items():
                message = f"{len(deleted)} checkpoints expired."
                draft = EventDraft("checkpoints_expired", "governance", message, {"checkpoint_ids": deleted})
                self._runlog.append(tx, tenant, [draft])
            return len(expired)

        return await self._db.write(work)


def read_state(tx: Tx, agent: Agent) -> AgentState:
    """Return the current state; the trust score is the decayed one."""
    trust = trust_store.find(tx, agent.tenant, agent.agent_id)
    return AgentState(
        agent.agent_id,
        impact.agent_config(agent),
        agent.alignment_score,
        agent.accuracy_score,
        agent.efficiency_score,
        agent.trust_tier,
        trust.score_at(tx.now) if trust else None,
    )


def read_comparable_state(tx: Tx, agent: Agent, target: AgentState) -> AgentState:
    """Return the current state, without the trust score if `target` has none: a restore then leaves trust alone."""
    state = read_state(tx, agent)
    return state if target.trust_score is not None else msgspec.structs.replace(state, trust_score=None)


def is_intact(checkpoint: Checkpoint) -> bool:
    try:
        open_state(checkpoint)
    except CheckpointCorrupt:
        return False
    return True


def open_state(checkpoint: Checkpoint) -> AgentState:
    """Return the state of an intact checkpoint. Raises CheckpointCorrupt."""
    if _digest(checkpoint.state) != checkpoint.state_hash:
        raise _corrupt(checkpoint, "its state does not match its hash")
    try:
        state = msgspec.json.decode(checkpoint.state, type=AgentState)
    except (msgspec.MsgspecError, UnicodeError):
        raise _corrupt(checkpoint, "its state is malformed") from None
    # Text that is not canonical has another hash after it is restored and read back, so the restore would fail.
    if state.agent_id != checkpoint.agent_id or state.text != checkpoint.state:
        raise _corrupt(checkpoint, "its state belongs to another agent or is not in canonical form")
    return state


def _corrupt(checkpoint: Checkpoint, reason: str) -> CheckpointCorrupt:
    message = f"The checkpoint {checkpoint.checkpoint_id} is corrupt ({reason}). It will not be restored."
    return CheckpointCorrupt(message, {"checkpoint_id": checkpoint.checkpoint_id})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_valid_id(record_id: str) -> bool:
    """Return whether a record may have this id. PostgreSQL rejects NUL even in a comparison."""
    return 0 < len(record_id) <= MAX_ID_LENGTH and record_id.isprintable()


def require_checkpoint(tx: Tx, tenant: str, checkpoint_id: str) -> Checkpoint:
    """Return a checkpoint. Raises NotFound."""
    checkpoint = store.find_checkpoint(tx, tenant, checkpoint_id) if is_valid_id(checkpoint_id) else None
    if checkpoint is None:
        raise NotFound("No checkpoint has this id.")
    return checkpoint


def require_agent(tx: Tx, tenant: str, agent_id: str) -> Agent:
    """Return an agent. Raises NotFound."""
    agent = agents.find(tx, tenant, agent_id) if is_valid_id(agent_id) else None
    if agent is None:
        raise NotFound("No agent has this id.")
    return agent
