"""Settings of tasks: execution, routing, governance, sandbox, agents on clusters, webhooks, alerts and task notes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting


@dataclass(frozen=True)
class TaskSettings:
    max_attempts: int = setting(
        "SERVICE_TASK_MAX_ATTEMPTS",
        5,
        "Maximum number of claims of one task in a row that record no step; if the lease of the last one is lost, the "
        "task fails.",
        parsers.number(1, 100, int),
    )
    lease_seconds: int = setting(
        "SERVICE_LEASE_SECONDS",
        60,
        "Seconds without a heartbeat after which a task of an agent inside the service goes to another process that "
        "shares the database.",
        parsers.number(3, 3600, int),
    )
    concurrency: int = setting(
        "SERVICE_AGENT_CONCURRENCY",
        32,
        "Maximum number of concurrent tasks of one agent inside the service.",
        parsers.number(1, 1000, int),
    )
    search: bool = setting(
        "SERVICE_TASK_SEARCH",
        True,
        "Whether tasks are indexed for full-text search in title, type, input, result and error.",
        parsers.boolean,
    )
    builtin_agents: bool = setting(
        "SERVICE_BUILTIN_AGENTS",
        True,
        "Register the builtin agents, which need no configuration, at startup.",
        parsers.boolean,
    )


@dataclass(frozen=True)
class RoutingSettings:
    alpha: float = setting(
        "SERVICE_HEBBIAN_ROUTING_ALPHA",
        0.2,
        "Weight of an agent's first outcome for a task type, from 0 to 1; declared scores and results at other task "
        "types make up the rest.",
        parsers.number(0, 1, float),
    )
    beta: float = setting(
        "SERVICE_HEBBIAN_ROUTING_BETA", 0.0, "Weight of trust in the ranking, from 0 to 1.", parsers.number(0, 1, float)
    )
    trust_floor: float = setting(
        "SERVICE_ROUTING_TRUST_FLOOR",
        0.0,
        "Minimum trust of an agent to get tasks, from 0 to 1; 0 disables it.",
        parsers.number(0, 1, float),
    )
    worker_offline_seconds: float = setting(
        "SERVICE_WORKER_OFFLINE_SECONDS",
        60.0,
        "Seconds without a request after which a worker counts as offline and its tasks go to other workers.",
        parsers.number(1, 86_400, float),
    )
    sentinel_threshold: float = setting(
        "SERVICE_SENTINEL_THRESHOLD",
        0.4,
        "Oscillation rate of an agent's last 50 outcomes above which an oscillation alert opens, from 0 to 1.",
        parsers.number(0, 1, float),
    )
    own_authority: bool = setting(
        "SERVICE_AGENTS_OWN_AUTHORITY",
        False,
        "Whether agents' keys may only request capabilities that their agents have or were granted.",
        parsers.boolean,
    )
    daily_lessons: int = setting(
        "SERVICE_LEARNING_DAILY_LIMIT",
        20,
        "Maximum number of outcomes and grades per day from one agent's key that train one agent; 0 means no limit. "
        "Above it routing does not notice failures either. Keys of people are not limited.",
        parsers.number(0, 1_000_000, int),
    )


@dataclass(frozen=True)
class GovernanceSettings:
    policy_file: Path | None = setting(
        "SERVICE_POLICY_FILE",
        None,
        "File of Cedar policies that restrict routing, tiers of updates and the use of tools; see docs/policy.md.",
        parsers.optional_path,
    )
    self_approval: bool = setting(
        "SERVICE_GOVERNANCE_SELF_APPROVAL",
        False,
        "Whether the proposer of an update may approve it; for an installation with a single admin.",
        parsers.boolean,
    )
    checkpoint_days: int = setting(
        "SERVICE_CHECKPOINT_RETENTION_DAYS",
        60,
        "Retention of agents' checkpoints in days.",
        parsers.number(1, 36_500, int),
    )


@dataclass(frozen=True)
class SandboxSettings:
    command_agents: bool = setting(
        "SERVICE_COMMAND_AGENTS",
        False,
        "Whether agents with a `command` runtime may be registered: programs that the service starts on this host.",
        parsers.boolean,
    )
    enabled: bool = setting(
        "SERVICE_CAGE",
        True,
        "Whether such programs run in a sandbox; `off` is allowed on loopback only.",
        parsers.boolean,
    )
    folder: Path | None = setting(
        "SERVICE_CAGE_DIR",
        None,
        "Folder of the sandboxes; empty means `cage` in the data folder.",
        parsers.optional_path,
    )
    roots: tuple[str, ...] = setting(
        "SERVICE_CAGE_ROOTS",
        (),
        "Folders that tools may access and programs may be in: `name=/folder`, comma separated; `:rw` at the end "
        "allows writing.",
        parsers.text_list,
    )
    tools: Path | None = setting(
        "SERVICE_CAGE_TOOLS",
        None,
        "TOML file of commands that sandboxed agents may call as tools.",
        parsers.optional_path,
    )


@dataclass(frozen=True)
class RaySettings:
    addresses: tuple[str, ...] = setting(
        "SERVICE_RAY_ADDRESSES",
        (),
        "Ray clusters on which agents with a `ray` runtime may run: `host:port`, or `ray://host:port` for Ray's "
        "client, comma separated; the first is the default. Empty means that there are no such agents.",
        parsers.cluster_list,
    )
    entrypoints: tuple[str, ...] = setting(
        "SERVICE_RAY_ENTRYPOINTS",
        (),
        "Functions that such agents may run, comma separated: `module:function`, with `*` for any text.",
        parsers.text_list,
    )
    python: Path | None = setting(
        "SERVICE_RAY_PYTHON",
        None,
        "Python in which the Ray of the clusters is installed; empty means the service's own.",
        parsers.optional_path,
    )


@dataclass(frozen=True)
class KubernetesSettings:
    namespace: str = setting(
        "SERVICE_KUBERNETES_NAMESPACE",
        "",
        "Namespace in which agents with a `kubernetes` runtime run as Jobs. Empty means that there are no such agents.",
        parsers.namespace,
    )
    cron_jobs: tuple[str, ...] = setting(
        "SERVICE_KUBERNETES_CRON_JOBS",
        (),
        "CronJobs of the namespace whose templates such agents may use, comma separated, with `*` for any text.",
        parsers.text_list,
    )
    url: str = setting(
        "SERVICE_KUBERNETES_URL",
        "https://kubernetes.default.svc",
        "Address of the API of Kubernetes; the default is right inside a cluster.",
        parsers.text,
    )
    token_file: Path = setting(
        "SERVICE_KUBERNETES_TOKEN_FILE",
        Path("/var/run/secrets/kubernetes.io/serviceaccount/token"),
        "File with the token for that API; read again for each call.",
        parsers.path,
    )
    ca_file: Path = setting(
        "SERVICE_KUBERNETES_CA_FILE",
        Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
        "File with the certificates of authorities that may have signed that API's certificate.",
        parsers.path,
    )


@dataclass(frozen=True)
class WebhookSettings:
    timeout_seconds: float = setting(
        "SERVICE_WEBHOOK_TIMEOUT_SECONDS",
        15.0,
        "Seconds until the delivery of a webhook times out.",
        parsers.number(0.05, 30, float),
    )
    retention_days: int = setting(
        "SERVICE_WEBHOOK_RETENTION_DAYS",
        30,
        "Retention of the webhook delivery log in days.",
        parsers.number(7, 3650, int),
    )


@dataclass(frozen=True)
class TaskNoteSettings:
    enabled: bool = setting(
        "SERVICE_TASK_NOTES",
        True,
        "Whether every task is mirrored as a note in the vault's folder `Tasks`.",
        parsers.boolean,
    )
    inbox: bool = setting(
        "SERVICE_TASK_INBOX", True, "Whether notes in the vault's folder `Tasks/Inbox` become tasks.", parsers.boolean
    )
    inbox_capabilities: tuple[str, ...] = setting(
        "SERVICE_TASK_INBOX_CAPABILITIES",
        (),
        "Capabilities that notes in the inbox may request, comma separated; empty means all. The author of a note is "
        "not authenticated.",
        parsers.text_list,
    )
    inbox_quiet_seconds: float = setting(
        "SERVICE_INBOX_QUIET_SECONDS",
        3.0,
        "Seconds that a note in the inbox must be unchanged before it becomes a task.",
        parsers.number(0, 3600, float),
    )
