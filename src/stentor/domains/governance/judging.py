"""What a proposal is judged on: the agent, its trust, its patch, the policy file. Reads; changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.security.policy import PolicyEntity, PolicySet
from stentor.domains.governance import patch, tiers
from stentor.domains.governance.model import HUMAN, Basis, Proposal, Update
from stentor.domains.governance.patch import Config
from stentor.domains.governance.tiers import Facts
from stentor.domains.registry import authorization as agent_policy
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent
from stentor.domains.trust import store as trust_store

Configuration = Callable[[Agent, dict[str, Any]], Config]
"""A document in the shape of a registration, to a configuration that the registry would take. Raises InvalidRequest."""
WIDENS, FORBIDDEN = "widens_access", "policy_forbids"


class Judged(msgspec.Struct, frozen=True):
    """`impossible` says why it can never be deployed; `base_hash` is of the configuration that a patch starts from."""

    tier: int
    basis: Basis
    base_hash: str | None = None
    impossible: str | None = None


class Judging:
    def __init__(self, configuration: Configuration, rules: PolicySet | None) -> None:
        self._configuration = configuration
        self._rules = rules

    def judge(self, tx: Tx, principal: Principal, proposal: Proposal, agent: Agent | None) -> Judged:
        """Tier and reasons as of now. Raises InvalidRequest for a patch that no agent could have."""
        wanted = proposal.changes.agent_patch
        trust = trust_store.find(tx, principal.tenant, proposal.agent_id) if agent else None
        now = patch.of(agent) if agent else None
        then = self.target(agent, wanted) if agent and wanted is not None else now
        facts = Facts(
            proposal.update_type,
            proposal.changes,
            agent is not None,
            agent is not None and agent.status == "active",
            trust.score_at(tx.now) if trust else None,
            now is not None and then is not None and patch.widens(now, then),
            now is not None and then is not None and now.runtime != then.runtime,
        )
        found = tiers.classify(facts)
        forbidden = self._forbidden(principal, proposal, agent, facts, found.tier)
        if forbidden:
            found = tiers.classify(msgspec.structs.replace(facts, forbidden=True))
        risks = [name for name, holds in ((WIDENS, facts.widens), (FORBIDDEN, forbidden)) if holds]
        diff = patch.diff(now.document, then.document) if now and then else []
        basis = Basis(facts.trust, proposal.changes.ratio, found.reasons, tuple(risks), tuple(diff))
        base = now.hash if now and wanted is not None else None
        gone = "A patch needs an agent of this service." if agent is None and wanted is not None else None
        return Judged(HUMAN if gone else found.tier, basis, base, gone)

    def target(self, agent: Agent, wanted: dict[str, Any]) -> Config:
        """The configuration after a patch. Raises InvalidRequest."""
        before = patch.of(agent)
        after = self._configuration(agent, patch.merged(before, wanted))
        patch.check_kind(before, after)
        return after

    def drift(self, tx: Tx, update: Update) -> str | None:
        """Why a patch may not be applied any more: it was judged against a configuration that is not there now."""
        if not update.patched:
            return None
        agent = agents.find(tx, update.tenant, update.agent_id)
        if agent is None or patch.of(agent).hash != update.base_hash:
            return "The agent changed since the update was proposed: propose it again."
        return None

    def _forbidden(
        self, principal: Principal, proposal: Proposal, agent: Agent | None, facts: Facts, tier: int
    ) -> bool:
        """Asked about known agents alone: others need a person anyhow."""
        if self._rules is None or agent is None:
            return False
        changes = proposal.changes
        context = {
            "update_type": proposal.update_type,
            "tier": tier,
            "trust": facts.trust,
            "ratio": changes.ratio,
            "lines_changed": changes.lines_added + changes.lines_deleted,
            "breaking": changes.breaking,
            "new_dependencies": changes.new_dependencies,
            "touches_policy": changes.touches_policy,
            "files_modified": changes.files_modified,
            "patched_fields": sorted(changes.agent_patch or ()),
        }
        who, whom = PolicyEntity("Principal", principal.name), agent_policy.to_policy_entity(agent)
        return not self._rules.authorize("propose_update", who, whom, context).allowed
