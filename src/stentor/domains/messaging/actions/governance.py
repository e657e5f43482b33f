"""ATP messages to the zone `governance` (docs/atp.md): updates and rollbacks, with the effect of their REST routes."""

from __future__ import annotations

from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.atp.bodies import (
    ApproveUpdateBody,
    OverrideRiskBody,
    ProposeUpdateBody,
    RejectUpdateBody,
    RollbackBody,
)
from stentor.domains.governance.model import Approval, Changes, Proposal, Rejection, RollbackDraft, Update
from stentor.domains.governance.rollbacks import RollbackService
from stentor.domains.governance.service import UpdateService
from stentor.domains.messaging.model import (
    ActionContext,
    ActionResult,
    CommitStep,
    MessageRoute,
    ZoneAction,
    fixed_route,
)

INTERNAL_ROUTE = MessageRoute((), "Executed by governance; no agent is needed.")


class GovernanceZone:
    """Actions on updates and rollbacks.

    Each checks the body and returns a function that `messaging` runs in the transaction of the message.
    """

    def __init__(self, updates: UpdateService, rollbacks: RollbackService) -> None:
        self._updates = updates
        self._rollbacks = rollbacks

    def actions(self) -> dict[tuple[str, str], ZoneAction]:
        internal = fixed_route(INTERNAL_ROUTE)
        return {
            ("governance", "propose_update"): ZoneAction("propose", self.propose, internal),
            ("governance", "approve"): ZoneAction("approve", self.approve, internal),
            ("governance", "override"): ZoneAction("approve", self.approve, internal),
            ("governance", "reject"): ZoneAction("approve", self.reject, internal),
            ("governance", "rollback"): ZoneAction("admin", self.rollback, internal),
        }

    async def propose(self, context: ActionContext) -> CommitStep:
        """Propose an update. Raises Conflict for an id that has another body, InvalidRequest for an invalid patch."""
        body = context.body
        assert isinstance(body, ProposeUpdateBody)
        proposal = _build_proposal(body)

        def commit(tx: Tx) -> ActionResult:
            update = self._updates.propose_in_tx(tx, context.principal, proposal, context.parent_event_id)
            response = {"update_id": update.update_id, "status": update.submitted_status, "tier": update.tier}
            deadline = {"approval_deadline": format_iso(update.approval_deadline)}
            return ActionResult(response | deadline, INTERNAL_ROUTE)

        return commit

    async def approve(self, context: ActionContext) -> CommitStep:
        """Approve an update; the action `override` is an approval with override_risk."""
        body = context.body
        assert isinstance(body, ApproveUpdateBody | OverrideRiskBody)
        override = isinstance(body, OverrideRiskBody) or body.override_risk
        approval = Approval(body.approved_by, body.rationale, override)
        update_id = body.update_id

        def commit(tx: Tx) -> ActionResult:
            update = self._updates.approve_in_tx(tx, context.principal, update_id, approval, context.event_metadata)
            return ActionResult(_decision_to_json(update), INTERNAL_ROUTE)

        return commit

    async def reject(self, context: ActionContext) -> CommitStep:
        body = context.body
        assert isinstance(body, RejectUpdateBody)
        rejection, update_id = Rejection(body.rejected_by, body.reason, body.feedback), body.update_id

        def commit(tx: Tx) -> ActionResult:
            update = self._updates.reject_in_tx(tx, context.principal, update_id, rejection, context.event_metadata)
            return ActionResult(_decision_to_json(update), INTERNAL_ROUTE)

        return commit

    async def rollback(self, context: ActionContext) -> CommitStep:
        """Start a rollback; it continues after the message has its response. Raises NotFound, CheckpointCorrupt."""
        body = context.body
        assert isinstance(body, RollbackBody)
        draft = RollbackDraft(body.checkpoint_id, body.reason, body.details, body.initiated_by)

        def commit(tx: Tx) -> ActionResult:
            rollback = self._rollbacks.start_in_tx(tx, context.principal, draft, context.parent_event_id)
            response = {"rollback_id": rollback.rollback_id, "checkpoint_id": rollback.checkpoint_id}
            times = {"estimated_completion": format_iso(rollback.estimated_completion)}
            return ActionResult(response | {"status": rollback.status} | times, INTERNAL_ROUTE)

        return commit


def _build_proposal(body: ProposeUpdateBody) -> Proposal:
    # Must equal what the REST route builds: a repeated proposal is recognized by comparing the two.
    fields = body.changes.model_dump()
    changes = Changes(**fields | {"files_modified": tuple(fields["files_modified"])})
    return Proposal(body.update_id, body.agent_id, body.update_type, body.description, changes, body.checkpoint_id)


def _decision_to_json(update: Update) -> JsonObject:
    response = {"update_id": update.update_id, "status": update.status, "tier": update.tier}
    times = {name: format_iso_or_none(getattr(update, name)) for name in ("approved_at", "rejected_at")}
    return response | times | {"deployment_scheduled": update.patched and update.status == "approved"}
