"""The moves of an update: the row and its event together."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import Conflict
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.domains.governance import model, store
from stentor.domains.governance.judging import Judged
from stentor.domains.governance.model import Proposal, Update, UpdateStatus

EVENTS: dict[UpdateStatus, EventType] = {
    "submitted": "update_submitted",
    "approved": "update_approved",
    "rejected": "update_rejected",
    "deploying": "update_deploying",
    "deployed": "update_deployed",
    "rolled_back": "update_rolled_back",
}
assert set(EVENTS) == set(get_args(UpdateStatus))


def submit(
    tx: Tx, runlog: RunLog, principal: Principal, proposal: Proposal, judged: Judged, cause: str | None
) -> Update:
    """Store a new update as submitted; the status that its proposer is told is decided with it."""
    tier = judged.tier
    meta = _meta(proposal.update_id, tier) | {
        "by": principal.name,
        "update_type": proposal.update_type,
        "trust": judged.basis.trust,
        "ratio": judged.basis.ratio,
        "reasons": judged.basis.reasons,
    }
    draft = EventDraft("update_submitted", "governance", "Update proposed.", meta, agent_id=proposal.agent_id)
    event = runlog.append(tx, principal.tenant, [draft], parent=cause)
    told: UpdateStatus = "rejected" if judged.impossible else "approved" if tier == model.AUTO else "submitted"
    update = Update(
        tenant=principal.tenant,
        update_id=proposal.update_id,
        agent_id=proposal.agent_id,
        status="submitted",
        tier=tier,
        patched=proposal.changes.agent_patch is not None,
        update_type=proposal.update_type,
        description=proposal.description,
        changes=proposal.changes,
        named_checkpoint=proposal.checkpoint_id,
        proposed_by=principal.name,
        body_hash=proposal.body_hash,
        submitted_status=told,
        basis=judged.basis,
        base_hash=judged.base_hash,
        submitted_at=tx.now,
        approval_deadline=tx.now + model.DEADLINES[tier],
        provenance_id=event,
        head_id=event,
        updated_at=tx.now,
    )
    store.insert(tx, update)
    return update


def move(
    tx: Tx, runlog: RunLog, update: Update, status: UpdateStatus, message: str, meta: dict[str, Any], **fields: Any
) -> Update:
    """Make one move and record it. Raises Conflict when somebody else moved it at the same moment."""
    shown = _meta(update.update_id, update.tier) | {"from": update.status, "status": status} | meta
    draft = EventDraft(EVENTS[status], "governance", message, shown, agent_id=update.agent_id)
    head = runlog.append(tx, update.tenant, [draft], parent=update.head_id)
    moved = msgspec.structs.replace(update, status=status, head_id=head, updated_at=tx.now, **fields)
    if not store.move(tx, update, moved):
        raise Conflict("The update changed at the same moment. Look at it again.")
    return moved


def _meta(update_id: str, tier: int) -> dict[str, Any]:
    return {"update_id": update_id, "tier": tier}
