"""Response models of the dashboard's JSON API, and the error responses of its OpenAPI document.

Their names and docstrings are published there. `presenters.resources` builds the values.
"""

from __future__ import annotations

from typing import Any, Literal

from stentor.core.jsontext import JsonObject
from stentor.domains.activity.operations import EventOut, ReportOut
from stentor.domains.registry.model import AgentStatus as AgentStatus
from stentor.domains.registry.model import TrustTier
from stentor.domains.tasks.model import OutcomeClass, TaskStatus
from stentor.web.wire import RETRY_AFTER, ErrorAnswer, KeyRefused, ResponseModel, Timestamp, response_doc

DisplayStatus = TaskStatus | Literal["routing_failed"]
DASHBOARD_ERROR_RESPONSES: dict[int | str, JsonObject] = {
    400: response_doc(ErrorAnswer, "Malformed request"),
    401: response_doc(KeyRefused, "Missing or wrong key"),
    403: response_doc(ErrorAnswer, "Without a key: not from this machine's own address"),
    413: response_doc(ErrorAnswer, "The body is too large"),
}
NOT_FOUND_RESPONSE: dict[int | str, JsonObject] = {404: response_doc(ErrorAnswer, "No such record")}
UNREADABLE_RESPONSE: dict[int | str, JsonObject] = {500: response_doc(ErrorAnswer, "A store cannot be read")}
NO_GATEWAY_RESPONSES: dict[int | str, JsonObject] = {
    429: response_doc(ErrorAnswer, "Too many streams, or the gateway's limit", headers=RETRY_AFTER),
    503: response_doc(ErrorAnswer, "No gateway accepts the task", headers=RETRY_AFTER),
}


class TaskRecord(ResponseModel):
    """The fields of the task's note. `truncated` lists the fields that are cut to their first characters, as text."""

    task_id: str
    type: str
    status: DisplayStatus
    required_capabilities: list[str]
    assigned_agent: str | None
    created_at: Timestamp
    queued_at: Timestamp
    start_time: Timestamp | None
    completion_time: Timestamp | None
    duration_ms: int | None
    outcome_class: OutcomeClass | None
    learning_eligible: bool | None
    performance: float | None
    error_code: str | None
    provenance_id: str
    submitted_by: str
    epoch: int
    timeout_seconds: int
    agent_preference: str | None
    priority: str
    task_tags: list[str] | None
    user_id: str | None
    retry_count: int | None
    parent_task_id: str | None
    input: Any
    result: Any
    error: Any
    truncated: list[Literal["input", "result", "error"]]
    note_path: str | None


class Trail(ResponseModel):
    task_id: str
    task: TaskRecord | None
    status: str
    provenance_id: str | None
    agent_name: str | None
    capability: str | None
    provider: str | None
    routing: JsonObject | None
    outcome_class: str | None
    learning_eligible: bool | None
    reports: list[ReportOut]
    events: list[EventOut]
    next_cursor: str | None


class AgentRow(ResponseModel):
    """An agent; `trust_score` is null while it is unscored."""

    agent_id: str
    name: str
    tier: TrustTier
    status: AgentStatus
    violation_count: int
    trust_score: float | None


class StatusCounts(ResponseModel):
    active: int
    suspended: int
    quarantined: int


class OscillationScope(ResponseModel):
    """The oscillation of an agent at a task type. `sample_count` is the number of outcomes in the sentinel's window."""

    agent_id: str
    agent_name: str | None
    task_type: str
    alert_active: bool
    oscillation_rate: float
    threshold: float
    sample_count: int


class StoreFlags(ResponseModel):
    """False for a store that could not be read completely."""

    agent_registry: bool
    hebbian_weights: bool
    trust: bool


class Governance(ResponseModel):
    agents: list[AgentRow]
    status_counts: StatusCounts
    sentinel: list[OscillationScope]
    stores: StoreFlags


class Sentinel(ResponseModel):
    """`window` is the number of recent outcomes that are evaluated."""

    threshold: float
    window: int
    active_alerts: int
    scopes: list[OscillationScope]


class AlertOut(ResponseModel):
    alert_id: str
    agent_id: str
    agent_name: str | None
    task_type: str
    oscillation_rate: float
    threshold: float
    sample_count: int
    opened_at: Timestamp
    resolved_at: Timestamp | None


class Alerts(ResponseModel):
    """Newest first."""

    alerts: list[AlertOut]


class Instance(ResponseModel):
    labels: dict[str, str]
    active_at: str | None
    value: str | float | None


class RuleOut(ResponseModel):
    name: str
    state: Literal["inactive", "pending", "firing"]
    severity: str | None
    active: list[Instance]


class TargetOut(ResponseModel):
    job: str | None
    health: str
    scrape_url: str
    last_error: str | None


class Metrics(ResponseModel):
    """Without a metrics backend, or while it fails, `available` is false and the lists are empty."""

    available: bool
    url: str | None
    alerts: list[RuleOut]
    targets: list[TargetOut]


class RoutingConfig(ResponseModel):
    """The settings that rank candidate agents. `alpha` is the weight of an agent's first outcome in the expected score;
    more outcomes weigh more, and the declared score weighs less with each. `beta` is the weight of trust in the score.

    `source` is where the values come from: the gateway's settings, or its last decision (`decided_at`). Unknown values
    are null.
    """

    source: Literal["settings", "last_decision", "unknown"]
    alpha: float | None
    beta: float | None
    trust_floor: float | None
    own_authority: bool | None
    policy_file: bool | None
    trust_available: bool | None
    decided_at: Timestamp | None


class Liveness(ResponseModel):
    status: Literal["ok"]
    service: Literal["stentor-dashboard"]
    version: str
