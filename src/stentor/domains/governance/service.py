"""Use cases of updates: propose, decide, report, read. Every move and its event share one transaction.

Computes an agent's trust from metrics, given or the service's own records, and stores it if that is wanted.
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
from stentor.core.runlog import RunLog
from stentor.domains.governance import model, review, store, trust_formula
from stentor.domains.governance.checkpoints import CheckpointService, is_valid_id, require_agent
from stentor.domains.governance.checkpoints import require_checkpoint as require_checkpoint
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
from stentor.domains.learning import store as lessons
from stentor.domains.registry import authorization
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent
from stentor.domains.trust.service import TrustService

_RATIONALE_REQUIRED = {"fields": {"rationale": "who approves an update of their own says why"}}
SelfApprovalKind = Literal["agent", "key", "proposer"]


class UpdateService:
    """`wake` tells the runner that there may be something to deploy. `self_approval`: one admin is enough, also where
    there are others.
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
        self._judging = reviewer
        self._checkpoints = checkpoints
        self._rollbacks = rollbacks
        self._wake = wake
        self._roles = roles
        self._self_approval = self_approval

    async def propose(self, principal: Principal, proposal: Proposal, key: IdempotencyKey | None = None) -> Update:
        """Raises Conflict for an id that has another body, InvalidRequest for a patch that cannot be."""

        def work(tx: Tx) -> Update:
            if key is not None and (known := idempotency.find_response(tx, key)):
                return require_update(tx, principal.tenant, known.body)
            update = self.propose_in_tx(tx, principal, proposal)
            if key is not None:
                idempotency.store_response(tx, key, StoredResponse(202, update.update_id))
            return update

        return await self._db.write(work)

    def propose_in_tx(self, tx: Tx, principal: Principal, proposal: Proposal, parent: str | None = None) -> Update:
        """The same as a part of somebody's own transaction. The same id with the same body is the same update."""
        known = store.find_update(tx, principal.tenant, proposal.update_id)
        if known is not None:
            if known.body_hash != proposal.body_hash:
                raise Conflict(f"The update {proposal.update_id} was proposed before with another body. Take a new id.")
            return known
        agent = agents.find(tx, principal.tenant, proposal.agent_id)
        _check_proposer(principal, agent)
        _check_named(tx, principal.tenant, proposal)
        judged = self._judging.review(tx, principal, proposal, agent)
        update = review.insert_submitted(tx, self._runlog, principal, proposal, judged, parent)
        if judged.rejection_reason is not None:
            decision = {"reason": judged.rejection_reason}
            return self._reject(tx, update, model.SYSTEM_ACTOR, decision)
        if update.tier == model.AUTO:
            return self._approve(tx, update, model.SYSTEM_ACTOR, {"rationale": "Its tier is auto."})
        return update

    async def approve(self, principal: Principal, update_id: str, approval: Approval) -> Update:
        """Raises NotFound, SelfApproval, RiskNotOverridden, Conflict unless it is submitted."""
        return await self._db.write(lambda tx: self.approve_in_tx(tx, principal, update_id, approval))

    def approve_in_tx(
        self, tx: Tx, principal: Principal, update_id: str, approval: Approval, event_extra: Any = None
    ) -> Update:
        """The same as a part of somebody's own transaction; `via` goes into the event."""
        update = _submitted(tx, principal.tenant, update_id, "approved")
        own = self._own_hand(tx, principal, update, approval)
        if own is not None and not self._may_alone(principal, update, own):
            raise SelfApproval(
                "Who proposed an update, or the agent that it changes, may not approve it: ask another admin.",
                {"proposed_by": update.proposed_by},
            )
        if own is not None and not approval.rationale:
            raise InvalidRequest("rationale: who approves an update of their own says why", _RATIONALE_REQUIRED)
        if update.basis.risks and not approval.override_risk:
            named = ", ".join(update.basis.risks)
            raise RiskNotOverridden(
                f"Approving this accepts a risk ({named}): say so with override_risk.",
                {"risks": list(update.basis.risks)},
            )
        alone = {"self_approved": True} if own else {}
        decision = msgspec.to_builtins(approval) | alone
        return self._approve(tx, update, principal.name, decision, {**(event_extra or {}), **alone})

    async def reject(self, principal: Principal, update_id: str, rejection: Rejection) -> Update:
        """Raises NotFound, Conflict unless it is submitted. Who proposed it may take it back so."""
        return await self._db.write(lambda tx: self.reject_in_tx(tx, principal, update_id, rejection))

    def reject_in_tx(
        self, tx: Tx, principal: Principal, update_id: str, rejection: Rejection, event_extra: Any = None
    ) -> Update:
        """The same as a part of somebody's own transaction."""
        update = _submitted(tx, principal.tenant, update_id, "rejected")
        return self._reject(tx, update, principal.name, msgspec.to_builtins(rejection), event_extra)

    async def report_deployment(self, principal: Principal, update_id: str, results: dict[str, Any]) -> Update:
        """What the tests of an update that lives outside came to: failed ones roll back. Raises NotFound, Conflict."""
        rollback_id = await self._db.write(lambda tx: self._report(tx, principal, update_id, results))
        if rollback_id is not None:
            with suppress(Conflict):  # the runner, or another process, is at it
                await self._rollbacks.execute(principal.tenant, rollback_id)
        return await self.get(principal.tenant, update_id)

    async def get_visible(self, principal: Principal, update_id: str) -> Update:
        """As `get`; who may only propose sees its own proposals alone."""
        update = await self.get(principal.tenant, update_id)
        if not principal.may("admin") and update.proposed_by != principal.name:
            raise _unknown()
        return update

    async def get(self, tenant: str, update_id: str) -> Update:
        """Raises NotFound, the same for a foreign update as for none."""
        return await self._db.read(lambda tx: require_update(tx, tenant, update_id))

    async def list_page(self, tenant: str, wanted: UpdateFilter, limit: int) -> list[Update]:
        return await self._db.read(lambda tx: store.list_updates(tx, tenant, wanted, limit))

    async def list_oldest(
        self, tenant: str, wanted: UpdateFilter, limit: int, offset: int
    ) -> tuple[list[Update], int, int]:
        """Updates, oldest first; how many there are, and how many of them are past their deadline."""

        def read(tx: Tx) -> tuple[list[Update], int, int]:
            found = store.list_oldest_updates(tx, tenant, wanted, limit, offset)
            return found, *store.count_updates(tx, tenant, wanted)

        return await self._db.read(read)

    def _own_hand(self, tx: Tx, principal: Principal, update: Update, approval: Approval) -> SelfApprovalKind | None:
        """Whether the one who approves can work as the agent that it changes, has its key, or proposed it."""
        agent = agents.find(tx, update.tenant, update.agent_id)
        if agent is not None and authorization.can_work_as(principal, agent):
            return "agent"
        if agent is not None and agent.key_name == principal.name:
            return "key"
        claimed = (approval.claimed or "").strip().lower()
        return "proposer" if update.proposed_by in (principal.name, claimed) else None

    def _may_alone(self, principal: Principal, update: Update, own: SelfApprovalKind) -> bool:
        """Whether a person may approve an update of their own: nobody else could, or the operator said so.

        An agent's key never may, and nobody in the name of another.
        """
        if principal.role != "admin":
            return False
        if self._self_approval and own == "proposer":
            return True
        return self._roles.is_only_admin(principal) and (own == "key" or update.proposed_by == principal.name)

    def _approve(self, tx: Tx, update: Update, by: str, decision: dict[str, Any], via: Any = None) -> Update:
        drift = self._judging.find_drift(tx, update)
        if drift is not None:
            raise Conflict(drift)
        fields: dict[str, Any] = {"decided_by": by, "decision": decision, "approved_at": tx.now}
        agent = None if update.patched else agents.find(tx, update.tenant, update.agent_id)
        if agent is not None:
            # What lives outside is deployed at any time from now on: this is the last moment before it.
            taken = self._checkpoints.take(tx, agent, "deployment", by, update.head_id)
            fields["checkpoint_id"] = taken.checkpoint_id
        meta = {"by": by, **(via or {})}
        moved = review.change_status(tx, self._runlog, update, "approved", f"Approved by {by}.", meta, **fields)
        if moved.patched:
            tx.after_commit(self._wake)
        return moved

    def _reject(self, tx: Tx, update: Update, by: str, decision: dict[str, Any], via: Any = None) -> Update:
        fields = {"decided_by": by, "decision": decision, "rejected_at": tx.now}
        meta = {"by": by, "reason": decision.get("reason"), **(via or {})}
        return review.change_status(tx, self._runlog, update, "rejected", f"Rejected by {by}.", meta, **fields)

    def _report(self, tx: Tx, principal: Principal, update_id: str, results: Mapping[str, Any]) -> str | None:
        """Answers the rollback that failed tests need."""
        update = require_update(tx, principal.tenant, update_id)
        if update.patched:
            raise Conflict("This service deploys the update itself; there is nothing to report.")
        if update.status != "approved":
            raise Conflict(f"The update is {update.status}; only of an approved one a deployment can be reported.")
        failed = sum(part["failed"] for part in results.values() if part)
        meta = {"by": principal.name, "test_results": results}
        kept = {"test_results": dict(results)}
        update = review.change_status(tx, self._runlog, update, "deploying", "Deployed outside.", meta, **kept)
        if not failed:
            review.change_status(tx, self._runlog, update, "deployed", "Its tests passed.", meta, deployed_at=tx.now)
            return None
        return self._rollbacks.undo_update(tx, principal, update, f"{failed} tests failed.")


def require_update(tx: Tx, tenant: str, update_id: str) -> Update:
    """Raises NotFound."""
    update = store.find_update(tx, tenant, update_id) if is_valid_id(update_id) else None
    if update is None:
        raise _unknown()
    return update


def _unknown() -> NotFound:
    return NotFound("No update has this id.")


def _check_proposer(principal: Principal, agent: Agent | None) -> None:
    """Raises Forbidden: an agent's key without `admin` proposes updates of its own agents, and of no others."""
    if principal.is_bound_agent and (agent is None or agent.key_name != principal.name):
        raise Forbidden(f"The key {principal.name!r} may propose updates of its own agents only.")


def _check_named(tx: Tx, tenant: str, proposal: Proposal) -> None:
    """A checkpoint that a proposal names must be there to go back to. Raises NotFound, Conflict for another agent's."""
    if proposal.checkpoint_id is not None:
        named = require_checkpoint(tx, tenant, proposal.checkpoint_id)
        if named.agent_id != proposal.agent_id:
            raise Conflict("The checkpoint that the proposal names is another agent's.")


def _submitted(tx: Tx, tenant: str, update_id: str, verb: str) -> Update:
    update = require_update(tx, tenant, update_id)
    if update.status != "submitted":
        raise Conflict(f"The update is {update.status} already, so it cannot be {verb}.")
    return update


class TrustScoringService:
    def __init__(self, db: Database, trust: TrustService, checkpoints: CheckpointService) -> None:
        self._db = db
        self._trust = trust
        self._checkpoints = checkpoints

    async def compute(
        self, tenant: str, agent_id: str, given: TrustMetrics | None, by: Principal, *, persist: bool
    ) -> TrustBreakdown:
        """Raises NotFound, Forbidden, NoMetrics, InvalidRequest. Storing a score takes a checkpoint before; a score
        of too little is not stored (`TrustBreakdown.not_stored_reason`).
        """
        work = self._store if persist else self._compute

        def unit(tx: Tx) -> TrustBreakdown:
            return work(tx, require_agent(tx, tenant, agent_id), given, by)

        return await (self._db.write(unit) if persist else self._db.read(unit))

    def _compute(self, tx: Tx, agent: Agent, given: TrustMetrics | None, by: Principal) -> TrustBreakdown:
        return trust_formula.compute_trust(given if given is not None else read_recorded_metrics(tx, agent))

    def _store(self, tx: Tx, agent: Agent, given: TrustMetrics | None, by: Principal) -> TrustBreakdown:
        authorization.authorize_change(by, "trust", agent)
        found = self._compute(tx, agent, given, by)
        if found.not_stored_reason:
            return found
        self._checkpoints.take(tx, agent, "trust_change", by.name)
        self._trust.set_score_in_tx(tx, agent.tenant, agent.agent_id, found.score, None, by.name)
        return found


def read_recorded_metrics(tx: Tx, agent: Agent) -> TrustMetrics:
    """What the service knows itself; not the quality of code, nor hours of downtime.

    An agent that never did anything has no violations because it had no chance: then they are unknown.
    """
    successes, outcomes = lessons.count_results(tx, agent.agent_id)
    violated = bool(agents.list_violations(tx, agent.agent_id, cleared=True))
    approved, decided = store.count_decisions(tx, agent.tenant, agent.agent_id)
    return TrustMetrics(
        successful_executions=successes,
        total_executions=outcomes,
        recent_violation_count=agent.violation_count if outcomes or violated else None,
        approved_updates=approved,
        total_update_attempts=decided,
    )
