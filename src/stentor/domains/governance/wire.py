"""Wire models of governance."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from stentor.core import ids
from stentor.core.jsontext import JsonObject
from stentor.domains.governance.model import (
    Approval,
    Changes,
    CheckpointCause,
    Proposal,
    Rejection,
    RollbackDraft,
    RollbackStatus,
    UpdateStatus,
)
from stentor.domains.governance.trust_formula import TrustMetrics
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    Name,
    OmittedWhenNone,
    Reason,
    ResponseModel,
    Score,
    StructFields,
    Text,
    Timestamp,
    UuidText,
)

# Up to this bound every reader keeps a JSON integer exactly, even one that reads numbers as doubles.
Count = Annotated[int, Field(ge=0, le=2**53)]
Hours = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
# A check that only passes or fails may be given as true or false.
Share = bool | Score


class ChangesIn(RequestModel):
    files_modified: Annotated[list[Annotated[Text, StringConstraints(max_length=4096)]], Field(max_length=10_000)]
    lines_added: Count
    lines_deleted: Count
    lines_total: Count | None = None
    breaking: bool | None = None
    new_dependencies: bool | None = None
    touches_policy: bool | None = None
    agent_patch: JsonObject | None = None


class Propose(RequestModel):
    model_config = example_config(
        update_id="018f3a2e-0000-7000-8000-000000000001",
        agent_id="018f3a2e-0000-7000-8000-000000000002",
        update_type="prompt",
        description="Shorter answers.",
        changes={
            **dict.fromkeys(("breaking", "new_dependencies", "touches_policy"), False),
            "files_modified": ["prompts/answer.md"],
            "lines_added": 3,
            "lines_deleted": 1,
            "lines_total": 900,
        },
        checkpoint_id=None,
    )

    update_id: Annotated[UuidText, Field(default_factory=ids.new_id)]
    agent_id: UuidText
    update_type: Name
    description: Text
    changes: ChangesIn
    checkpoint_id: UuidText | None = None

    def to_proposal(self) -> Proposal:
        given = self.changes.model_dump()
        changes = Changes(**given | {"files_modified": tuple(given["files_modified"])})
        return Proposal(self.update_id, self.agent_id, self.update_type, self.description, changes, self.checkpoint_id)


class Approve(RequestModel):
    model_config = example_config(approved_by="dana", rationale="The tests are green.", override_risk=False)

    approved_by: Name
    rationale: Reason
    override_risk: bool

    def to_approval(self) -> Approval:
        return Approval(self.approved_by, self.rationale, self.override_risk)


class Reject(RequestModel):
    model_config = example_config(
        rejected_by="dana", reason="It drops the sources.", feedback="Keep the list of sources."
    )

    rejected_by: Name
    reason: Reason
    feedback: Text

    def to_rejection(self) -> Rejection:
        return Rejection(self.rejected_by, self.reason, self.feedback)


class Tests(RequestModel):
    passed: Annotated[int, Field(ge=0, le=2**31)]
    failed: Annotated[int, Field(ge=0, le=2**31)]


class TestResults(RequestModel):
    unit_tests: Tests | None = None
    integration_tests: Tests | None = None

    @model_validator(mode="after")
    def _require_results(self) -> TestResults:
        if self.unit_tests is None and self.integration_tests is None:
            raise ValueError("give unit_tests, integration_tests or both")
        return self


class Deployed(RequestModel):
    model_config = example_config(
        test_results={"unit_tests": {"passed": 120, "failed": 0}, "integration_tests": {"passed": 9, "failed": 0}}
    )

    test_results: TestResults


class TakeCheckpoint(RequestModel):
    model_config = example_config(agent_id="018f3a2e-0000-7000-8000-000000000002")

    agent_id: UuidText


class StartRollback(RequestModel):
    model_config = example_config(
        checkpoint_id="018f3a2e-0000-7000-8000-000000000003",
        initiated_by="dana",
        reason="It answers without sources.",
        details="Since the new prompt.",
    )

    checkpoint_id: UuidText
    initiated_by: Name
    reason: Reason
    details: Text

    def to_draft(self) -> RollbackDraft:
        return RollbackDraft(self.checkpoint_id, self.reason, self.details, self.initiated_by)


class MetricsIn(RequestModel):
    successful_executions: Count | None = None
    total_executions: Count | None = None
    recent_violation_count: Count | None = None
    coverage_ratio: Score | None = None
    passed_lints: Share | None = None
    no_dead_code: Share | None = None
    approved_updates: Count | None = None
    total_update_attempts: Count | None = None
    downtime_hours: Hours | None = None
    total_hours: Hours | None = None


class ComputeTrust(RequestModel):
    model_config = example_config(
        metrics={"successful_executions": 95, "total_executions": 100, "recent_violation_count": 0}, persist=True
    )

    metrics: MetricsIn | None = None
    persist: bool = True

    def to_metrics(self) -> TrustMetrics | None:
        if self.metrics is None:
            return None
        values = self.metrics.model_dump()
        for name in ("passed_lints", "no_dead_code"):
            values[name] = None if values[name] is None else float(values[name])
        return TrustMetrics(**values)


class ProposedOut(ResponseModel):
    update_id: str
    status: UpdateStatus
    tier: int
    approval_deadline: Timestamp
    notice: str | None = OmittedWhenNone


class DiffOut(ResponseModel):
    path: str
    before: Any
    after: Any


class UpdateOut(ResponseModel):
    """`agent_name` is null for an agent that does not exist."""

    update_id: str
    agent_id: str
    agent_name: str | None
    status: UpdateStatus
    tier: int
    submitted_at: Timestamp
    approved_at: Timestamp | None
    deployed_at: Timestamp | None
    test_results: JsonObject | None
    rejected_at: Timestamp | None
    rolled_back_at: Timestamp | None
    approval_deadline: Timestamp
    update_type: str
    description: str
    changes: StructFields
    diff: list[DiffOut]
    proposed_by: str
    trust: float | None
    ratio: float | None
    reasons: list[str]
    risks: list[str]
    decided_by: str | None
    decision: JsonObject | None
    checkpoint_id: str | None
    named_checkpoint: str | None
    notes: str | None
    provenance_id: str


class UpdateDetail(UpdateOut):
    """`may_approve` says whether the caller could approve it now; a risk must still be accepted.

    `approval_problem` says why not, and who could; null if the caller could.
    """

    may_approve: bool
    approval_problem: str | None


class UpdatePage(ResponseModel):
    updates: list[UpdateOut]
    limit: int
    next_cursor: str | None


class PendingOut(ResponseModel):
    update_id: str
    agent_id: str
    tier: int
    submitted_at: Timestamp
    deadline: Annotated[Timestamp, Field(validation_alias="approval_deadline")]
    status: UpdateStatus
    update_type: str
    risks: list[str]


class Approvals(ResponseModel):
    pending: list[PendingOut]
    count: int
    overdue: int


class ApprovedOut(ResponseModel):
    update_id: str
    status: UpdateStatus
    deployment_scheduled: Annotated[bool, Field(validation_alias="patched")]
    deployment_time: Timestamp | None


class RejectedOut(ResponseModel):
    update_id: str
    status: UpdateStatus
    rejected_at: Timestamp


class CheckpointOut(ResponseModel):
    checkpoint_id: str
    agent_id: str
    cause: CheckpointCause
    state_hash: str
    intact: bool
    taken_by: str
    taken_at: Timestamp
    state: JsonObject | None


class CheckpointPage(ResponseModel):
    checkpoints: list[CheckpointOut]
    limit: int
    next_cursor: str | None


class StartedOut(ResponseModel):
    rollback_id: str
    checkpoint_id: str
    status: RollbackStatus
    estimated_completion: Timestamp


class RollbackOut(ResponseModel):
    rollback_id: str
    checkpoint_id: str
    status: RollbackStatus
    initiated_at: Timestamp
    completed_at: Timestamp | None
    verified: bool
    notes: str | None
    agent_id: str
    update_id: str | None
    initiated_by: str
    claimed_by: str | None
    reason: str
    details: str | None
    provenance_id: str


class RollbackPage(ResponseModel):
    rollbacks: list[RollbackOut]
    limit: int
    next_cursor: str | None


class BreakdownOut(ResponseModel):
    components: dict[str, float]
    weights: dict[str, float]
    contributions: dict[str, float]
    missing: list[str]


class TrustBreakdownOut(ResponseModel):
    agent_id: str
    trust_score: float
    persisted: bool
    reason: str | None
    breakdown: BreakdownOut
