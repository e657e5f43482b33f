"""Settings: where the service keeps its state.

Settings: who brings the schema up to date.

The settings of an installation of several processes; `Settings` has them among its own.

Settings: who may call: keys, development, and receipts of other issuers.

Settings: commands that talk to a running service.

Settings: the Merkle tree over the run log and its signed checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting


@dataclass(frozen=True)
class StorageSettings:
    data_dir: Path = setting("SERVICE_DATA_DIR", Path("data"), "Folder of the database, the keys and the vault.", Path)
    database_url: str = setting(
        "SERVICE_DATABASE_URL",
        "",
        "PostgreSQL address; empty means SQLite in the data folder.",
        parsers.text,
        secret=True,
    )
    snapshot_refresh: float = setting(
        "SERVICE_SNAPSHOT_REFRESH_SECONDS",
        1.0,
        "How often changes of other processes are read.",
        parsers.number(0.05, 3600, float),
    )


@dataclass(frozen=True)
class MigrationSettings:
    migrate: bool = setting(
        "SERVICE_MIGRATE_ON_START",
        True,
        "Whether a start brings the schema up to date; `false` leaves that to `stentor db upgrade`, and refuses one "
        "that is behind.",
        parsers.boolean,
    )


PROCESS_ROLES = ("gateway", "worker", "dashboard", "vault", "notes", "mcp", "grpc")


def parse_roles(value: str) -> tuple[str, ...]:
    """Names between commas, in our order; `all` means all of them."""
    wanted = {name.strip() for name in value.split(",") if name.strip()}
    if wanted == {"all"}:
        return PROCESS_ROLES
    if not wanted or not wanted <= set(PROCESS_ROLES):
        raise ValueError(f"must be `all`, or some of {', '.join(PROCESS_ROLES)}, between commas")
    return tuple(name for name in PROCESS_ROLES if name in wanted)


@dataclass(frozen=True)
class ProcessSettings:
    """Times in seconds."""

    roles: tuple[str, ...] = setting(
        "SERVICE_ROLES",
        PROCESS_ROLES,
        "What this process does: `all`, or some of gateway, worker (runs the agents that live in the service), "
        "dashboard, vault, notes, mcp and grpc, between commas. On SQLite one process is gateway and worker.",
        parse_roles,
    )
    drain: float = setting(
        "SERVICE_DRAIN_SECONDS",
        10.0,
        "How long tasks that run inside the process may take to end when it is stopped; then others take them up.",
        parsers.number(0, 3600, float),
    )
    leave: float = setting(
        "SERVICE_LEAVE_SECONDS",
        0.0,
        "How long a process that is stopped goes on answering while /api/v1/health/ready says 503, so that a load "
        "balancer notices; a second signal ends it.",
        parsers.number(0, 600, float),
    )
    nats_url: str = setting(
        "SERVICE_NATS_URL",
        "",
        "NATS server for messages between processes, such as nats://host:4222; empty means NOTIFY of PostgreSQL.",
        parsers.text,
        secret=True,
    )
    nats_subject: str = setting(
        "SERVICE_NATS_SUBJECT", "stentor", "Subject of these messages: one for each installation.", parsers.non_blank
    )


@dataclass(frozen=True)
class AuthSettings:
    shared_key: str = setting(
        "MCP_API_KEY",
        "",
        "Key with full permissions, used when no SERVICE_API_KEY_<NAME> loads.",
        parsers.text,
        secret=True,
    )
    node_env: str = setting(
        "NODE_ENV", "production", "`development` permits SKIP_AUTH and well-known keys.", parsers.text
    )
    skip_auth: bool = setting(
        "SKIP_AUTH", False, "In development, on loopback only: every request is an admin's.", parsers.boolean
    )
    authority_issuers: Path | None = setting(
        "SERVICE_AUTHORITY_ISSUERS",
        None,
        "JSON file of the issuers whose receipts are taken besides the service's own, with their keys and tenants.",
        parsers.optional_path,
    )
    authority_audience: str = setting(
        "SERVICE_AUTHORITY_AUDIENCE", "stentor", "The audience that a receipt must name.", parsers.non_blank
    )


@dataclass(frozen=True)
class ClientSettings:
    client_url: str = setting(
        "SERVICE_URL",
        "",
        "Service that commands talk to; empty means the one that holds the data folder.",
        parsers.text,
    )
    client_key: str = setting(
        "SERVICE_CLIENT_KEY",
        "",
        "Key that commands send; empty means the one in the data folder.",
        parsers.text,
        secret=True,
    )


@dataclass(frozen=True)
class ProvenanceSettings:
    provenance_interval: float = setting(
        "SERVICE_PROVENANCE_INTERVAL_SECONDS",
        0.2,
        "How often new events of the run log get their numbers in the Merkle tree.",
        parsers.number(0.01, 86_400, float),
    )
    checkpoint_interval: float = setting(
        "SERVICE_PROVENANCE_CHECKPOINT_SECONDS",
        60.0,
        "How often the head of the tree is signed, when there is something new.",
        parsers.number(1, 31_536_000, float),
    )
    checkpoint_file: Path | None = setting(
        "SERVICE_PROVENANCE_CHECKPOINT_FILE",
        None,
        "File that every signed checkpoint is appended to: best on another machine's disk.",
        parsers.optional_path,
    )
    provenance_key: Path | None = setting(
        "SERVICE_PROVENANCE_KEY",
        None,
        "File of the key that signs checkpoints; empty means `keys/provenance.key` in the data folder. Processes that "
        "share a database need the same one.",
        parsers.optional_path,
    )
    provenance_origin: str = setting(
        "SERVICE_PROVENANCE_ORIGIN",
        "",
        "The name of the log in its checkpoints, such as example.com/runs; empty makes one with the key.",
        parsers.text,
    )
    witnesses: tuple[str, ...] = setting(
        "SERVICE_PROVENANCE_WITNESSES",
        (),
        "Witnesses that sign each checkpoint, comma separated: the verifier key of each, a blank, its URL.",
        parsers.text_list,
    )
    witness_quorum: int = setting(
        "SERVICE_PROVENANCE_WITNESS_QUORUM",
        1,
        "How many witnesses must sign; with fewer the component `provenance` is unavailable, and `verify` fails.",
        parsers.number(1, 16, int),
    )
