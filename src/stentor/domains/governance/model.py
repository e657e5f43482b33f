"""Updates, checkpoints and rollbacks as values. Source: core contract, "Governance update" and "Rollback"."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from stentor.core import canonical_json
from stentor.core.clock import HOUR, SECOND
from stentor.core.errors import Conflict, Forbidden, StentorError

UpdateStatus = Literal["submitted", "approved", "rejected", "deploying", "deployed", "rolled_back"]
RollbackStatus = Literal["initiated", "in_progress", "completed", "failed"]
CheckpointCause = Literal["manual", "deployment", "clear_violations", "trust_change"]

AUTO, MONITORED, HUMAN = 1, 2, 3
TIER_NUMBERS = {"auto": AUTO, "monitored": MONITORED, "human": HUMAN}
TIER_NAMES = {number: name for name, number in TIER_NUMBERS.items()}
APPROVAL_DEADLINES = {AUTO: 300 * SECOND, MONITORED: 24 * HOUR, HUMAN: 72 * HOUR}
"""How long an approval may take, in microseconds. Past it an update is overdue, and still waits."""
SYSTEM_ACTOR: Final = "system"
"""Who decides and deploys when no principal does."""


class SelfApproval(Forbidden):
    """Who proposed an update, or the updated agent itself, may not approve it."""

    code = "GOVERNANCE_SELF_APPROVAL"


class RiskNotOverridden(Conflict):
    """The update carries a risk that an approval must accept in so many words, with `override_risk`."""

    code = "GOVERNANCE_RISK_NOT_OVERRIDDEN"


class CheckpointCorrupt(Conflict):
    """The stored state does not have the hash that was taken of it; it is never restored."""

    code = "CHECKPOINT_CORRUPT"


class TrustNotComputable(StentorError):
    """Nothing is known that trust could be computed from."""

    code, status = "TRUST_NOT_COMPUTABLE", 422


class Changes(msgspec.Struct, frozen=True):
    """What an update changes, as its proposer says. None: the proposer does not say."""

    files_modified: tuple[str, ...] = ()
    lines_added: int = 0
    lines_deleted: int = 0
    lines_total: int | None = None
    breaking: bool | None = None
    new_dependencies: bool | None = None
    touches_policy: bool | None = None
    agent_patch: dict[str, Any] | None = None

    @property
    def changed_ratio(self) -> float | None:
        """Changed lines over all lines; None when the total is unknown or zero."""
        return (self.lines_added + self.lines_deleted) / self.lines_total if self.lines_total else None


class Proposal(msgspec.Struct, frozen=True):
    """An update as it was asked for."""

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
    """What a tier was decided on. `risks` are the words that an approval must override; `diff` is of the patch."""

    trust: float | None
    ratio: float | None
    reasons: tuple[str, ...]
    risks: tuple[str, ...] = ()
    diff: tuple[dict[str, Any], ...] = ()


class Update(msgspec.Struct, frozen=True):
    """A stored update. Times in microseconds; `provenance_id` is its first event, `head_id` its last."""

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
    decision: dict[str, Any] | None = None
    approved_at: int | None = None
    rejected_at: int | None = None
    deployed_at: int | None = None
    rolled_back_at: int | None = None
    checkpoint_id: str | None = None
    test_results: dict[str, Any] | None = None
    notes: str | None = None

    @property
    def is_scheduled(self) -> bool:
        """Whether this service deploys it itself."""
        return self.patched


class Approval(msgspec.Struct, frozen=True):
    """`claimed` is the admin id of the body: it is kept as what was said, the principal is who did it."""

    claimed: str | None = None
    rationale: str | None = None
    override_risk: bool = False


class Rejection(msgspec.Struct, frozen=True):
    claimed: str | None = None
    reason: str | None = None
    feedback: str | None = None


class UpdateFilter(msgspec.Struct, frozen=True):
    """Which updates; None means all. `before` is (submitted_at, update_id) of the last one that was seen."""

    status: str | None = None
    tier: int | None = None
    agent_id: str | None = None
    before: tuple[int, str] | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    """`state` is canonical JSON as it was stored, `state_hash` what was taken of it."""

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
    """With `update_id` it undoes an update whose tests failed."""

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
