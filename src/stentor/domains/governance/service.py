"""Use cases of governance: propose, decide, report and read updates; compute an agent's trust.

Every change of an update's status shares a transaction with its event. Deployment is in `deployment`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from stentor.auth.principal import Principal, RoleRegistry
from stentor.core.db import Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLog
from stentor.domains.governance import model, review, store, trust_formula
from stentor.domains.governance.checkpoints import CheckpointService, is_valid_id, require_agent, require_checkpoint
from stentor.domains.governance.model import (
    Approval,
    Proposal,
    Rejection,
    RiskNotOverridden,
    SelfApproval,
    Update,
    UpdateFilter,
)
from stentor.domains.governance.review import ProposalReviewer
from stentor.domains.governance.rollbacks import RollbackService
from stentor.domains.governance.trust_formula import TrustBreakdown, TrustMetrics
from stentor.domains.learning import store as learning_store
from stentor.domains.registry import authorization
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent
from stentor.domains.trust.service import TrustService

_RATIONALE_REQUIRED = {"fields": {"rationale": "required to approve your own update"}}
SelfApprovalKind = Literal["agent", "key", "proposer"]


class UpdateService:
    """Updates and their approval.

    `wake` tells the runner that there may be something to deploy. With `self_approval` an admin may approve their own
    update although there are other admins.
    """

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        reviewer: ProposalReviewer,
        checkpoints: CheckpointService,
        rollbacks: RollbackService,
        wake: Callable[[], None],
        roles: RoleRegistry,
        *,
        self_approval: bool,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._reviewer = reviewer
        self._checkpoints = checkpoints
        self._rollbacks = rollbacks
        self._wake = wake
        self._roles = roles
        self._self_approval = self_approval

    async def propose(self, principal: Principal, proposal: Proposal, key: IdempotencyKey | None = None) -> Update:
        """Propose an update. Raises Conflict for a known id with another body, InvalidRequest for an invalid patch."""

        def work(tx: Tx) -> Update:
            if key is not None and (known := idempotency.find_response(tx, key)):
                return require_update(tx, principal.tenant, known.body)
            update = self.propose_in_tx(tx, principal, proposal)
            if key is not None:
                idempotency.store_response(tx, key, StoredResponse(202, update.update_id))
            return update

        return await self._db.write(work)

    def propose_in_tx(self, tx: Tx, principal: Principal, proposal: Proposal, parent: str | None = None) -> Update:
        """Propose inside the caller's transaction. The same id with the same body returns the known update."""
        # Before all checks: a repeated proposal gets its first response, whatever has changed since.
        known = store.find_update(tx, principal.tenant, proposal.update_id)
        if known is not None:
            if known.body_hash != proposal.body_hash:
                raise Conflict(f"The update {proposal.update_id} was already proposed with another body. Use a new id.")
            return known
        agent = agents.find(tx, principal.tenant, proposal.agent_id)
        _check_proposer(principal, agent)
        _check_checkpoint(tx, principal.tenant, proposal)
        reviewed = self._reviewer.review(tx, principal, proposal, agent)
        update = review.insert_submitted(tx, self._runlog, principal, proposal, reviewed, parent)
        if reviewed.rejection_reason is not None:
            decision = {"reason": reviewed.rejection_reason}
            return self._reject(tx, update, model.SYSTEM_ACTOR, decision)
        if update.tier == model.AUTO:
            return self._approve(tx, update, model.SYSTEM_ACTOR, {"rationale": "Its review tier is auto."})
        return update

    async def approve(self, principal: Principal, update_id: str, approval: Approval) -> Update:
        """Approve an update. Raises NotFound, Forbidden, RiskNotOverridden, and Conflict unless it is submitted."""
        return await self._db.write(lambda tx: self.approve_in_tx(tx, principal, update_id, approval))

    def approve_in_tx(
        self, tx: Tx, principal: Principal, update_id: str, approval: Approval, event_extra: Any = None
    ) -> Update:
        """Approve inside the caller's transaction; `event_extra` is added to the event's metadata."""
        update = _require_submitted(require_update(tx, principal.tenant, update_id), "approved")
        relation = self._authorize_approval(tx, principal, update, approval.claimed)
        if relation is not None and not (approval.rationale or "").strip():
            raise InvalidRequest("rationale: required to approve your own update", _RATIONALE_REQUIRED)
        if update.basis.risks and not approval.override_risk:
            raise RiskNotOverridden(
                f"The update has risks ({', '.join(update.basis.risks)}). An approval must accept them: override_risk, "
                "in the command line --override-risk.",
                {"risks": list(update.basis.risks)},
            )
        self_approved = {"self_approved": True} if relation else {}
        decision = msgspec.to_builtins(approval) | self_approved
        return self._approve(tx, update, principal.name, decision, {**(event_extra or {}), **self_approved})

    async def reject(self, principal: Principal, update_id: str, rejection: Rejection) -> Update:
        """Reject an update; a proposer that may approve can reject its own.

        Raises NotFound, Forbidden, and Conflict unless submitted.
        """
        return await self._db.write(lambda tx: self.reject_in_tx(tx, principal, update_id, rejection))

    def reject_in_tx(
        self, tx: Tx, principal: Principal, update_id: str, rejection: Rejection, event_extra: Any = None
    ) -> Update:
        """Reject inside the caller's transaction; `event_extra` is added to the event's metadata."""
        update = _require_submitted(require_update(tx, principal.tenant, update_id), "rejected")
        if update.proposed_by != principal.name:
            agent = agents.find(tx, update.tenant, update.agent_id)
            authorization.authorize_entity_change(principal, "approve", update.agent_id, agent)
        return self._reject(tx, update, principal.name, msgspec.to_builtins(rejection), event_extra)

    async def report_deployment(self, principal: Principal, update_id: str, results: JsonObject) -> Update:
        """Record the tests of an update deployed elsewhere; failed ones roll it back.

        Raises NotFound, Forbidden, Conflict.
        """
        rollback_id = await self._db.write(lambda tx: self._report(tx, principal, update_id, results))
        if rollback_id is not None:
            with suppress(Conflict):  # the runner or another process executes it already
                await self._rollbacks.execute(principal.tenant, rollback_id)
        return await self.get(principal.tenant, update_id)

    async def get_visible(self, principal: Principal, update_id: str) -> Update:
        """Return an update; a principal that may not approve sees only its own proposals. Raises NotFound."""
        update = await self.get(principal.tenant, update_id)
        if not principal.may("approve") and update.proposed_by != principal.name:
            raise _not_found()
        return update

    async def find_approval_problem(self, principal: Principal, update: Update) -> str | None:
        """Return why this principal could not approve the update as it is now; None if it could.

        Risks that are not accepted and drift are no problem here.
        """
        try:
            principal.require("approve")
            _require_submitted(update, "approved")
            await self._db.read(lambda tx: self._authorize_approval(tx, principal, update, None))
        except (Conflict, Forbidden) as error:
            return error.message
        return None

    async def get(self, tenant: str, update_id: str) -> Update:
        """Return an update of the tenant. Raises NotFound."""
        return await self._db.read(lambda tx: require_update(tx, tenant, update_id))

    async def list_page(self, tenant: str, filters: UpdateFilter, limit: int) -> list[Update]:
        return await self._db.read(lambda tx: store.list_updates(tx, tenant, filters, limit))

    async def list_oldest(
        self, tenant: str, filters: UpdateFilter, limit: int, offset: int
    ) -> tuple[list[Update], int, int]:
        """Return a page of updates, oldest first, with the total count and how many of all are overdue."""

        def read(tx: Tx) -> tuple[list[Update], int, int]:
            page = store.list_oldest_updates(tx, tenant, filters, limit, offset)
            return page, *store.count_updates(tx, tenant, filters)

        return await self._db.read(read)

    def _authorize_approval(
        self, tx: Tx, principal: Principal, update: Update, claimed: str | None
    ) -> SelfApprovalKind | None:
        """Return how the approver is related to the update. Raises Forbidden."""
        agent = agents.find(tx, update.tenant, update.agent_id)
        relation = self._find_relation(principal, update, agent, claimed)
        if relation is not None and not self._may_self_approve(principal, update, relation):
            raise SelfApproval(
                "Neither the proposer of an update, nor the agent that it changes, nor a key that the proposer may "
                "have created or changed since may approve it. Ask another person with the permission approve; if "
                "their key is newer than the proposal, reject the update and propose it again. A person who lost "
                "the permission still counts as an approver for a day.",
                {"proposed_by": update.proposed_by},
            )
        authorization.authorize_entity_change(principal, "approve", update.agent_id, agent)
        if update.basis.risks and not principal.is_person:
            raise Forbidden(
                f"The update has risks ({', '.join(update.basis.risks)}), and the key {principal.name!r} has the role "
                "agent: only a person may accept them."
            )
        return relation

    def _find_relation(
        self, principal: Principal, update: Update, agent: Agent | None, claimed: str | None
    ) -> SelfApprovalKind | None:
        """Return how the approver is related to the update: works as its agent, has its key, or proposed it."""
        if agent is not None and authorization.can_work_as(principal, agent):
            return "agent"
        if agent is not None and agent.key_name == principal.name:
            return "key"
        # Names of keys are lower case, but people write them as they like.
        if update.proposed_by in (principal.name, (claimed or "").strip().lower()):
            return "proposer"
        # Otherwise an admin could propose, make a second key, and approve with it.
        is_new = self._roles.could_be_held_by(principal, update.proposed_by, update.submitted_at)
        return "proposer" if is_new else None

    def _may_self_approve(self, principal: Principal, update: Update, relation: SelfApprovalKind) -> bool:
        """Return whether a person may approve their own update: the only approver, or allowed by the operator.

        Fails closed: never for an agent's key, and never for a proposal under another name.
        """
        if not principal.is_person:
            return False
        # Not "key": the agent's program may hold that key, and would approve its own update.
        if self._self_approval and relation == "proposer":
            return True
        return self._roles.is_only_approver(principal) and (relation == "key" or update.proposed_by == principal.name)

    def _approve(self, tx: Tx, update: Update, by: str, decision: JsonObject, event_extra: Any = None) -> Update:
        drift = self._reviewer.find_drift(tx, update)
        if drift is not None:
            raise Conflict(drift)
        fields: dict[str, Any] = {"decided_by": by, "decision": decision, "approved_at": tx.now}
        agent = None if update.patched else agents.find(tx, update.tenant, update.agent_id)
        if agent is not None:
            # It may be deployed elsewhere at any time from now on, so this is the last chance for the checkpoint.
            checkpoint = self._checkpoints.take(tx, agent, "deployment", by, update.head_id)
            fields["checkpoint_id"] = checkpoint.checkpoint_id
        meta = {"by": by, **(event_extra or {})}
        approved = review.change_status(tx, self._runlog, update, "approved", f"Approved by {by}.", meta, **fields)
        if approved.patched:
            # After the commit: the runner reads the row, which must be there.
            tx.after_commit(self._wake)
        return approved

    def _reject(self, tx: Tx, update: Update, by: str, decision: JsonObject, event_extra: Any = None) -> Update:
        fields = {"decided_by": by, "decision": decision, "rejected_at": tx.now}
        meta = {"by": by, "reason": decision.get("reason"), **(event_extra or {})}
        return review.change_status(tx, self._runlog, update, "rejected", f"Rejected by {by}.", meta, **fields)

    def _report(self, tx: Tx, principal: Principal, update_id: str, results: Mapping[str, Any]) -> str | None:
        """Return the id of the rollback that failed tests started."""
        update = require_update(tx, principal.tenant, update_id)
        agent = agents.find(tx, update.tenant, update.agent_id)
        if agent is not None and authorization.can_work_as(principal, agent):
            # Failed tests restore the agent as it was at the approval, before whatever restricted it since.
            raise SelfApproval(
                "An agent's own key may not report the tests of its update. Ask a person whose key has the role admin, "
                "or the program that deployed it to report them with a key of its own."
            )
        if update.patched:
            raise Conflict("This service deploys the update itself, so no deployment can be reported.")
        if update.status != "approved":
            raise Conflict(f"The update is {update.status}. A deployment can be reported only for an approved update.")
        failed = sum(part["failed"] for part in results.values() if part)
        meta = {"by": principal.name, "test_results": results}
        update = review.change_status(
            tx, self._runlog, update, "deploying", "Deployed elsewhere.", meta, test_results=dict(results)
        )
        if not failed:
            review.change_status(tx, self._runlog, update, "deployed", "Its tests passed.", meta, deployed_at=tx.now)
            return None
        return self._rollbacks.undo_update(tx, principal, update, f"{failed} tests failed.")


def require_update(tx: Tx, tenant: str, update_id: str) -> Update:
    """Return an update. Raises NotFound."""
    update = store.find_update(tx, tenant, update_id) if is_valid_id(update_id) else None
    if update is None:
        raise _not_found()
    return update


def _not_found() -> NotFound:
    return NotFound("No update has this id.")


def _check_proposer(principal: Principal, agent: Agent | None) -> None:
    """Raise Forbidden if an agent's key without `admin` proposes an update of an agent that is not its own."""
    if principal.is_bound_agent and (agent is None or agent.key_name != principal.name):
        raise Forbidden(f"The key {principal.name!r} may only propose updates of its own agents.")


def _check_checkpoint(tx: Tx, tenant: str, proposal: Proposal) -> None:
    """Raise NotFound for an unknown checkpoint in the proposal, Conflict for one of another agent."""
    if proposal.checkpoint_id is not None:
        checkpoint = require_checkpoint(tx, tenant, proposal.checkpoint_id)
        if checkpoint.agent_id != proposal.agent_id:
            raise Conflict("The proposal's checkpoint belongs to another agent.")


def _require_submitted(update: Update, verb: str) -> Update:
    if update.status != "submitted":
        raise Conflict(f"The update is already {update.status}, so it cannot be {verb}.")
    return update


class TrustScoringService:
    """Computes and stores trust scores from metrics."""

    def __init__(self, db: Database, trust: TrustService, checkpoints: CheckpointService) -> None:
        self._db = db
        self._trust = trust
        self._checkpoints = checkpoints

    async def compute(
        self, tenant: str, agent_id: str, metrics: TrustMetrics | None, by: Principal, *, persist: bool
    ) -> TrustBreakdown:
        """Compute a score from the given metrics or the service's records; `persist` stores it after a checkpoint.

        A score from too few metrics is not stored, see `TrustBreakdown.not_stored_reason`. Raises NotFound, Forbidden,
        TrustNotComputable, InvalidRequest.
        """

        def work(tx: Tx) -> TrustBreakdown:
            agent = require_agent(tx, tenant, agent_id)
            if persist:
                authorization.authorize_change(by, "trust", agent)
            breakdown = trust_formula.compute_trust(read_recorded_metrics(tx, agent) if metrics is None else metrics)
            if persist and not breakdown.not_stored_reason:
                self._checkpoints.take(tx, agent, "trust_change", by.name)
                self._trust.set_score_in_tx(tx, tenant, agent_id, breakdown.score, None, by.name)
            return breakdown

        return await (self._db.write(work) if persist else self._db.read(work))


def read_recorded_metrics(tx: Tx, agent: Agent) -> TrustMetrics:
    """Return the metrics that the service records itself: outcomes, violations and decided updates.

    The violations of an agent without any outcome are unknown, not 0.
    """
    successes, outcomes = learning_store.count_results(tx, agent.agent_id)
    has_violations = bool(agents.list_violations(tx, agent.agent_id, cleared=True))
    approved, decided = store.count_decisions(tx, agent.tenant, agent.agent_id)
    return TrustMetrics(
        successful_executions=successes,
        total_executions=outcomes,
        recent_violation_count=agent.violation_count if outcomes or has_violations else None,
        approved_updates=approved,
        total_update_attempts=decided,
    )
