"""Wire models of the registry: requests and responses of the operations on agents."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from pydantic import Field, StringConstraints, model_validator

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.core.validation import json_schema
from stentor.domains.registry.model import (
    AgentChanges,
    AgentStatus,
    AllowedNetwork,
    AllowedTool,
    HttpOptions,
    KubernetesOptions,
    LlmOptions,
    RayOptions,
    Runtime,
    RuntimeKind,
    SandboxWhitelist,
    TrustTier,
    ViolationType,
)
from stentor.domains.registry.service import AgentDraft
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Name, Reason, ResponseModel, Score, Text, Timestamp, VisibleName

MAX_CAPABILITIES = 256
Options = TypeVar("Options")
Capability = Annotated[VisibleName, StringConstraints(max_length=128)]
Paths = Annotated[list[Annotated[Name, StringConstraints(max_length=1024)]], Field(max_length=256)]


class ToolIn(RequestModel):
    name: Name
    paths: Paths = []
    operations: Annotated[list[Name], Field(max_length=64)] = []
    rate_limit: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class NetworkIn(RequestModel):
    allowlist: Annotated[list[Name], Field(max_length=256)] = []
    ports: Annotated[list[Annotated[int, Field(ge=1, le=65535)]], Field(max_length=256)] = []


class WhitelistIn(RequestModel):
    tools: Annotated[list[ToolIn], Field(max_length=256)] = []
    network: NetworkIn = NetworkIn()


class RuntimeIn(RequestModel):
    """How an agent runs its tasks.

    `worker` pulls them, `http` is called at `endpoint`, `builtin` runs in the service, `llm` is a model with a system
    prompt in `options`, `command` is a program in a sandbox, `ray` is a function on a Ray cluster, `kubernetes`
    is a Job made from a CronJob's template. With `{"repeat": "hold"}` in `options`, the request of an `http` agent is
    not sent again if it is not known whether the agent did it.
    """

    kind: Literal["worker", "builtin", "http", "llm", "command", "ray", "kubernetes"] = "worker"
    name: Name | None = None
    endpoint: Annotated[str, StringConstraints(max_length=2048)] | None = None
    options: JsonObject = {}
    command: Annotated[list[Annotated[str, StringConstraints(max_length=65_536)]], Field(max_length=256)] = []

    @model_validator(mode="after")
    def _complete(self) -> RuntimeIn:
        if self.kind == "http" and not self.endpoint:
            raise ValueError("an http runtime needs an endpoint")
        if self.kind == "builtin" and not self.name:
            raise ValueError("a builtin runtime needs a name")
        if self.kind == "http":
            _check_options(self.options, HttpOptions, "an http")
        if self.kind == "ray":
            _check_options(self.options, RayOptions, "a ray")
        if self.kind == "kubernetes":
            _check_options(self.options, KubernetesOptions, "a kubernetes")
        if self.kind == "llm":
            _check_llm(self.options)
        if bool(self.command) != (self.kind == "command"):
            raise ValueError("a command runtime needs a command, a list of strings; other runtimes must not have one")
        return self


_NAMES = {
    "$.entrypoint": "entrypoint must be module:function, such as ray_words:count_words",
    "$.cron_job": "cron_job must be the name of a CronJob, such as word-counter",
}
"""What to say instead of the regular expressions of these options."""


def _check_options(options: JsonObject, kind: type[Options], name: str) -> Options:
    try:
        return msgspec.convert(options, kind)
    except msgspec.ValidationError as error:
        reason = next((text for path, text in _NAMES.items() if "regex" in str(error) and path in str(error)), error)
        raise ValueError(f"the options of {name} runtime are invalid: {reason}") from None


def _check_llm(options: JsonObject) -> None:
    llm_options = _check_options(options, LlmOptions, "an llm")
    if llm_options.model is not None and llm_options.model.startswith("agent:"):
        raise ValueError("the model of an agent cannot be an agent")
    if llm_options.output_schema is not None:
        try:
            json_schema.check_schema(llm_options.output_schema)
        except InvalidRequest as error:
            raise ValueError(f"output_schema: {error.message}") from None


class Register(RequestModel):
    model_config = example_config(
        name="ann",
        capabilities=["summarize"],
        trust_tier="monitored",
        sandbox_whitelist={
            "tools": [{"name": "files", "paths": ["notes/**"], "operations": ["read"], "rate_limit": 60}]
        },
        runtime={"kind": "worker"},
    )

    name: VisibleName
    capabilities: Annotated[list[Capability], Field(max_length=MAX_CAPABILITIES)] = []
    alignment_score: Score = 0.5
    accuracy_score: Score = 0.5
    efficiency_score: Score = 0.5
    trust_tier: TrustTier = "monitored"
    sandbox_whitelist: WhitelistIn = WhitelistIn()
    runtime: RuntimeIn = RuntimeIn()
    key_name: Name | None = None

    def to_draft(self) -> AgentDraft:
        runtime = self.runtime
        whitelist = self.sandbox_whitelist
        return AgentDraft(
            name=self.name,
            capabilities=tuple(dict.fromkeys(self.capabilities)),
            alignment_score=self.alignment_score,
            accuracy_score=self.accuracy_score,
            efficiency_score=self.efficiency_score,
            trust_tier=self.trust_tier,
            runtime=Runtime(
                runtime.kind,
                runtime.name,
                runtime.endpoint,
                runtime.options,
                tuple(runtime.command),
            ),
            sandbox_whitelist=SandboxWhitelist(
                tuple(
                    AllowedTool(tool.name, tuple(tool.paths), tuple(tool.operations), tool.rate_limit)
                    for tool in whitelist.tools
                ),
                AllowedNetwork(tuple(whitelist.network.allowlist), tuple(whitelist.network.ports)),
            ),
            key_name=self.key_name.lower() if self.key_name else None,
        )


class Edit(RequestModel):
    """What changes at once. A `key_name` that is null takes the key away; `reason` is required for a looser tier."""

    model_config = example_config(accuracy_score=0.9, trust_tier="human", reason="It publishes now.")

    alignment_score: Score | None = None
    accuracy_score: Score | None = None
    efficiency_score: Score | None = None
    trust_tier: TrustTier | None = None
    key_name: Name | None = None
    reason: Text = ""

    @model_validator(mode="after")
    def _require_field(self) -> Edit:
        given = self.model_fields_set - {"reason"}
        if not given or any(getattr(self, name) is None for name in given - {"key_name"}):
            raise ValueError("give at least one score, a tier or a key, and none but the key that is null")
        return self

    def to_changes(self) -> AgentChanges:
        key_name = (self.key_name or "").lower() if "key_name" in self.model_fields_set else None
        return AgentChanges(self.alignment_score, self.accuracy_score, self.efficiency_score, self.trust_tier, key_name)


class Clear(RequestModel):
    model_config = example_config(override_tier="human", rationale="The tool was listed by mistake.")

    override_tier: TrustTier
    rationale: Reason


class Suspend(RequestModel):
    model_config = example_config(reason="Its endpoint is being moved.")

    reason: Reason


class Archive(RequestModel):
    model_config = example_config(reason="Replaced by the new summarizer.", force=False)

    reason: Text = ""
    force: bool = False


class Registered(ResponseModel):
    """The new agent. `notice` says what is allowed but may be a mistake.

    Another agent has the same name or one that looks the same, an agent with the same key is quarantined, or no
    provider serves its model.
    """

    agent_id: str
    name: str
    status: AgentStatus
    created_at: Timestamp
    notice: str | None


class ToolOut(ResponseModel):
    name: str
    paths: list[str]
    operations: list[str]
    rate_limit: int


class NetworkOut(ResponseModel):
    allowlist: list[str]
    ports: list[int]


class WhitelistOut(ResponseModel):
    tools: list[ToolOut]
    network: NetworkOut


class RuntimeOut(ResponseModel):
    kind: RuntimeKind
    name: str | None
    endpoint: str | None
    options: JsonObject
    command: list[str]


class AgentOut(ResponseModel):
    agent_id: str
    name: str
    capabilities: list[str]
    alignment_score: float
    accuracy_score: float
    efficiency_score: float
    trust_tier: TrustTier
    trust_score: float | None
    status: AgentStatus
    status_reason: str | None
    violation_count: int
    runtime: RuntimeOut
    sandbox_whitelist: WhitelistOut
    key_name: str | None
    last_task: Timestamp | None
    online: bool
    offline_reason: str | None
    last_seen: Timestamp | None
    created_at: Timestamp
    updated_at: Timestamp
    archived_at: Timestamp | None
    notice: str | None


class AgentRow(ResponseModel):
    agent_id: str
    name: str
    capabilities: list[str]
    trust_score: float | None
    status: AgentStatus
    online: bool
    offline_reason: str | None
    last_seen: Timestamp | None
    archived_at: Timestamp | None
    notice: str | None


class AgentPage(ResponseModel):
    agents: list[AgentRow]
    total: int
    limit: int
    offset: int
    next_cursor: str | None
    malformed: list[str]


class Scores(ResponseModel):
    agent_id: str
    alignment_score: float
    accuracy_score: float
    efficiency_score: float
    updated_at: Timestamp


class ViolationOut(ResponseModel):
    violation_id: str
    timestamp: Annotated[Timestamp, Field(validation_alias="happened_at")]
    type: ViolationType
    details: str
    cleared_at: Timestamp | None


class Violations(ResponseModel):
    agent_id: str
    violation_count: int
    quarantined: Annotated[bool, Field(validation_alias="is_quarantined")]
    violations: list[ViolationOut]


class Cleared(ResponseModel):
    agent_id: str
    violation_count: int
    quarantined: Annotated[bool, Field(validation_alias="is_quarantined")]
    overridden_by: str
    override_timestamp: Annotated[Timestamp, Field(validation_alias="updated_at")]


class StatusOut(ResponseModel):
    agent_id: str
    status: AgentStatus
    reason: Annotated[str | None, Field(validation_alias="status_reason")]
    updated_at: Timestamp
    archived_at: Timestamp | None


class ArchivedOut(StatusOut):
    """`open_tasks` are tasks that have not ended: those that wait stay so until the agent is restored."""

    open_tasks: int
