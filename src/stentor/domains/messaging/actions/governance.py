"""The zone governance: updates and rollbacks, as their routes do them."""

from __future__ import annotations

from typing import Any

from stentor.auth.principal import Permission, Principal
from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.db import Tx
from stentor.domains.atp.bodies import (
    ActionBody,
    ApproveUpdateBody,
    OverrideRiskBody,
    ProposeUpdateBody,
    RejectUpdateBody,
    RollbackBody,
)
from stentor.domains.atp.model import AtpHeader
from stentor.domains.governance.model import Approval, Changes, Proposal, Rejection, RollbackDraft, Update
from stentor.domains.governance.rollbacks import RollbackService
from stentor.domains.governance.service import UpdateService
from stentor.domains.messaging.model import ActionContext, ActionResult, CommitStep, MessageRoute, ZoneAction

ITSELF = MessageRoute((), "Governance does it itself.")


class GovernanceZone:
    def __init__(self, updates: UpdateService, rollbacks: RollbackService) -> None:
        self._updates = updates
        self._rollbacks = rollbacks

    def actions(self) -> dict[tuple[str, str], ZoneAction]:
        actions = {
            "propose_update": self.propose,
            "approve": self.approve,
            "override": self.approve,
            "reject": self.reject,
            "rollback": self.rollback,
        }
        needed: dict[str, Permission] = {"propose_update": "propose"}
        return {
            ("governance", name): ZoneAction(needed.get(name, "admin"), act, _itself) for name, act in actions.items()
        }

    async def propose(self, work: ActionContext) -> CommitStep:
        """Raises Conflict for an id that has another body, InvalidRequest for a patch that cannot be."""
        body = work.body
        assert isinstance(body, ProposeUpdateBody)
        proposal = _proposal(body)
        return lambda tx: ActionResult(
            _proposed(self._updates.propose_in_tx(tx, work.principal, proposal, work.parent_event_id)), ITSELF
        )

    async def approve(self, work: ActionContext) -> CommitStep:
        """Approve; `override` is an approval with override_risk."""
        body = work.body
        assert isinstance(body, ApproveUpdateBody | OverrideRiskBody)
        override = isinstance(body, OverrideRiskBody) or body.override_risk
        approval = Approval(body.approved_by, body.rationale, override)
        update_id = body.update_id

        def close(tx: Tx) -> ActionResult:
            update = self._updates.approve_in_tx(tx, work.principal, update_id, approval, _via(work))
            return ActionResult(_decided(update), ITSELF)

        return close

    async def reject(self, work: ActionContext) -> CommitStep:
        body = work.body
        assert isinstance(body, RejectUpdateBody)
        rejection, update_id = Rejection(body.rejected_by, body.reason, body.feedback), body.update_id

        def close(tx: Tx) -> ActionResult:
            update = self._updates.reject_in_tx(tx, work.principal, update_id, rejection, _via(work))
            return ActionResult(_decided(update), ITSELF)

        return close

    async def rollback(self, work: ActionContext) -> CommitStep:
        """Raises NotFound, CheckpointCorrupt. The rollback itself goes on after the message is answered."""
        body = work.body
        assert isinstance(body, RollbackBody)
        draft = RollbackDraft(body.checkpoint_id, body.reason, body.details, body.initiated_by)

        def close(tx: Tx) -> ActionResult:
            started = self._rollbacks.start_in_tx(tx, work.principal, draft, work.parent_event_id)
            shown = {"rollback_id": started.rollback_id, "checkpoint_id": started.checkpoint_id}
            times = {"estimated_completion": format_iso(started.estimated_completion)}
            return ActionResult(shown | {"status": started.status} | times, ITSELF)

        return close


def _proposal(body: ProposeUpdateBody) -> Proposal:
    """The same as the route makes of it, so that both are the same proposal."""
    given = body.changes.model_dump()
    changes = Changes(**{**given, "files_modified": tuple(given["files_modified"])})
    return Proposal(body.update_id, body.agent_id, body.update_type, body.description, changes, body.checkpoint_id)


def _proposed(update: Update) -> dict[str, Any]:
    shown = {"update_id": update.update_id, "status": update.submitted_status, "tier": update.tier}
    return shown | {"approval_deadline": format_iso(update.approval_deadline)}


def _decided(update: Update) -> dict[str, Any]:
    shown = {"update_id": update.update_id, "status": update.status, "tier": update.tier}
    times = {name: format_iso_or_none(getattr(update, name)) for name in ("approved_at", "rejected_at")}
    return shown | times | {"deployment_scheduled": update.is_scheduled and update.status == "approved"}


def _via(work: ActionContext) -> dict[str, str]:
    return {"message_id": work.message.message_id, "caused_by": work.parent_event_id}


def _itself(principal: Principal, header: AtpHeader, body: ActionBody) -> MessageRoute:
    return ITSELF
