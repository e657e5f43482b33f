"""What the bodies of the actions hold. Source: core contract, "ATP message", and docs/atp.md."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic import StringConstraints as Length

MAX_TIMEOUT, DEFAULT_TIMEOUT = 86_400, 300
YEAR = 365 * 86_400
_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must consist of printable characters")
    return text


def _iso8601(text: object) -> object:
    if not isinstance(text, str) or not _TIME.match(text):
        raise ValueError("must be a time with its zone, such as 2026-11-20T21:45:00Z")
    return text


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain the character NUL")
    return text


Name = Annotated[str, Length(min_length=1, max_length=255), AfterValidator(_printable)]
Uuid = Annotated[str, Length(pattern=_UUID), AfterValidator(str.lower)]
Time = Annotated[AwareDatetime, Strict(strict=False), BeforeValidator(_iso8601)]
Prose = Annotated[str, Length(max_length=10_000), AfterValidator(_no_nul)]
Path = Annotated[str, Length(min_length=1, max_length=4096)]
Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Hash = Annotated[str, Length(pattern=r"^[0-9a-f]{64}$")]


class Body(BaseModel):
    """Unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Nothing(Body):
    """An action that needs no word."""


class TaskIn(Body):
    id: Name | None = None
    type: Name
    input: Any
    required_capabilities: Annotated[list[Name], Field(max_length=64)] = []
    timeout_seconds: Annotated[int, Field(ge=1, le=MAX_TIMEOUT)] = DEFAULT_TIMEOUT
    agent_preference: Uuid | None = None


class Execute(Body):
    task: TaskIn


class Schedule(Execute):
    """Without a time it is carried out when its turn comes."""

    run_at: Time | None = None
    delay_seconds: Annotated[int, Field(ge=0, le=YEAR)] | None = None


class OfTask(Body):
    task_id: Name


class Judgement(OfTask):
    reason: Prose | None = None


class ListTasks(Body):
    status: Name | None = None
    agent_id: Name | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class Filters(Body):
    hebbian_weight_min: Annotated[float, Field(allow_inf_nan=False)] | None = None
    created_after: Time | None = None


class OfVault(Body):
    """`vault` is a name of SERVICE_VAULTS; without one it is the default vault."""

    vault: Name | None = None


class Query(OfVault):
    """`path` is for exact reads, `text` for all others."""

    query_type: Literal["semantic", "keyword", "hybrid", "exact"] | None = None
    text: Annotated[str, Length(min_length=1, max_length=10_000)] | None = None
    path: Path | None = None
    top_k: Annotated[int, Field(ge=1, le=200)] = 10
    filters: Filters = Filters()


class Document(OfVault):
    path: Path
    content: str
    frontmatter: dict[str, Any] | None = None


class Update(OfVault):
    path: Path
    content: str | None = None
    frontmatter: dict[str, Any] | None = None
    base_hash: Hash | None = None
    conflict_resolution: Literal["last_write_wins", "abort", "merge"] = "last_write_wins"


class Delete(OfVault):
    path: Path
    base_hash: Hash | None = None
    conflict_resolution: Literal["last_write_wins", "abort"] = "last_write_wins"


class Operation(Body):
    agent_id: Uuid
    field: Name
    value: Any


class Operations(Body):
    operations: Annotated[list[Operation], Field(min_length=1, max_length=1000)]


class Register(Body):
    """As the registry's route takes it; the registry looks at the rest."""

    name: Name
    capabilities: Annotated[list[Name], Field(max_length=256)] = []
    alignment_score: Score = 0.5
    accuracy_score: Score = 0.5
    efficiency_score: Score = 0.5
    trust_tier: Literal["auto", "monitored", "human"] = "monitored"
    sandbox_whitelist: dict[str, Any] = {}
    runtime: dict[str, Any] = {}
    key_name: Name | None = None


class OfAgent(Body):
    agent_id: Uuid


class Revoke(OfAgent):
    reason: Prose = "Revoked by a message."


class ListAgents(Body):
    capability: Name | None = None
    status: Literal["active", "suspended", "quarantined"] | None = None
    trust_tier: Literal["auto", "monitored", "human"] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class Changes(Body):
    files_modified: Annotated[list[Annotated[str, Length(max_length=4096)]], Field(max_length=10_000)]
    lines_added: Count
    lines_deleted: Count
    lines_total: Count | None = None
    breaking: bool | None = None
    new_dependencies: bool | None = None
    touches_policy: bool | None = None
    agent_patch: dict[str, Any] | None = None


class ProposeUpdate(Body):
    update_id: Uuid
    agent_id: Uuid
    update_type: Name
    description: Prose
    changes: Changes
    checkpoint_id: Uuid | None


class OfUpdate(Body):
    update_id: Uuid


class ApproveUpdate(OfUpdate):
    approved_by: Name | None = None
    rationale: Prose | None = None
    override_risk: bool = False


class RejectUpdate(OfUpdate):
    rejected_by: Name | None = None
    reason: Prose | None = None
    feedback: Prose | None = None


class OverrideRisk(OfUpdate):
    """An approval that accepts the risks of the update in so many words."""

    approved_by: Name | None = None
    rationale: Annotated[Prose, Length(min_length=1)]


class Rollback(Body):
    checkpoint_id: Uuid
    initiated_by: Name | None = None
    reason: Annotated[Prose, Length(min_length=1)]
    details: Prose | None = None


SHAPES: dict[tuple[str, str], type[Body]] = {
    ("kernel", "execute"): Execute,
    ("kernel", "schedule"): Schedule,
    ("kernel", "cancel"): OfTask,
    ("kernel", "retry"): OfTask,
    ("kernel", "approve"): Judgement,
    ("kernel", "reject"): Judgement,
    ("kernel", "query"): OfTask,
    ("kernel", "get_status"): OfTask,
    ("kernel", "list"): ListTasks,
    ("memory", "query"): Query,
    ("memory", "search"): Query,
    ("memory", "create"): Document,
    ("memory", "upsert"): Document,
    ("memory", "update"): Update,
    ("memory", "delete"): Delete,
    ("memory", "get_status"): OfVault,
    ("registry", "register"): Register,
    ("registry", "update"): Operations,
    ("registry", "revoke"): Revoke,
    ("registry", "query"): OfAgent,
    ("registry", "get_status"): OfAgent,
    ("registry", "list"): ListAgents,
    ("governance", "propose_update"): ProposeUpdate,
    ("sandbox", "execute"): Execute,
    ("governance", "approve"): ApproveUpdate,
    ("governance", "reject"): RejectUpdate,
    ("governance", "override"): OverrideRisk,
    ("governance", "rollback"): Rollback,
}
