"""What the bodies of the actions hold. Source: core contract, "ATP message", and docs/atp.md.

From a message to the body that its action takes, with all that is wrong in it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
)
from pydantic import StringConstraints as Length

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.atp import header
from stentor.domains.atp.model import AtpMessage, FieldError, MessageInvalid
from stentor.domains.atp.text_format import strip_header

MAX_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS = 86_400, 300
MAX_DELAY_SECONDS = 365 * 86_400
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


class ActionBody(BaseModel):
    """Unknown fields and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Nothing(ActionBody):
    """An action that needs no word."""


class TaskSpec(ActionBody):
    id: Name | None = None
    type: Name
    input: Any
    required_capabilities: Annotated[list[Name], Field(max_length=64)] = []
    timeout_seconds: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_SECONDS)] = DEFAULT_TIMEOUT_SECONDS
    agent_preference: Uuid | None = None


class ExecuteBody(ActionBody):
    task: TaskSpec


class ScheduleBody(ExecuteBody):
    """Without a time it is carried out when its turn comes."""

    run_at: Time | None = None
    delay_seconds: Annotated[int, Field(ge=0, le=MAX_DELAY_SECONDS)] | None = None


class TaskIdBody(ActionBody):
    task_id: Name


class TaskDecisionBody(TaskIdBody):
    reason: Prose | None = None


class ListTasksBody(ActionBody):
    status: Name | None = None
    agent_id: Name | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class MemoryQueryFilters(ActionBody):
    hebbian_weight_min: Annotated[float, Field(allow_inf_nan=False)] | None = None
    created_after: Time | None = None


class VaultBody(ActionBody):
    """`vault` is a name of SERVICE_VAULTS; without one it is the default vault."""

    vault: Name | None = None


class MemoryQueryBody(VaultBody):
    """`path` is for exact reads, `text` for all others."""

    query_type: Literal["semantic", "keyword", "hybrid", "exact"] | None = None
    text: Annotated[str, Length(min_length=1, max_length=10_000)] | None = None
    path: Path | None = None
    top_k: Annotated[int, Field(ge=1, le=200)] = 10
    filters: MemoryQueryFilters = MemoryQueryFilters()


class WriteDocumentBody(VaultBody):
    path: Path
    content: str
    frontmatter: dict[str, Any] | None = None


class UpdateDocumentBody(VaultBody):
    path: Path
    content: str | None = None
    frontmatter: dict[str, Any] | None = None
    base_hash: Hash | None = None
    conflict_resolution: Literal["last_write_wins", "abort", "merge"] = "last_write_wins"


class DeleteDocumentBody(VaultBody):
    path: Path
    base_hash: Hash | None = None
    conflict_resolution: Literal["last_write_wins", "abort"] = "last_write_wins"


class AgentFieldChange(ActionBody):
    agent_id: Uuid
    field: Name
    value: Any


class UpdateAgentsBody(ActionBody):
    operations: Annotated[list[AgentFieldChange], Field(min_length=1, max_length=1000)]


class RegisterAgentBody(ActionBody):
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


class AgentIdBody(ActionBody):
    agent_id: Uuid


class RevokeAgentBody(AgentIdBody):
    reason: Prose = "Revoked by a message."


class ListAgentsBody(ActionBody):
    capability: Name | None = None
    status: Literal["active", "suspended", "quarantined"] | None = None
    trust_tier: Literal["auto", "monitored", "human"] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class ProposedChanges(ActionBody):
    files_modified: Annotated[list[Annotated[str, Length(max_length=4096)]], Field(max_length=10_000)]
    lines_added: Count
    lines_deleted: Count
    lines_total: Count | None = None
    breaking: bool | None = None
    new_dependencies: bool | None = None
    touches_policy: bool | None = None
    agent_patch: dict[str, Any] | None = None


class ProposeUpdateBody(ActionBody):
    update_id: Uuid
    agent_id: Uuid
    update_type: Name
    description: Prose
    changes: ProposedChanges
    checkpoint_id: Uuid | None


class UpdateIdBody(ActionBody):
    update_id: Uuid


class ApproveUpdateBody(UpdateIdBody):
    approved_by: Name | None = None
    rationale: Prose | None = None
    override_risk: bool = False


class RejectUpdateBody(UpdateIdBody):
    rejected_by: Name | None = None
    reason: Prose | None = None
    feedback: Prose | None = None


class OverrideRiskBody(UpdateIdBody):
    """An approval that accepts the risks of the update in so many words."""

    approved_by: Name | None = None
    rationale: Annotated[Prose, Length(min_length=1)]


class RollbackBody(ActionBody):
    checkpoint_id: Uuid
    initiated_by: Name | None = None
    reason: Annotated[Prose, Length(min_length=1)]
    details: Prose | None = None


BODY_TYPES: dict[tuple[str, str], type[ActionBody]] = {
    ("kernel", "execute"): ExecuteBody,
    ("kernel", "schedule"): ScheduleBody,
    ("kernel", "cancel"): TaskIdBody,
    ("kernel", "retry"): TaskIdBody,
    ("kernel", "approve"): TaskDecisionBody,
    ("kernel", "reject"): TaskDecisionBody,
    ("kernel", "query"): TaskIdBody,
    ("kernel", "get_status"): TaskIdBody,
    ("kernel", "list"): ListTasksBody,
    ("memory", "query"): MemoryQueryBody,
    ("memory", "search"): MemoryQueryBody,
    ("memory", "create"): WriteDocumentBody,
    ("memory", "upsert"): WriteDocumentBody,
    ("memory", "update"): UpdateDocumentBody,
    ("memory", "delete"): DeleteDocumentBody,
    ("memory", "get_status"): VaultBody,
    ("registry", "register"): RegisterAgentBody,
    ("registry", "update"): UpdateAgentsBody,
    ("registry", "revoke"): RevokeAgentBody,
    ("registry", "query"): AgentIdBody,
    ("registry", "get_status"): AgentIdBody,
    ("registry", "list"): ListAgentsBody,
    ("governance", "propose_update"): ProposeUpdateBody,
    ("sandbox", "execute"): ExecuteBody,
    ("governance", "approve"): ApproveUpdateBody,
    ("governance", "reject"): RejectUpdateBody,
    ("governance", "override"): OverrideRiskBody,
    ("governance", "rollback"): RollbackBody,
}


CONTENT_FIELD = "payload.content"
TEXT_QUESTION_ACTIONS = {("kernel", "query")}
"""A plain text here is a question to an agent; an object asks for a task."""


def parse_body(message: AtpMessage) -> ActionBody:
    """Read the body that the action takes.

    Raises MessageInvalid with all that is wrong, and for an action that the zone does not have.
    """
    shape = BODY_TYPES.get(message.header.zone_action)
    if shape is None:
        raise MessageInvalid([_unknown_action_error(*message.header.zone_action)])
    if message.header.zone_action in TEXT_QUESTION_ACTIONS and _is_text(message.content):
        shape = ExecuteBody
    try:
        body = shape.model_validate(_decode_body(message, shape))
    except ValidationError as error:
        raise MessageInvalid(
            [_field_error(one) for one in error.errors(include_url=False, include_input=False)]
        ) from None
    if flaws := _check_combinations(message, body):
        raise MessageInvalid(flaws)
    return body


def decode_content(content: str) -> Any:
    """The JSON of a content, None for a text that is none."""
    try:
        return jsontext.decode(content.encode())
    except (InvalidRequest, UnicodeEncodeError):
        return None


def _is_text(content: str) -> bool:
    return content.lstrip(" \t\r\n")[:1] not in ("{", "")


def _decode_body(message: AtpMessage, shape: type[ActionBody]) -> Any:
    """The body as an object. Work for an agent and searches may be said in plain text."""
    content = message.content
    if _is_text(content):
        if issubclass(shape, ExecuteBody):
            return {"task": {"type": header.task_type_of_text(message.header), "input": strip_header(content)}}
        if shape is MemoryQueryBody:
            return {"text": content}
    if not content.strip() and not any(field.is_required() for field in shape.model_fields.values()):
        return {}
    try:
        value = jsontext.decode(content.encode())
    except InvalidRequest as error:
        raise MessageInvalid([FieldError(CONTENT_FIELD, f"must be a JSON object: {error.message}")]) from None
    if not isinstance(value, dict):
        raise MessageInvalid([FieldError(CONTENT_FIELD, "must be a JSON object")])
    return value


def _unknown_action_error(zone: str, action: str) -> FieldError:
    known = ", ".join(sorted(name for of, name in BODY_TYPES if of == zone))
    return FieldError("header.actionType", f"the zone {zone} has no action {action}; it has {known}")


def _field_error(error: Any) -> FieldError:
    return FieldError(".".join([CONTENT_FIELD, *(str(part) for part in error["loc"])]), str(error["msg"]))


def _check_combinations(message: AtpMessage, body: ActionBody) -> list[FieldError]:
    """What no field says alone."""
    flaws = []
    if isinstance(body, ScheduleBody) and body.run_at is not None and body.delay_seconds is not None:
        flaws.append(FieldError(f"{CONTENT_FIELD}.delay_seconds", "give either run_at or delay_seconds"))
    if isinstance(body, ExecuteBody):
        named, preferred = header.named_agent(message.header), body.task.agent_preference
        if named is not None and preferred is not None and named != preferred:
            flaws.append(
                FieldError(f"{CONTENT_FIELD}.task.agent_preference", "is not the agent that the envelope names")
            )
    if isinstance(body, MemoryQueryBody):
        wanted = "path" if body.query_type == "exact" else "text"
        if getattr(body, wanted) is None:
            flaws.append(FieldError(f"{CONTENT_FIELD}.{wanted}", "is required"))
    return flaws
