"""Updates, checkpoints and rollbacks as answers show them."""

from __future__ import annotations

from typing import Any

from stentor.core.clock import format_iso, format_iso_or_none
from stentor.domains.governance import checkpoints, model, wire
from stentor.domains.governance.model import Checkpoint, Rollback, Update
from stentor.domains.governance.scores import Breakdown


def proposed(update: Update) -> dict[str, Any]:
    """What its proposer was told, however often it asks."""
    return {
        "update_id": update.update_id,
        "status": update.submitted_status,
        "tier": update.tier,
        "approval_deadline": format_iso(update.approval_deadline),
    }


def approved(update: Update) -> dict[str, Any]:
    """`deployment_time` is when this service deploys it; what lives outside is deployed when somebody does it."""
    return {
        "update_id": update.update_id,
        "status": update.status,
        "deployment_scheduled": update.scheduled,
        "deployment_time": format_iso_or_none(update.approved_at) if update.scheduled else None,
    }


def rejected(update: Update) -> dict[str, Any]:
    return {
        "update_id": update.update_id,
        "status": update.status,
        "rejected_at": format_iso_or_none(update.rejected_at),
    }


def whole(update: Update) -> dict[str, Any]:
    """An update as admins see it."""
    same = [
        *("update_id", "agent_id", "status", "tier", "test_results", "update_type", "description", "proposed_by"),
        *("decided_by", "decision", "checkpoint_id", "named_checkpoint", "notes", "provenance_id", "changes"),
    ]
    times = ("submitted_at", "approved_at", "deployed_at", "rejected_at", "rolled_back_at", "approval_deadline")
    basis = {name: getattr(update.basis, name) for name in ("diff", "trust", "ratio", "reasons", "risks")}
    return (
        {name: getattr(update, name) for name in same}
        | {name: format_iso_or_none(getattr(update, name)) for name in times}
        | basis
    )


def pending(update: Update) -> dict[str, Any]:
    return {
        "update_id": update.update_id,
        "agent_id": update.agent_id,
        "tier": update.tier,
        "submitted_at": format_iso(update.submitted_at),
        "deadline": format_iso(update.approval_deadline),
        "status": update.status,
        "update_type": update.update_type,
        "risks": update.basis.risks,
    }


def checkpoint(found: Checkpoint, *, with_state: bool) -> dict[str, Any]:
    """The state of a corrupt one is not shown: it is not what was taken."""
    sound = checkpoints.intact(found)
    names = ("checkpoint_id", "agent_id", "cause", "state_hash", "taken_by")
    shown_state = checkpoints.opened(found).document if with_state and sound else None
    return {name: getattr(found, name) for name in names} | {
        "intact": sound,
        "taken_at": format_iso(found.taken_at),
        "state": shown_state,
    }


def started(rollback: Rollback) -> dict[str, Any]:
    """As it was started, however often one asks."""
    return {
        "rollback_id": rollback.rollback_id,
        "checkpoint_id": rollback.checkpoint_id,
        "status": "initiated",
        "estimated_completion": format_iso(rollback.estimated_completion),
    }


def rolled(rollback: Rollback) -> dict[str, Any]:
    same = [name for name in wire.RollbackOut.model_fields if name not in ("initiated_at", "completed_at")]
    times = {
        "initiated_at": format_iso(rollback.initiated_at),
        "completed_at": format_iso_or_none(rollback.completed_at),
    }
    return {name: getattr(rollback, name) for name in same} | times


def computed(agent_id: str, found: Breakdown, *, wanted: bool) -> dict[str, Any]:
    """`wanted`: it was to be stored."""
    reason = found.too_little if wanted else None
    persisted = wanted and reason is None
    breakdown = {name: getattr(found, name) for name in ("components", "weights", "contributions", "missing")}
    return {
        "agent_id": agent_id,
        "trust_score": found.score,
        "persisted": persisted,
        "reason": reason,
        "breakdown": breakdown,
    }


def tier_of(text: str | None) -> int | None:
    """A tier by its number or its name. Raises KeyError."""
    return None if text is None else model.TIERS[text] if text in model.TIERS else {"1": 1, "2": 2, "3": 3}[text]
