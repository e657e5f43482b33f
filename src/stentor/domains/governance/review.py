"""What a proposal is judged on: the agent, its trust, its patch, the policy file. Reads; changes nothing.

The moves of an update: the row and its event together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import Conflict
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.core.security.policy import PolicyEntity, PolicySet
from stentor.domains.governance import impact, model, store
from stentor.domains.governance.impact import AgentConfig, TierFacts
from stentor.domains.governance.model import HUMAN, Proposal, TierBasis, Update, UpdateStatus
from stentor.domains.registry import authorization as agent_policy
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent
from stentor.domains.trust import store as trust_store

ConfigBuilder = Callable[[Agent, dict[str, Any]], AgentConfig]
"""A document in the shape of a registration, to a configuration that the registry would take. Raises InvalidRequest."""
WIDENS_ACCESS_RISK, POLICY_FORBIDS_RISK = "widens_access", "policy_forbids"


class ProposalReview(msgspec.Struct, frozen=True):
    """`impossible` says why it can never be deployed; `base_hash` is of the configuration that a patch starts from."""

    tier: int
    basis: TierBasis
    base_hash: str | None = None
    rejection_reason: str | None = None


class ProposalReviewer:
    def __init__(self, configuration: ConfigBuilder, rules: PolicySet | None) -> None:
        self._configuration = configuration
        self._rules = rules

    def review(self, tx: Tx, principal: Principal, proposal: Proposal, agent: Agent | None) -> ProposalReview:
        """Tier and reasons as of now. Raises InvalidRequest for a patch that no agent could have."""
        wanted = proposal.changes.agent_patch
        trust = trust_store.find(tx, principal.tenant, proposal.agent_id) if agent else None
        now = impact.agent_config(agent) if agent else None
        then = self.build_target(agent, wanted) if agent and wanted is not None else now
        facts = TierFacts(
            proposal.update_type,
            proposal.changes,
            agent is not None,
            agent is not None and agent.status == "active",
            trust.score_at(tx.now) if trust else None,
            now is not None and then is not None and impact.is_widening(now, then),
            now is not None and then is not None and now.runtime != then.runtime,
        )
        found = impact.classify_tier(facts)
        forbidden = self._forbidden(principal, proposal, agent, facts, found.tier)
        if forbidden:
            found = impact.classify_tier(msgspec.structs.replace(facts, forbidden=True))
        risks = [
            name for name, holds in ((WIDENS_ACCESS_RISK, facts.widens), (POLICY_FORBIDS_RISK, forbidden)) if holds
        ]
        diff = impact.diff_documents(now.document, then.document) if now and then else []
        basis = TierBasis(facts.trust, proposal.changes.changed_ratio, found.reasons, tuple(risks), tuple(diff))
        base = now.digest if now and wanted is not None else None
        gone = "A patch needs an agent of this service." if agent is None and wanted is not None else None
        return ProposalReview(HUMAN if gone else found.tier, basis, base, gone)

    def build_target(self, agent: Agent, wanted: dict[str, Any]) -> AgentConfig:
        """The configuration after a patch. Raises InvalidRequest."""
        before = impact.agent_config(agent)
        after = self._configuration(agent, impact.apply_patch(before, wanted))
        impact.check_runtime_kind(before, after)
        return after

    def find_drift(self, tx: Tx, update: Update) -> str | None:
        """Why a patch may not be applied any more: it was judged against a configuration that is not there now."""
        if not update.patched:
            return None
        agent = agents.find(tx, update.tenant, update.agent_id)
        if agent is None or impact.agent_config(agent).digest != update.base_hash:
            return "The agent changed since the update was proposed: propose it again."
        return None

    def _forbidden(
        self, principal: Principal, proposal: Proposal, agent: Agent | None, facts: TierFacts, tier: int
    ) -> bool:
        """Asked about known agents alone: others need a person anyhow."""
        if self._rules is None or agent is None:
            return False
        changes = proposal.changes
        context = {
            "update_type": proposal.update_type,
            "tier": tier,
            "trust": facts.trust,
            "ratio": changes.changed_ratio,
            "lines_changed": changes.lines_added + changes.lines_deleted,
            "breaking": changes.breaking,
            "new_dependencies": changes.new_dependencies,
            "touches_policy": changes.touches_policy,
            "files_modified": changes.files_modified,
            "patched_fields": sorted(changes.agent_patch or ()),
        }
        who, whom = PolicyEntity("Principal", principal.name), agent_policy.to_policy_entity(agent)
        return not self._rules.authorize("propose_update", who, whom, context).allowed


UPDATE_EVENTS: dict[UpdateStatus, EventType] = {
    "submitted": "update_submitted",
    "approved": "update_approved",
    "rejected": "update_rejected",
    "deploying": "update_deploying",
    "deployed": "update_deployed",
    "rolled_back": "update_rolled_back",
}
assert set(UPDATE_EVENTS) == set(get_args(UpdateStatus))


def insert_submitted(
    tx: Tx, runlog: RunLog, principal: Principal, proposal: Proposal, review: ProposalReview, parent: str | None
) -> Update:
    """Store a new update as submitted; the status that its proposer is told is decided with it."""
    tier = review.tier
    meta = _event_metadata(proposal.update_id, tier) | {
        "by": principal.name,
        "update_type": proposal.update_type,
        "trust": review.basis.trust,
        "ratio": review.basis.ratio,
        "reasons": review.basis.reasons,
    }
    draft = EventDraft("update_submitted", "governance", "Update proposed.", meta, agent_id=proposal.agent_id)
    event = runlog.append(tx, principal.tenant, [draft], parent=parent)
    told: UpdateStatus = "rejected" if review.rejection_reason else "approved" if tier == model.AUTO else "submitted"
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
        basis=review.basis,
        base_hash=review.base_hash,
        submitted_at=tx.now,
        approval_deadline=tx.now + model.APPROVAL_DEADLINES[tier],
        provenance_id=event,
        head_id=event,
        updated_at=tx.now,
    )
    store.insert_update(tx, update)
    return update


def change_status(
    tx: Tx, runlog: RunLog, update: Update, status: UpdateStatus, message: str, meta: dict[str, Any], **fields: Any
) -> Update:
    """Make one move and record it. Raises Conflict when somebody else moved it at the same moment."""
    shown = _event_metadata(update.update_id, update.tier) | {"from": update.status, "status": status} | meta
    draft = EventDraft(UPDATE_EVENTS[status], "governance", message, shown, agent_id=update.agent_id)
    head = runlog.append(tx, update.tenant, [draft], parent=update.head_id)
    moved = msgspec.structs.replace(update, status=status, head_id=head, updated_at=tx.now, **fields)
    if not store.change_update(tx, update, moved):
        raise Conflict("The update changed at the same moment. Look at it again.")
    return moved


def _event_metadata(update_id: str, tier: int) -> dict[str, Any]:
    return {"update_id": update_id, "tier": tier}
