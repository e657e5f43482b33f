"""The zone governance: updates and rollbacks, as their routes do them."""

from __future__ import annotations

from typing import Any

from stentor.auth.principal import Permission, Principal
from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.db import Tx
from stentor.domains.atp.bodies import ApproveUpdate, Body, OverrideRisk, ProposeUpdate, RejectUpdate, Rollback
from stentor.domains.atp.model import Header
from stentor.domains.governance.model import Approval, Changes, Proposal, Rejection, RollbackDraft, Update
from stentor.domains.governance.rollbacks import Rollbacks
from stentor.domains.governance.service import Updates
from stentor.domains.messaging.model import Action, Closing, Reply, Route, Work

ITSELF = Route((), "Governance does it itself.")


class GovernanceZone:
    def __init__(self, updates: Updates, rollbacks: Rollbacks) -> None:
        self._updates = updates
        self._rollbacks = rollbacks

    def table(self) -> dict[tuple[str, str], Action]:
        actions = {
            "propose_update": self.propose,
            "approve": self.approve,
            "override": self.approve,
            "reject": self.reject,
            "rollback": self.rollback,
        }
        needed: dict[str, Permission] = {"propose_update": "propose"}
        return {("governance", name): Action(needed.get(name, "admin"), act, _itself) for name, act in actions.items()}

    async def propose(self, work: Work) -> Closing:
        """Raises Conflict for an id that has another body, InvalidRequest for a patch that cannot be."""
        body = work.body
        assert isinstance(body, ProposeUpdate)
        proposal = _proposal(body)
        return lambda tx: Reply(_proposed(self._updates.propose_in(tx, work.principal, proposal, work.cause)), ITSELF)

    async def approve(self, work: Work) -> Closing:
        """Approve; `override` is an approval with override_risk."""
        body = work.body
        assert isinstance(body, ApproveUpdate | OverrideRisk)
        override = isinstance(body, OverrideRisk) or body.override_risk
        approval = Approval(body.approved_by, body.rationale, override)
        update_id = body.update_id

        def close(tx: Tx) -> Reply:
            update = self._updates.approve_in(tx, work.principal, update_id, approval, _via(work))
            return Reply(_decided(update), ITSELF)

        return close

    async def reject(self, work: Work) -> Closing:
        body = work.body
        assert isinstance(body, RejectUpdate)
        rejection, update_id = Rejection(body.rejected_by, body.reason, body.feedback), body.update_id

        def close(tx: Tx) -> Reply:
            update = self._updates.reject_in(tx, work.principal, update_id, rejection, _via(work))
            return Reply(_decided(update), ITSELF)

        return close

    async def rollback(self, work: Work) -> Closing:
        """Raises NotFound, CheckpointCorrupt. The rollback itself goes on after the message is answered."""
        body = work.body
        assert isinstance(body, Rollback)
        draft = RollbackDraft(body.checkpoint_id, body.reason, body.details, body.initiated_by)

        def close(tx: Tx) -> Reply:
            started = self._rollbacks.start_in(tx, work.principal, draft, work.cause)
            shown = {"rollback_id": started.rollback_id, "checkpoint_id": started.checkpoint_id}
            times = {"estimated_completion": format_iso(started.estimated_completion)}
            return Reply(shown | {"status": started.status} | times, ITSELF)

        return close


def _proposal(body: ProposeUpdate) -> Proposal:
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
    return shown | times | {"deployment_scheduled": update.scheduled and update.status == "approved"}


def _via(work: Work) -> dict[str, str]:
    return {"message_id": work.stored.message_id, "caused_by": work.cause}


def _itself(principal: Principal, header: Header, body: Body) -> Route:
    return ITSELF
