"""Settings: how tasks are worked on.

Settings: how agents are ranked and who may be asked.

Settings: policies, and who may approve an update.

Settings: agents that are programs, and the cages that they run in.

Settings: deliveries of webhooks.

Settings: tasks as notes of the vault.
"""

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
        "Claims of one task before a lost lease fails it.",
        parsers.number(1, 100, int),
    )
    lease: int = setting(
        "SERVICE_LEASE_SECONDS",
        60,
        "How long work inside the service stays with its process without a sign of life, before another process that "
        "shares the database takes it up.",
        parsers.number(3, 3600, int),
    )
    concurrency: int = setting(
        "SERVICE_AGENT_CONCURRENCY",
        32,
        "Tasks that one agent runs at a time inside the service.",
        parsers.number(1, 1000, int),
    )
    builtin_agents: bool = setting(
        "SERVICE_BUILTIN_AGENTS", True, "Register the agents that need no set-up at start.", parsers.boolean
    )


@dataclass(frozen=True)
class RoutingSettings:
    alpha: float = setting(
        "SERVICE_HEBBIAN_ROUTING_ALPHA",
        0.2,
        "Share of an agent's evidence at a task type after its first outcome; what it says of itself has the rest.",
        parsers.number(0, 1, float),
    )
    beta: float = setting(
        "SERVICE_HEBBIAN_ROUTING_BETA", 0.0, "Share of trust in the ranking.", parsers.number(0, 1, float)
    )
    trust_floor: float = setting(
        "SERVICE_ROUTING_TRUST_FLOOR",
        0.0,
        "Agents below it are not routed to; 0 is off.",
        parsers.number(0, 1, float),
    )
    worker_offline: float = setting(
        "SERVICE_WORKER_OFFLINE_SECONDS",
        60.0,
        "A worker that was not heard of for so long is offline: others that are online get its tasks.",
        parsers.number(1, 86_400, float),
    )
    sentinel_threshold: float = setting(
        "SERVICE_SENTINEL_THRESHOLD",
        0.4,
        "Oscillation rate of an agent's last 50 outcomes above which the sentinel opens an alert.",
        parsers.number(0, 1, float),
    )
    own_authority: bool = setting(
        "SERVICE_AGENTS_OWN_AUTHORITY",
        False,
        "Keys of agents may ask only for what their agents can do, or for what they were granted.",
        parsers.boolean,
    )
    daily_lessons: int = setting(
        "SERVICE_LEARNING_DAILY_LIMIT",
        20,
        "Outcomes and grades a day that one agent's key can teach one agent; 0 is no limit. Keys of people have none.",
        parsers.number(0, 1_000_000, int),
    )


@dataclass(frozen=True)
class GovernanceSettings:
    policy_file: Path | None = setting(
        "SERVICE_POLICY_FILE",
        None,
        "Cedar policies that narrow routing, the tiers of updates and the use of tools; see docs/policy.md.",
        parsers.optional_path,
    )
    self_approval: bool = setting(
        "SERVICE_GOVERNANCE_SELF_APPROVAL",
        False,
        "Whether who proposed an update may approve it: for an installation with a single admin.",
        parsers.boolean,
    )
    checkpoint_days: int = setting(
        "SERVICE_CHECKPOINT_RETENTION_DAYS", 60, "Days that a checkpoint is kept.", parsers.number(1, 36_500, int)
    )


@dataclass(frozen=True)
class SandboxSettings:
    command_agents: bool = setting(
        "SERVICE_COMMAND_AGENTS",
        False,
        "Whether agents with a `command` runtime are taken: programs that the service starts on this host.",
        parsers.boolean,
    )
    cage: bool = setting(
        "SERVICE_CAGE", True, "Whether such programs run in a cage; `off` is for loopback only.", parsers.boolean
    )
    cage_dir: Path | None = setting(
        "SERVICE_CAGE_DIR", None, "Folder of the cages; empty means `cage` in the data folder.", parsers.optional_path
    )
    cage_roots: tuple[str, ...] = setting(
        "SERVICE_CAGE_ROOTS",
        (),
        "Folders that tools may reach and programs may lie in: `name=/folder`, with `:rw` to be written, comma "
        "separated.",
        parsers.text_list,
    )
    cage_tools: Path | None = setting(
        "SERVICE_CAGE_TOOLS", None, "TOML file of commands that caged agents may call as tools.", parsers.optional_path
    )


@dataclass(frozen=True)
class WebhookSettings:
    webhook_timeout: float = setting(
        "SERVICE_WEBHOOK_TIMEOUT_SECONDS",
        15.0,
        "How long the receiver of a webhook may take to answer.",
        parsers.number(0.05, 30, float),
    )
    webhook_retention: int = setting(
        "SERVICE_WEBHOOK_RETENTION_DAYS",
        30,
        "How long the delivery log of webhooks is kept.",
        parsers.number(7, 3650, int),
    )


@dataclass(frozen=True)
class TaskNoteSettings:
    task_notes: bool = setting(
        "SERVICE_TASK_NOTES",
        True,
        "Whether every task is mirrored as a note in the vault's folder `Tasks`.",
        parsers.boolean,
    )
    task_inbox: bool = setting(
        "SERVICE_TASK_INBOX", True, "Whether notes in the vault's folder `Tasks/Inbox` become tasks.", parsers.boolean
    )
    inbox_capabilities: tuple[str, ...] = setting(
        "SERVICE_TASK_INBOX_CAPABILITIES",
        (),
        "Capabilities that notes in the inbox may ask for, with commas; empty is all. Nobody knows who wrote a note.",
        parsers.text_list,
    )
    inbox_quiet: float = setting(
        "SERVICE_INBOX_QUIET_SECONDS",
        3.0,
        "How long a note in the inbox must lie unchanged before it becomes a task.",
        parsers.number(0, 3600, float),
    )
