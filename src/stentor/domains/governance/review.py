"""The review of a proposal, and the status changes of an update: row and event in one transaction.

A review reads the agent, its trust, its patch and the policy file, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import Conflict
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.core.security.policy import PolicyEntity, PolicySet
from stentor.domains.governance import impact, model, store
from stentor.domains.governance.impact import AgentConfig, TierFacts
from stentor.domains.governance.model import HUMAN, Proposal, TierBasis, Update, UpdateStatus
from stentor.domains.registry import authorization as agent_policy
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent
from stentor.domains.trust import store as trust_store

ConfigBuilder = Callable[[Agent, JsonObject], AgentConfig]
"""Turns a registration document into a configuration that the registry would accept. Raises InvalidRequest."""
WIDENS_ACCESS_RISK, POLICY_FORBIDS_RISK = "widens_access", "policy_forbids"


class ProposalReview(msgspec.Struct, frozen=True):
    """The result of a review. `rejection_reason` is set if the update can never be deployed; `base_hash` is the hash of
    the configuration that a patch starts from.
    """

    tier: int
    basis: TierBasis
    base_hash: str | None = None
    rejection_reason: str | None = None


class ProposalReviewer:
    """Reviews proposals; `rules` is the operator's policy file, if there is one."""

    def __init__(self, build_config: ConfigBuilder, rules: PolicySet | None) -> None:
        self._build_config = build_config
        self._rules = rules

    def review(self, tx: Tx, principal: Principal, proposal: Proposal, agent: Agent | None) -> ProposalReview:
        """Return the tier and its reasons as of now. Raises InvalidRequest for an invalid patch."""
        patch = proposal.changes.agent_patch
        trust = trust_store.find(tx, principal.tenant, proposal.agent_id) if agent else None
        before = impact.agent_config(agent) if agent else None
        after = self.build_target(agent, patch) if agent and patch is not None else before
        facts = TierFacts(
            proposal.update_type,
            proposal.changes,
            agent is not None,
            agent is not None and agent.status == "active",
            trust.score_at(tx.now) if trust else None,
            before is not None and after is not None and impact.is_widening(before, after),
            before is not None and after is not None and impact.changes_runtime(before, after),
        )
        decision = impact.classify_tier(facts)
        # Policies may ask for the tier, so it is decided once without them and once with their verdict.
        is_forbidden = self._is_forbidden(principal, proposal, agent, facts, decision.tier)
        if is_forbidden:
            decision = impact.classify_tier(msgspec.structs.replace(facts, forbidden=True))
        risks = {WIDENS_ACCESS_RISK: facts.widens, POLICY_FORBIDS_RISK: is_forbidden}
        basis = TierBasis(
            facts.trust,
            proposal.changes.changed_ratio,
            decision.reasons,
            tuple(name for name, applies in risks.items() if applies),
            tuple(impact.diff_documents(before.document, after.document) if before and after else []),
        )
        base_hash = before.digest if before and patch is not None else None
        if agent is None and patch is not None:
            return ProposalReview(HUMAN, basis, base_hash, "A patch needs an agent of this service.")
        return ProposalReview(decision.tier, basis, base_hash)

    def build_target(self, agent: Agent, patch: JsonObject) -> AgentConfig:
        """Return the patched configuration. Raises InvalidRequest."""
        before = impact.agent_config(agent)
        after = self._build_config(agent, impact.apply_patch(before, patch))
        impact.check_runtime_kind(before, after)
        return after

    def find_drift(self, tx: Tx, update: Update) -> str | None:
        """Return why a patch may no longer be applied: the agent's configuration differs from the reviewed one."""
        if not update.patched:
            return None
        agent = agents.find(tx, update.tenant, update.agent_id)
        if agent is None or impact.agent_config(agent).digest != update.base_hash:
            return "The agent changed since the update was proposed. Propose it again."
        return None

    def _is_forbidden(
        self, principal: Principal, proposal: Proposal, agent: Agent | None, facts: TierFacts, tier: int
    ) -> bool:
        if self._rules is None or agent is None:  # an unknown agent needs a person anyway
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
    """Insert a new update with its event; `submitted_status` is the status that the proposer's response shows."""
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
    submitted_status: UpdateStatus = "approved" if tier == model.AUTO else "submitted"
    if review.rejection_reason:
        submitted_status = "rejected"
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
        submitted_status=submitted_status,
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
    tx: Tx, runlog: RunLog, update: Update, status: UpdateStatus, message: str, meta: JsonObject, **fields: Any
) -> Update:
    """Change the status of an update and append the event. Raises Conflict after a concurrent change."""
    metadata = _event_metadata(update.update_id, update.tier) | {"from": update.status, "status": status} | meta
    draft = EventDraft(UPDATE_EVENTS[status], "governance", message, metadata, agent_id=update.agent_id)
    head = runlog.append(tx, update.tenant, [draft], parent=update.head_id)
    changed = msgspec.structs.replace(update, status=status, head_id=head, updated_at=tx.now, **fields)
    if not store.change_update(tx, update, changed):
        raise Conflict("The update was changed concurrently. Read it again.")
    return changed


def _event_metadata(update_id: str, tier: int) -> JsonObject:
    return {"update_id": update_id, "tier": tier}
