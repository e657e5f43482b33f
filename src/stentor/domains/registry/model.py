"""Agents and their violations. Pure. Source: core contract, "Agent" and "Violation"."""

from __future__ import annotations

import shlex
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

import msgspec

from stentor.core import ids
from stentor.core.jsontext import JsonObject

TrustTier = Literal["auto", "monitored", "human"]
AgentStatus = Literal["active", "suspended", "quarantined"]
InactiveStatus = Literal["suspended", "quarantined", "archived"]
RuntimeKind = Literal["worker", "builtin", "http", "llm", "command", "ray", "kubernetes"]
TRUST_TIERS: tuple[TrustTier, ...] = get_args(TrustTier)
"""From the one with the least review to the one with the most."""
ViolationType = Literal["unauthorized_tool", "unauthorized_path", "rate_limit", "missing_capability", "unsafe_network"]

DEFAULT_SCORE = 0.5
QUARANTINE_THRESHOLD = 3
"""Number of violations from which on an active agent is quarantined."""


class AllowedTool(msgspec.Struct, frozen=True):
    """One allowed tool. `paths` are globs; `rate_limit` is calls per minute, 0 for no limit."""

    name: str
    paths: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    rate_limit: int = 0


class AllowedNetwork(msgspec.Struct, frozen=True):
    allowlist: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


class SandboxWhitelist(msgspec.Struct, frozen=True):
    """What an agent may access; everything else is denied."""

    tools: tuple[AllowedTool, ...] = ()
    network: AllowedNetwork = AllowedNetwork()


class LlmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the runtime `llm`. Without `model`, the gateway's default; `max_tokens` also limits callers.

    An agent with tools in its allow-list may call its model `max_calls` times for a task, and use `max_total_tokens`
    and `max_cost_usd` in all. The answer must match `output_schema`, a JSON Schema.
    A conversation of more than about `compact_after_tokens` is replaced by a summary that the model writes.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    system_prompt: Annotated[str, msgspec.Meta(max_length=100_000)] = ""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    stop: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()
    seed: int | None = None
    max_calls: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50
    max_total_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    max_cost_usd: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] | None = None
    output_schema: JsonObject | None = None
    compact_after_tokens: Annotated[int, msgspec.Meta(ge=100, le=10_000_000)] | None = None


class HttpOptions(msgspec.Struct, frozen=True):
    """Options of the runtime `http`.

    `repeat` says what happens to a request whose outcome is unknown: it is sent again with the
    same idempotency key, or held for a person.
    """

    repeat: Literal["send", "hold"] = "send"


class RayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the runtime `ray`: the function `module:function` on the cluster's nodes, and what it needs there.

    `address` is one of SERVICE_RAY_ADDRESSES, without it the first. CPUs and GPUs may be fractions.
    """

    entrypoint: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=255)]
    address: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    num_cpus: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 1.0
    num_gpus: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 0.0


class KubernetesOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the runtime `kubernetes`: the CronJob in SERVICE_KUBERNETES_NAMESPACE whose Job template is used."""

    cron_job: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


class Runtime(msgspec.Struct, frozen=True):
    """How an agent runs its tasks.

    `name` and `options` are for builtin, `endpoint` and `options` for http, `options` for llm, ray and kubernetes,
    `command` and `options` for command.
    """

    kind: RuntimeKind = "worker"
    name: str | None = None
    endpoint: str | None = None
    options: JsonObject = {}
    command: tuple[str, ...] = ()


class Agent(msgspec.Struct, frozen=True, dict=True):
    """A registered agent. Times in microseconds."""

    agent_id: str
    tenant: str
    name: str
    capabilities: tuple[str, ...]
    alignment_score: float
    accuracy_score: float
    efficiency_score: float
    trust_tier: TrustTier
    status: AgentStatus
    runtime: Runtime
    sandbox_whitelist: SandboxWhitelist
    key_name: str | None
    violation_count: int
    status_reason: str | None
    created_at: int
    updated_at: int
    archived_at: int | None = None
    archived_from: AgentStatus | None = None
    """The status that an archived agent gets back when it is restored; archived, it is suspended or quarantined."""

    @cached_property
    def composite(self) -> float:
        """0.4 alignment + 0.4 accuracy + 0.2 efficiency, in [0,1]."""
        return 0.4 * self.alignment_score + 0.4 * self.accuracy_score + 0.2 * self.efficiency_score

    @cached_property
    def capability_set(self) -> frozenset[str]:
        return frozenset(self.capabilities)

    @property
    def position(self) -> tuple[int, str]:
        """The place in lists, which never changes: oldest first."""
        return self.created_at, self.agent_id

    @property
    def is_quarantined(self) -> bool:
        return self.status == "quarantined"

    @property
    def is_archived(self) -> bool:
        return self.archived_at is not None

    def matches(self, ref: str) -> bool:
        """Return whether a text is the name or a part of the id by which a record is found."""
        return self.name == ref or ids.matches_part(self.agent_id, ref)


class Violation(msgspec.Struct, frozen=True):
    violation_id: str
    type: ViolationType
    details: str
    happened_at: int
    cleared_at: int | None


class AgentChanges(msgspec.Struct, frozen=True):
    """New values of what applies at once; None keeps a value, and an empty `key_name` takes the key away.

    Capabilities, runtime and allow-list are not among them: they change by an update of governance.
    """

    alignment_score: float | None = None
    accuracy_score: float | None = None
    efficiency_score: float | None = None
    trust_tier: TrustTier | None = None
    key_name: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The new values by the name of the agent's field."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return given | ({"key_name": self.key_name or None} if self.key_name is not None else {})


def describe_remedy(status: InactiveStatus, name: str) -> str:
    """Return how the agent of this name becomes active again, to continue a sentence that ends with its status."""
    if status == "quarantined":
        return ". Clear its violations: stentor call agents.clear_violations --help"
    return f": stentor agent {'restore' if status == 'archived' else 'activate'} {shlex.quote(name)}"


def is_looser(before: TrustTier, after: TrustTier) -> bool:
    """Return whether the second tier needs less review than the first."""
    return TRUST_TIERS.index(after) < TRUST_TIERS.index(before)


def apply_violation(agent: Agent) -> tuple[int, AgentStatus]:
    """Return the count and the status after one more violation: the third quarantines an active agent."""
    count = agent.violation_count + 1
    is_quarantined = agent.status == "active" and count >= QUARANTINE_THRESHOLD
    return count, "quarantined" if is_quarantined else agent.status
