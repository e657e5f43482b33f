"""The body types of all actions, and how a message's content is parsed into one.

Source: core contract, "ATP message", and docs/atp.md. `messaging/actions` executes the bodies.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

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
from pydantic.fields import FieldInfo

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import (
    UUID_PATTERN,
    check_iso8601,
    check_no_nul,
    check_not_blank,
    check_printable,
    check_start,
    check_utc,
)
from stentor.core.validation.unknown_fields import explain_unknown_fields
from stentor.core.validation.validation_errors import field_errors, list_errors
from stentor.domains.atp import header
from stentor.domains.atp.model import AtpMessage, FieldError, MessageInvalid
from stentor.domains.atp.text_format import strip_header

MAX_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS = 86_400, 300
MAX_DELAY_SECONDS = 365 * 86_400

Name = Annotated[str, Length(min_length=1, max_length=255), AfterValidator(check_printable)]
VisibleName = Annotated[Name, AfterValidator(check_not_blank)]
Uuid = Annotated[str, Length(pattern=UUID_PATTERN, to_lower=True)]
# Not strict: in strict mode only a datetime object passes, and JSON has none. `check_iso8601` keeps numbers out.
Time = Annotated[AwareDatetime, Strict(strict=False), BeforeValidator(check_iso8601), AfterValidator(check_utc)]
Prose = Annotated[str, Length(max_length=10_000), AfterValidator(check_no_nul)]
Reason = Annotated[str, Length(strip_whitespace=True, min_length=1, max_length=10_000), AfterValidator(check_no_nul)]
Path = Annotated[str, Length(min_length=1, max_length=4096)]
Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Hash = Annotated[str, Length(pattern=r"^[0-9a-f]{64}$")]


class ActionBody(BaseModel):
    """Base of all bodies: rejects unknown fields and does not convert types."""

    # defer_build: building the validators of all actions takes a fiftieth of the start, and a message needs one.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class TaskSpec(ActionBody):
    id: Name | None = None
    type: VisibleName
    input: Any
    required_capabilities: Annotated[list[Name], Field(max_length=64)] = []
    timeout_seconds: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_SECONDS)] = DEFAULT_TIMEOUT_SECONDS
    agent_preference: Uuid | None = None


class ExecuteBody(ActionBody):
    task: TaskSpec


class ScheduleBody(ExecuteBody):
    """Without a time the message is processed as soon as its turn in the queue comes."""

    run_at: Annotated[Time, AfterValidator(check_start)] | None = None
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
    """`vault` is a name from SERVICE_VAULTS; None is the default vault."""

    vault: Name | None = None


class MemoryQueryBody(VaultBody):
    """`path` is required for exact reads, `text` for all other query types.

    `as_of` searches what held at a date or time, `include_invalid` also what is invalid.
    """

    query_type: Literal["semantic", "keyword", "hybrid", "exact"] | None = None
    text: Annotated[str, Length(min_length=1, max_length=10_000)] | None = None
    path: Path | None = None
    top_k: Annotated[int, Field(ge=1, le=200)] = 10
    as_of: Annotated[str, Length(min_length=1, max_length=40)] | None = None
    include_invalid: bool = False
    filters: MemoryQueryFilters = MemoryQueryFilters()


class WriteDocumentBody(VaultBody):
    path: Path
    content: str
    frontmatter: JsonObject | None = None


class UpdateDocumentBody(VaultBody):
    path: Path
    content: str | None = None
    frontmatter: JsonObject | None = None
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
    """The body of the registry's REST route; the registry itself validates runtime and sandbox."""

    name: VisibleName
    capabilities: Annotated[list[VisibleName], Field(max_length=256)] = []
    alignment_score: Score = 0.5
    accuracy_score: Score = 0.5
    efficiency_score: Score = 0.5
    trust_tier: Literal["auto", "monitored", "human"] = "monitored"
    sandbox_whitelist: JsonObject = {}
    runtime: JsonObject = {}
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
    agent_patch: JsonObject | None = None


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
    """An approval that explicitly accepts the risks of the update, with a rationale."""

    approved_by: Name | None = None
    rationale: Reason


class RollbackBody(ActionBody):
    checkpoint_id: Uuid
    initiated_by: Name | None = None
    reason: Reason
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


def describe_fields(body_type: type[BaseModel]) -> str:
    """Return the fields of a body as text, such as `task {type, input, id?}`; `?` marks those that may be left out."""
    return ", ".join(_describe_field(name, field) for name, field in body_type.model_fields.items())


def _describe_field(name: str, field: FieldInfo) -> str:
    text = name if field.is_required() else f"{name}?"
    inner, is_list = field.annotation, get_origin(field.annotation) is list
    types = [inner, *get_args(inner)]
    body = next((each for each in types if isinstance(each, type) and issubclass(each, ActionBody)), None)
    if body is None:
        return text
    return f"{text} [{{{describe_fields(body)}}}]" if is_list else f"{text} {{{describe_fields(body)}}}"


CONTENT_FIELD = "payload.content"
TEXT_QUESTION_ACTIONS = {("kernel", "query")}
"""Plain text as the content is a question to an agent; a JSON object names a task to look up."""


def parse_body(message: AtpMessage) -> ActionBody:
    """Parse the content of a message into the body type of its zone and action.

    Raises MessageInvalid with every error found, also for an action that the zone does not have.
    """
    body_type = BODY_TYPES.get(message.header.zone_action)
    if body_type is None:
        zone, action = message.header.zone_action
        actions = ", ".join(sorted(name for zone_name, name in BODY_TYPES if zone_name == zone))
        problem = f"the zone {zone} has no action {action}; it has {actions}"
        raise MessageInvalid([FieldError("header.actionType", problem)])
    if message.header.zone_action in TEXT_QUESTION_ACTIONS and _is_text(message.content):
        body_type = ExecuteBody
    try:
        body = body_type.model_validate(_decode_body(message, body_type))
    except ValidationError as error:
        problems = field_errors(explain_unknown_fields(list_errors(error), body_type))["fields"]
        raise MessageInvalid(
            [FieldError(".".join(filter(None, (CONTENT_FIELD, name))), problem) for name, problem in problems.items()]
        ) from None
    if errors := _check_combinations(message, body):
        raise MessageInvalid(errors)
    return body


def decode_content(content: str) -> Any:
    """Decode a content as JSON; return None if it is not JSON."""
    try:
        return jsontext.decode(content.encode())
    except (InvalidRequest, UnicodeEncodeError):
        return None


def _is_text(content: str) -> bool:
    # An empty content is not text: it stands for a body without fields.
    return content.lstrip(" \t\r\n")[:1] not in ("{", "")


def _decode_body(message: AtpMessage, body_type: type[ActionBody]) -> JsonObject:
    """Decode the content to an object. Tasks and searches may also be given as plain text."""
    content = message.content
    if _is_text(content):
        if issubclass(body_type, ExecuteBody):
            # An agent must not see an envelope that the sender smuggles into the text: the header decides who runs it.
            return {"task": {"type": header.task_type_of_text(message.header), "input": strip_header(content)}}
        if body_type is MemoryQueryBody:
            return {"text": content}
    if not content.strip():
        if any(field.is_required() for field in body_type.model_fields.values()):
            raise MessageInvalid([FieldError(CONTENT_FIELD, "must not be empty")])
        return {}
    try:
        value = jsontext.decode(content.encode())
    except InvalidRequest as error:
        raise MessageInvalid([FieldError(CONTENT_FIELD, f"must be a JSON object: {error.message}")]) from None
    if not isinstance(value, dict):
        raise MessageInvalid([FieldError(CONTENT_FIELD, "must be a JSON object")])
    return value


def _check_combinations(message: AtpMessage, body: ActionBody) -> list[FieldError]:
    """Check rules that involve several fields, or the header and the body."""
    errors = []
    if isinstance(body, ScheduleBody) and body.run_at is not None and body.delay_seconds is not None:
        errors.append(FieldError(f"{CONTENT_FIELD}.delay_seconds", "conflicts with run_at; give only one of them"))
    if isinstance(body, ExecuteBody):
        named, preferred = header.named_agent(message.header), body.task.agent_preference
        if named is not None and preferred is not None and named != preferred:
            errors.append(
                FieldError(
                    f"{CONTENT_FIELD}.task.agent_preference",
                    "differs from the agent in specialNotes; leave one out",
                )
            )
    if isinstance(body, MemoryQueryBody):
        required = "path" if body.query_type == "exact" else "text"
        if getattr(body, required) is None:
            errors.append(FieldError(f"{CONTENT_FIELD}.{required}", "is required"))
    return errors
