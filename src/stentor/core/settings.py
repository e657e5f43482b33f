"""Every setting: its name in the environment, its type, default, meaning and bounds.

Names of the contract are kept; ours begin with SERVICE_ too. A value that cannot be read stops the
start with a sentence that names the variable; secrets are never repeated in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stentor.core import settingkinds as kinds
from stentor.core.errors import StartRefused
from stentor.core.settingkinds import Meta, setting
from stentor.core.settings_dashboard import DashboardSettings
from stentor.core.settings_migrations import MigrationSettings


@dataclass(frozen=True)
class Settings(DashboardSettings, MigrationSettings):
    """Immutable; `sources` says where each value came from (default, environment, option)."""

    data_dir: Path = setting("SERVICE_DATA_DIR", Path("data"), "Folder of the database, the keys and the vault.", Path)
    database_url: str = setting(
        "SERVICE_DATABASE_URL",
        "",
        "PostgreSQL address; empty means SQLite in the data folder.",
        kinds.text,
        secret=True,
    )
    memory: bool = setting(
        "SERVICE_MEMORY", True, "Whether the service has a memory: a vault, its index, the bus.", kinds.flag
    )
    vault_dir: Path | None = setting(
        "SERVICE_VAULT_DIR",
        None,
        "Folder of the vault's notes; empty means `vault` in the data folder.",
        kinds.path_or_none,
    )
    plugin_url: str = setting(
        "SERVICE_VAULT_PLUGIN_URL",
        "",
        "Vault plugin that holds the notes instead of a folder, such as https://127.0.0.1:27124.",
        kinds.text,
    )
    plugin_key: str = setting("SERVICE_VAULT_PLUGIN_KEY", "", "Key of that plugin.", kinds.text, secret=True)
    vault_port: int = setting(
        "SERVICE_VAULT_PORT", 27123, "Port of `stentor vault`; 0 takes a free one.", kinds.number(0, 65535, int)
    )
    vault_tls: bool = setting(
        "SERVICE_VAULT_TLS", True, "Whether `stentor vault` answers on HTTPS as well.", kinds.flag
    )
    vault_tls_port: int = setting(
        "SERVICE_VAULT_TLS_PORT", 27124, "Port of its HTTPS; 0 takes a free one.", kinds.number(0, 65535, int)
    )
    vault_key: str = setting(
        "SERVICE_VAULT_KEY", "", "Key of `stentor vault`; empty makes one in the data folder.", kinds.text, secret=True
    )
    vault_tenant: str = setting(
        "SERVICE_VAULT_TENANT", "default", "The tenant whose keys may use the memory.", kinds.text
    )
    vault_reconcile: float = setting(
        "SERVICE_VAULT_RECONCILE_SECONDS",
        300.0,
        "How often the whole vault is compared with the index.",
        kinds.number(1, 86_400, float),
    )
    vault_poll: bool = setting(
        "SERVICE_VAULT_POLL", False, "Look for edits by polling: for a vault on a network's file system.", kinds.flag
    )
    task_notes: bool = setting(
        "SERVICE_TASK_NOTES",
        True,
        "Whether every task is mirrored as a note in the vault's folder `Tasks`.",
        kinds.flag,
    )
    task_inbox: bool = setting(
        "SERVICE_TASK_INBOX", True, "Whether notes in the vault's folder `Tasks/Inbox` become tasks.", kinds.flag
    )
    inbox_quiet: float = setting(
        "SERVICE_INBOX_QUIET_SECONDS",
        3.0,
        "How long a note in the inbox must lie unchanged before it becomes a task.",
        kinds.number(0, 3600, float),
    )
    embedding_model: str = setting(
        "SERVICE_EMBEDDING_MODEL",
        "",
        "Folder of a local model, or with SERVICE_EMBEDDING_URL a model's name; empty takes the packaged model, "
        "`none` searches by word alone.",
        kinds.text,
    )
    embedding_url: str = setting(
        "SERVICE_EMBEDDING_URL", "", "Service with OpenAI's embeddings API, such as https://host/v1.", kinds.text
    )
    embedding_key: str = setting("SERVICE_EMBEDDING_KEY", "", "Key for that service.", kinds.text, secret=True)
    notes_port: int = setting(
        "SERVICE_NOTES_PORT",
        3000,
        "Port of the note store in `stentor serve`; 0 takes a free one.",
        kinds.number(0, 65535, int),
    )
    mcp_port: int = setting(
        "SERVICE_MCP_PORT", 8082, "Port of the governed memory server; 0 takes a free one.", kinds.number(0, 65535, int)
    )
    mcp_url: str = setting(
        "SERVICE_MCP_URL",
        "",
        "Origin under which clients know the governed memory server, such as https://memory.example.com; empty means "
        "the address that it listens on.",
        kinds.text,
    )
    mcp_hosts: tuple[str, ...] = setting(
        "SERVICE_MCP_ALLOWED_HOSTS", (), "More values of Host that the governed memory server answers to.", kinds.hosts
    )
    mcp_origins: tuple[str, ...] = setting(
        "SERVICE_MCP_ALLOWED_ORIGINS", (), "More values of Origin, for browsers on other sites.", kinds.hosts
    )
    mcp_principal: str = setting(
        "SERVICE_MCP_PRINCIPAL", "", "Who calls on standard input (`stentor mcp`); blank is denied.", kinds.text
    )
    mcp_namespaces: tuple[str, ...] = setting(
        "SERVICE_MCP_NAMESPACES", (), "Namespaces that it reaches, comma separated; `*` for all.", kinds.items
    )
    mcp_capabilities: tuple[str, ...] = setting(
        "SERVICE_MCP_CAPABILITIES", (), "What it may do: memory.read, memory.write; blank is denied.", kinds.items
    )
    host: str = setting("SERVICE_HOST", "127.0.0.1", "Address that the service listens on.", kinds.text)
    gateway_port: int = setting(
        "SERVICE_GATEWAY_PORT", 8080, "Port of the gateway; 0 takes a free one.", kinds.number(0, 65535, int)
    )
    shared_key: str = setting(
        "MCP_API_KEY",
        "",
        "Key with full permissions, used when no SERVICE_API_KEY_<NAME> loads.",
        kinds.text,
        secret=True,
    )
    node_env: str = setting(
        "NODE_ENV", "production", "`development` permits SKIP_AUTH and well-known keys.", kinds.text
    )
    skip_auth: bool = setting(
        "SKIP_AUTH", False, "In development, on loopback only: every request is an admin's.", kinds.flag
    )
    rate_limit: int = setting(
        "SERVICE_RATE_LIMIT_PER_MINUTE",
        100,
        "Requests per minute and key; 0 switches it off.",
        kinds.number(0, 1e9, int),
    )
    max_body_mb: int = setting("SERVICE_MAX_BODY_MB", 10, "Largest request body, in MB.", kinds.number(1, 1024, int))
    max_streams: int = setting(
        "SERVICE_MAX_STREAMS_PER_KEY", 100, "Open event streams per key at most.", kinds.number(1, 1e6, int)
    )
    alpha: float = setting(
        "SERVICE_HEBBIAN_ROUTING_ALPHA",
        0.3,
        "Share of the Hebbian weight in the ranking.",
        kinds.number(0, 1, float),
    )
    beta: float = setting(
        "SERVICE_HEBBIAN_ROUTING_BETA", 0.0, "Share of trust in the ranking.", kinds.number(0, 1, float)
    )
    trust_floor: float = setting(
        "SERVICE_ROUTING_TRUST_FLOOR",
        0.0,
        "Agents below it are not routed to; 0 is off.",
        kinds.number(0, 1, float),
    )
    own_authority: bool = setting(
        "SERVICE_AGENTS_OWN_AUTHORITY",
        False,
        "Keys of agents may ask only for what their agents can do, or for what they were granted.",
        kinds.flag,
    )
    builtin_agents: bool = setting(
        "SERVICE_BUILTIN_AGENTS", True, "Register the agents that need no set-up at start.", kinds.flag
    )
    max_attempts: int = setting(
        "SERVICE_TASK_MAX_ATTEMPTS",
        5,
        "Claims of one task before a lost lease fails it.",
        kinds.number(1, 100, int),
    )
    concurrency: int = setting(
        "SERVICE_AGENT_CONCURRENCY",
        32,
        "Tasks that one agent runs at a time inside the service.",
        kinds.number(1, 1000, int),
    )
    outbound_allow: tuple[str, ...] = setting(
        "SERVICE_OUTBOUND_ALLOW",
        (),
        "Private hosts (host or host:port, comma separated) that agents' endpoints and webhooks may be on.",
        kinds.hosts,
    )
    snapshot_refresh: float = setting(
        "SERVICE_SNAPSHOT_REFRESH_SECONDS",
        1.0,
        "How often changes of other processes are read.",
        kinds.number(0.05, 3600, float),
    )
    provenance_interval: float = setting(
        "SERVICE_PROVENANCE_INTERVAL_SECONDS",
        0.2,
        "How often new events of the run log get their numbers in the Merkle tree.",
        kinds.number(0.01, 86_400, float),
    )
    checkpoint_interval: float = setting(
        "SERVICE_PROVENANCE_CHECKPOINT_SECONDS",
        60.0,
        "How often the head of the tree is signed, when there is something new.",
        kinds.number(1, 31_536_000, float),
    )
    checkpoint_file: Path | None = setting(
        "SERVICE_PROVENANCE_CHECKPOINT_FILE",
        None,
        "File that every signed checkpoint is appended to: best on another machine's disk.",
        kinds.path_or_none,
    )
    provenance_key: Path | None = setting(
        "SERVICE_PROVENANCE_KEY",
        None,
        "File of the key that signs checkpoints; empty means `keys/provenance.key` in the data folder. Processes that "
        "share a database need the same one.",
        kinds.path_or_none,
    )
    provenance_origin: str = setting(
        "SERVICE_PROVENANCE_ORIGIN",
        "",
        "The name of the log in its checkpoints, such as example.com/runs; empty makes one with the key.",
        kinds.text,
    )
    log_level: str = setting("SERVICE_LOG_LEVEL", "info", "debug, info, warning or error.", kinds.text)
    client_url: str = setting(
        "SERVICE_URL", "", "Service that commands talk to; empty means the one that holds the data folder.", kinds.text
    )
    client_key: str = setting(
        "SERVICE_CLIENT_KEY",
        "",
        "Key that commands send; empty means the one in the data folder.",
        kinds.text,
        secret=True,
    )
    authority_issuers: Path | None = setting(
        "SERVICE_AUTHORITY_ISSUERS",
        None,
        "JSON file of the issuers whose receipts are taken besides the service's own, with their keys and tenants.",
        kinds.path_or_none,
    )
    authority_audience: str = setting(
        "SERVICE_AUTHORITY_AUDIENCE", "stentor", "The audience that a receipt must name.", kinds.named
    )
    master_key: str = setting(
        "SERVICE_MASTER_KEY",
        "",
        "Secret that the keys of providers registered at runtime are encrypted with; empty makes one in the data "
        "folder. Machines that share a database need the same one.",
        kinds.text,
        secret=True,
    )
    openai_key: str = setting("OPENAI_API_KEY", "", "Key of the provider `openai`.", kinds.text, secret=True)
    openai_url: str = setting(
        "OPENAI_BASE_URL", "", "Base address of the provider `openai`, such as http://127.0.0.1:8000/v1.", kinds.text
    )
    anthropic_key: str = setting("ANTHROPIC_API_KEY", "", "Key of the provider `anthropic`.", kinds.text, secret=True)
    anthropic_url: str = setting("ANTHROPIC_BASE_URL", "", "Base address of the provider `anthropic`.", kinds.text)
    gemini_key: str = setting("GEMINI_API_KEY", "", "Key of the provider `gemini`.", kinds.text, secret=True)
    ollama_host: str = setting("OLLAMA_HOST", "", "Address of an Ollama, the provider `ollama`.", kinds.text)
    find_ollama: bool = setting(
        "SERVICE_LLM_FIND_OLLAMA",
        True,
        "Without OLLAMA_HOST: use an Ollama on this machine when one answers.",
        kinds.flag,
    )
    llm_default_provider: str = setting(
        "SERVICE_LLM_DEFAULT_PROVIDER", "", "The provider of models that no provider lists.", kinds.text
    )
    llm_default_model: str = setting(
        "SERVICE_LLM_DEFAULT_MODEL", "", "The model of requests that name none, as provider/model.", kinds.text
    )
    llm_timeout: float = setting(
        "SERVICE_LLM_TIMEOUT_SECONDS", 120.0, "How long a provider may take to answer.", kinds.number(0.05, 3600, float)
    )
    llm_idle: float = setting(
        "SERVICE_LLM_STREAM_IDLE_SECONDS",
        120.0,
        "How long a provider's stream may be silent.",
        kinds.number(0.05, 3600, float),
    )
    llm_retries: int = setting(
        "SERVICE_LLM_RETRIES",
        1,
        "Further tries of a call that the provider did not take: not reached, or refused for now.",
        kinds.number(0, 10, int),
    )
    llm_fallbacks: tuple[str, ...] = setting(
        "SERVICE_LLM_FALLBACKS",
        (),
        "What is tried when a model's provider fails: `model=model|model`, comma separated; `*` for every model.",
        kinds.items,
    )
    llm_groups: tuple[str, ...] = setting(
        "SERVICE_LLM_GROUPS",
        (),
        "Names that stand for several models, which take turns by weight: `fast=openai/a*3|groq/b`.",
        kinds.items,
    )
    llm_prices: tuple[str, ...] = setting(
        "SERVICE_LLM_PRICES",
        (),
        "Prices in US dollars per million tokens in and out: `provider/model=0.5/1.5`; the model may be `*`.",
        kinds.items,
    )
    llm_budgets: tuple[str, ...] = setting(
        "SERVICE_LLM_BUDGETS",
        (),
        "What keys and agents may spend: `key:NAME:tokens/day=100000`, `agent:ID:usd/month=20`; a name may be `*`.",
        kinds.items,
    )
    llm_log_content: bool = setting(
        "SERVICE_LLM_LOG_CONTENT",
        False,
        "Keep requests and answers of models in the run log, not only hashes.",
        kinds.flag,
    )
    llm_local: bool = setting(
        "SERVICE_LLM_LOCAL_BASELINE",
        False,
        "Have the provider `local`: extractive answers, marked degraded.",
        kinds.flag,
    )
    otel_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT", "", "Collector that gets a span per model call (extra `otel`).", kinds.text
    )
    otel_traces_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "The same, as the whole address for traces.", kinds.text
    )
    command_agents: bool = setting(
        "SERVICE_COMMAND_AGENTS",
        False,
        "Whether agents with a `command` runtime are taken: programs that the service starts on this host.",
        kinds.flag,
    )
    cage: bool = setting(
        "SERVICE_CAGE", True, "Whether such programs run in a cage; `off` is for loopback only.", kinds.flag
    )
    cage_dir: Path | None = setting(
        "SERVICE_CAGE_DIR", None, "Folder of the cages; empty means `cage` in the data folder.", kinds.path_or_none
    )
    cage_roots: tuple[str, ...] = setting(
        "SERVICE_CAGE_ROOTS",
        (),
        "Folders that tools may reach and programs may lie in: `name=/folder`, with `:rw` to be written, comma "
        "separated.",
        kinds.items,
    )
    cage_tools: Path | None = setting(
        "SERVICE_CAGE_TOOLS", None, "TOML file of commands that caged agents may call as tools.", kinds.path_or_none
    )
    webhook_timeout: float = setting(
        "SERVICE_WEBHOOK_TIMEOUT_SECONDS",
        15.0,
        "How long the receiver of a webhook may take to answer.",
        kinds.number(0.05, 30, float),
    )
    webhook_retention: int = setting(
        "SERVICE_WEBHOOK_RETENTION_DAYS",
        30,
        "How long the delivery log of webhooks is kept.",
        kinds.number(7, 3650, int),
    )
    policy_file: Path | None = setting(
        "SERVICE_POLICY_FILE",
        None,
        "Cedar policies that narrow routing, the tiers of updates and the use of tools; see docs/policy.md.",
        kinds.path_or_none,
    )
    self_approval: bool = setting(
        "SERVICE_GOVERNANCE_SELF_APPROVAL",
        False,
        "Whether who proposed an update may approve it: for an installation with a single admin.",
        kinds.flag,
    )
    checkpoint_days: int = setting(
        "SERVICE_CHECKPOINT_RETENTION_DAYS", 60, "Days that a checkpoint is kept.", kinds.number(1, 36_500, int)
    )
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def development(self) -> bool:
        return self.node_env == "development"

    @property
    def loopback(self) -> bool:
        return self.host in {"127.0.0.1", "localhost", "::1"}


def metas() -> dict[str, Meta]:
    """Field name to its description, in order."""
    return {f.name: f.metadata["meta"] for f in fields(Settings) if "meta" in f.metadata}


def load(environ: Mapping[str, str], options: Mapping[str, Any] | None = None) -> Settings:
    """Settings from the environment; options of the command line win. Raises StartRefused."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, meta in metas().items():
        option = (options or {}).get(name)
        if option is not None:
            values[name], sources[name] = option, "option"
        elif meta.env in environ:
            values[name], sources[name] = _parse(meta, environ[meta.env]), "environment"
        else:
            sources[name] = "default"
    settings = Settings(**values, sources=sources)
    _check_together(settings)
    return settings


def _parse(meta: Meta, text: str) -> Any:
    try:
        return meta.parse(text.strip())
    except ValueError as error:
        shown = "" if meta.secret else f" (it is {text!r})"
        raise StartRefused(f"{meta.env} {error}{shown}.") from None


def _check_together(settings: Settings) -> None:
    if settings.alpha + settings.beta > 1:
        raise StartRefused(
            "SERVICE_HEBBIAN_ROUTING_ALPHA and SERVICE_HEBBIAN_ROUTING_BETA may add up to 1 at most "
            f"(they are {settings.alpha:g} and {settings.beta:g})."
        )
    if settings.plugin_url and not settings.plugin_key:
        raise StartRefused("SERVICE_VAULT_PLUGIN_URL is set, and SERVICE_VAULT_PLUGIN_KEY is not: the plugin needs it.")
    if settings.plugin_url and settings.vault_dir is not None:
        raise StartRefused("SERVICE_VAULT_DIR and SERVICE_VAULT_PLUGIN_URL name two vaults: unset one of them.")
    if settings.command_agents and not settings.cage and not settings.loopback:
        raise StartRefused(
            f"SERVICE_CAGE=off is for loopback only, and the service is to listen on {settings.host}: unset "
            "SERVICE_CAGE, or listen on 127.0.0.1."
        )
    if settings.development and settings.skip_auth and not settings.loopback:
        raise StartRefused(
            f"SKIP_AUTH=true is for loopback only, and the service is to listen on {settings.host}: "
            "unset SKIP_AUTH, or listen on 127.0.0.1."
        )
