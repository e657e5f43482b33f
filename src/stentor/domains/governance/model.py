"""Updates, checkpoints and rollbacks as values. Source: core contract, "Governance update" and "Rollback"."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from stentor.core.clock import HOUR, SECOND
from stentor.core.errors import Conflict, Forbidden, StentorError
from stentor.core.formats import canonical_json
from stentor.core.jsontext import JsonObject

UpdateStatus = Literal["submitted", "approved", "rejected", "deploying", "deployed", "rolled_back"]
RollbackStatus = Literal["initiated", "in_progress", "completed", "failed"]
CheckpointCause = Literal["manual", "deployment", "clear_violations", "trust_change"]

AUTO, MONITORED, HUMAN = 1, 2, 3
TIER_NUMBERS = {"auto": AUTO, "monitored": MONITORED, "human": HUMAN}
TIER_NAMES = {number: name for name, number in TIER_NUMBERS.items()}
APPROVAL_DEADLINES = {AUTO: 300 * SECOND, MONITORED: 24 * HOUR, HUMAN: 72 * HOUR}
"""Time for an approval, in microseconds. After it an update is overdue, but still waits."""
SYSTEM_ACTOR: Final = "system"
"""The actor of decisions and deployments that no principal made."""


class SelfApproval(Forbidden):
    """The proposer of an update and the updated agent may not approve it."""

    code = "GOVERNANCE_SELF_APPROVAL"


class RiskNotOverridden(Conflict):
    """The update has a risk that an approval must accept explicitly, with `override_risk`."""

    code = "GOVERNANCE_RISK_NOT_OVERRIDDEN"


class CheckpointCorrupt(Conflict):
    """The stored state does not match its hash; it is never restored."""

    code = "CHECKPOINT_CORRUPT"


class TrustNotComputable(StentorError):
    """No metric is known from which trust could be computed."""

    code, status = "TRUST_NOT_COMPUTABLE", 422


class Changes(msgspec.Struct, frozen=True):
    """The change as the proposer describes it; None means not stated."""

    files_modified: tuple[str, ...] = ()
    lines_added: int = 0
    lines_deleted: int = 0
    lines_total: int | None = None
    breaking: bool | None = None
    new_dependencies: bool | None = None
    touches_policy: bool | None = None
    agent_patch: JsonObject | None = None

    @property
    def changed_ratio(self) -> float | None:
        """Changed lines divided by all lines; None if the total is unknown or zero."""
        return (self.lines_added + self.lines_deleted) / self.lines_total if self.lines_total else None


class Proposal(msgspec.Struct, frozen=True):
    """An update as it was proposed."""

    update_id: str
    agent_id: str
    update_type: str
    description: str
    changes: Changes
    checkpoint_id: str | None = None

    @property
    def body_hash(self) -> str:
        return canonical_json.digest(msgspec.to_builtins(self))


class TierBasis(msgspec.Struct, frozen=True):
    """The basis of a tier. `risks` must be overridden by an approval; `diff` is that of the patch."""

    trust: float | None
    ratio: float | None
    reasons: tuple[str, ...]
    risks: tuple[str, ...] = ()
    diff: tuple[JsonObject, ...] = ()


class Update(msgspec.Struct, frozen=True):
    """A stored update. Times are in microseconds; `provenance_id` is its first event, `head_id` its latest.

    A `patched` one changes the registry's record of the agent, so this service deploys it itself.
    """

    tenant: str
    update_id: str
    agent_id: str
    status: UpdateStatus
    tier: int
    patched: bool
    update_type: str
    description: str
    changes: Changes
    named_checkpoint: str | None
    proposed_by: str
    body_hash: str
    submitted_status: UpdateStatus
    basis: TierBasis
    base_hash: str | None
    submitted_at: int
    approval_deadline: int
    provenance_id: str
    head_id: str
    updated_at: int
    decided_by: str | None = None
    decision: JsonObject | None = None
    approved_at: int | None = None
    rejected_at: int | None = None
    deployed_at: int | None = None
    rolled_back_at: int | None = None
    checkpoint_id: str | None = None
    test_results: JsonObject | None = None
    notes: str | None = None


class Approval(msgspec.Struct, frozen=True):
    """An approval. `claimed` is the admin id in the body, stored as given; the principal is the actual actor."""

    claimed: str | None = None
    rationale: str | None = None
    override_risk: bool = False


class Rejection(msgspec.Struct, frozen=True):
    claimed: str | None = None
    reason: str | None = None
    feedback: str | None = None


class UpdateFilter(msgspec.Struct, frozen=True):
    """A filter; None means all. `before` is (submitted_at, update_id) of the last update of the previous page."""

    status: str | None = None
    tier: int | None = None
    agent_id: str | None = None
    before: tuple[int, str] | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    """A stored checkpoint: `state` is canonical JSON, `state_hash` its hash when it was taken."""

    tenant: str
    checkpoint_id: str
    agent_id: str
    cause: CheckpointCause
    state: str
    state_hash: str
    taken_by: str
    taken_at: int
    provenance_id: str


class RollbackDraft(msgspec.Struct, frozen=True):
    checkpoint_id: str
    reason: str
    details: str | None = None
    claimed: str | None = None


class Rollback(msgspec.Struct, frozen=True):
    """A stored rollback; `update_id` is the failed update that it undoes, if any."""

    tenant: str
    rollback_id: str
    checkpoint_id: str
    agent_id: str
    update_id: str | None
    status: RollbackStatus
    initiated_by: str
    claimed_by: str | None
    reason: str
    details: str | None
    initiated_at: int
    estimated_completion: int
    completed_at: int | None
    verified: bool
    notes: str | None
    provenance_id: str
    head_id: str
