"""Settings of the installation: storage, schema migration, processes, authentication, CLI client and provenance.

Also of the sign-in of people with an OpenID Connect provider (docs/decisions, 0045).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting
from stentor.core.validation.text_checks import NAME_PATTERN

PROCESS_ROLES = ("gateway", "worker", "dashboard", "vault", "notes", "mcp", "grpc")
ROLES_OF_PEOPLE = ("viewer", "operator", "approver", "admin")


@dataclass(frozen=True)
class StorageSettings:
    data_dir: Path = setting(
        "SERVICE_DATA_DIR", Path("data"), "Folder of the SQLite database, the keys and the vault.", parsers.path
    )
    database_url: str = setting(
        "SERVICE_DATABASE_URL",
        "",
        "PostgreSQL URL; empty means SQLite in the data folder.",
        parsers.text,
        secret=True,
    )
    session_url: str = setting(
        "SERVICE_DATABASE_SESSION_URL",
        "",
        "PostgreSQL URL of the same database without a pooler; set it if SERVICE_DATABASE_URL leads to a pooler in "
        "transaction mode.",
        parsers.text,
        secret=True,
    )
    refresh_seconds: float = setting(
        "SERVICE_SNAPSHOT_REFRESH_SECONDS",
        1.0,
        "Seconds between two polls for changes that other processes made in the database.",
        parsers.number(0.05, 3600, float),
    )
    migrate: bool = setting(
        "SERVICE_MIGRATE_ON_START",
        True,
        "Whether a start upgrades the database schema; with `false` a start with an outdated schema fails, and you "
        "run `stentor db upgrade`.",
        parsers.boolean,
    )
    retention_days: int = setting(
        "SERVICE_RETENTION_DAYS",
        0,
        "Days after its end when a task leaves the database for an archive, with its events, steps and model calls; 0 "
        "keeps everything. Needs the extra `archive`; see docs/archiving.md.",
        parsers.number(0, 36_500, int),
    )
    archive: Path | None = setting(
        "SERVICE_ARCHIVE_DIR",
        None,
        "Folder of the archives, the same for all processes; empty means `archive` in the data folder.",
        parsers.optional_path,
    )

    @property
    def archive_dir(self) -> Path:
        return self.archive or self.data_dir / "archive"


def parse_roles(value: str) -> tuple[str, ...]:
    """Parse comma-separated role names, returned in the order of PROCESS_ROLES; `all` means all. Raises ValueError."""
    names = set(parsers.text_list(value))
    if names == {"all"}:
        return PROCESS_ROLES
    if not names or not names <= set(PROCESS_ROLES):
        raise ValueError(f"must be `all`, or a comma-separated list of {', '.join(PROCESS_ROLES)}")
    return tuple(name for name in PROCESS_ROLES if name in names)


@dataclass(frozen=True)
class ProcessSettings:
    """The roles of a process, its shutdown, and messages between processes. Times in seconds."""

    roles: tuple[str, ...] = setting(
        "SERVICE_ROLES",
        PROCESS_ROLES,
        "Roles of this process: `all`, or a comma-separated list of gateway, worker (runs the agents inside the "
        "service), dashboard, vault, notes, mcp and grpc. With SQLite one process must be gateway and worker.",
        parse_roles,
    )
    drain_seconds: float = setting(
        "SERVICE_DRAIN_SECONDS",
        10.0,
        "Seconds that running tasks may take to finish at shutdown; then they go back to the queue.",
        parsers.number(0, 3600, float),
    )
    leave_seconds: float = setting(
        "SERVICE_LEAVE_SECONDS",
        0.0,
        "Seconds that a stopping process still serves requests while /api/v1/health/ready returns 503, so that a load "
        "balancer can remove it; 0 without one. A second signal ends the wait.",
        parsers.number(0, 600, float),
    )
    nats_url: str = setting(
        "SERVICE_NATS_URL",
        "",
        "NATS server for messages between processes, such as nats://host:4222; empty means PostgreSQL NOTIFY.",
        parsers.text,
        secret=True,
    )
    nats_subject: str = setting(
        "SERVICE_NATS_SUBJECT",
        "stentor",
        "NATS subject of these messages; choose a different one for each installation.",
        parsers.non_blank,
    )


@dataclass(frozen=True)
class AuthSettings:
    shared_key: str = setting(
        "MCP_API_KEY",
        "",
        "API key with all permissions; used if there is no valid SERVICE_API_KEY_<NAME>.",
        parsers.text,
        secret=True,
    )
    node_env: str = setting(
        "NODE_ENV", "production", "`development` allows SKIP_AUTH and well-known keys.", parsers.text
    )
    skip_auth: bool = setting(
        "SKIP_AUTH",
        False,
        "Treat every request as an admin's; only with NODE_ENV=development and on loopback.",
        parsers.boolean,
    )
    authority_issuers: Path | None = setting(
        "SERVICE_AUTHORITY_ISSUERS",
        None,
        "JSON file of further issuers whose receipts are accepted, with their keys and tenants; see docs/receipts.md.",
        parsers.optional_path,
    )
    authority_audience: str = setting(
        "SERVICE_AUTHORITY_AUDIENCE", "stentor", "Audience that a receipt must name.", parsers.non_blank
    )


@dataclass(frozen=True)
class ClientSettings:
    url: str = setting(
        "SERVICE_URL",
        "",
        "URL of the service that commands call; empty means the one that runs on the data folder.",
        parsers.text,
    )
    key: str = setting(
        "SERVICE_CLIENT_KEY",
        "",
        "API key that commands send; empty means the admin key in the data folder.",
        parsers.text,
        secret=True,
    )


@dataclass(frozen=True)
class ProvenanceSettings:
    interval_seconds: float = setting(
        "SERVICE_PROVENANCE_INTERVAL_SECONDS",
        0.2,
        "Seconds between two batches in which new events of the run log are added to the Merkle tree.",
        parsers.number(0.01, 86_400, float),
    )
    checkpoint_seconds: float = setting(
        "SERVICE_PROVENANCE_CHECKPOINT_SECONDS",
        60.0,
        "Seconds between two signed checkpoints of the tree; none is signed without new events.",
        parsers.number(1, 31_536_000, float),
    )
    checkpoint_file: Path | None = setting(
        "SERVICE_PROVENANCE_CHECKPOINT_FILE",
        None,
        "File to which every signed checkpoint is appended, preferably on another machine's disk.",
        parsers.optional_path,
    )
    key: Path | None = setting(
        "SERVICE_PROVENANCE_KEY",
        None,
        "File of the key that signs checkpoints; empty means `keys/provenance.key` in the data folder. All processes "
        "that share a database need the same key.",
        parsers.optional_path,
    )
    origin: str = setting(
        "SERVICE_PROVENANCE_ORIGIN",
        "",
        "Name of the log in its checkpoints, such as example.com/runs; empty means one that is generated with the key.",
        parsers.text,
    )
    witnesses: tuple[str, ...] = setting(
        "SERVICE_PROVENANCE_WITNESSES",
        (),
        "Witnesses that cosign each checkpoint, comma separated: verifier key, space, URL of each.",
        parsers.text_list,
    )
    witness_quorum: int = setting(
        "SERVICE_PROVENANCE_WITNESS_QUORUM",
        1,
        "Witnesses that must cosign; with fewer the component `provenance` is unavailable and `verify` fails.",
        parsers.number(1, 16, int),
    )


def issuer_url(value: str) -> str:
    """Check the URL of a provider: https, or http on this machine. Raises ValueError."""
    if not value:
        return ""
    parts = parsers.split_web_url(value)
    is_safe = parts is not None and (parts.scheme == "https" or parts.hostname in parsers.LOOPBACK_HOSTS)
    is_plain = parts is not None and parts.username is None and not parts.query and not parts.fragment
    if not is_safe or not is_plain or not value.isprintable() or " " in value:
        raise ValueError("must be an https URL such as https://login.example.com/realms/staff")
    return value


def group_roles(value: str) -> tuple[str, ...]:
    """Check `group=role` entries, comma separated; the group `*` is everybody. Raises ValueError."""
    entries = []
    for part in parsers.text_list(value):
        # At the last `=`, because the name of a group may contain others.
        group, _, role = part.rpartition("=")
        if not group.strip() or role.strip() not in ROLES_OF_PEOPLE:
            raise ValueError(f"must be entries such as staff=viewer, with a role of {', '.join(ROLES_OF_PEOPLE)}")
        entries.append(f"{group.strip()}={role.strip()}")
    return tuple(entries)


def group_teams(value: str) -> tuple[str, ...]:
    """Check `group=team` entries, comma separated; the group `*` is everybody. Raises ValueError."""
    entries = []
    for part in parsers.text_list(value):
        group, _, team = part.rpartition("=")
        if not group.strip() or not re.fullmatch(NAME_PATTERN, team.strip()):
            raise ValueError("must be entries such as data-science=research, with a team of a-z, 0-9, _, - and .")
        entries.append(f"{group.strip()}={team.strip()}")
    return tuple(entries)


def scope_list(value: str) -> str:
    """Check the scopes, which are separated by spaces. Raises ValueError without `openid`."""
    if "openid" not in value.split():
        raise ValueError("must contain openid")
    return " ".join(value.split())


@dataclass(frozen=True)
class SignInSettings:
    """The provider with which people sign in to the dashboard; without an issuer they sign in with keys only."""

    issuer: str = setting(
        "SERVICE_OIDC_ISSUER",
        "",
        "URL of the OpenID Connect provider with which people sign in, such as https://login.example.com/realms/staff; "
        "empty means that they sign in with keys.",
        issuer_url,
    )
    client_id: str = setting(
        "SERVICE_OIDC_CLIENT_ID", "", "Client id under which the provider knows this service.", parsers.text
    )
    client_secret: str = setting(
        "SERVICE_OIDC_CLIENT_SECRET",
        "",
        "Secret of this client; empty for a public client, which uses only PKCE.",
        parsers.text,
        secret=True,
    )
    roles: tuple[str, ...] = setting(
        "SERVICE_OIDC_ROLES",
        (),
        "The role of each group as group=role, comma separated; the group * is everybody. Roles: viewer, operator, "
        "approver, admin. Somebody in several groups may do what any of their roles may; without a role nobody signs "
        "in.",
        group_roles,
    )
    teams: tuple[str, ...] = setting(
        "SERVICE_OIDC_TEAMS",
        (),
        "The team of each group as group=team, comma separated; the group * is everybody. The model calls of a team "
        "count to its budgets together. Somebody in several groups belongs to the first team that is listed.",
        group_teams,
    )
    groups_claim: str = setting(
        "SERVICE_OIDC_GROUPS_CLAIM",
        "groups",
        "Claim with the groups of a person; a dot selects a member of an object, as in realm_access.roles.",
        parsers.non_blank,
    )
    name_claim: str = setting(
        "SERVICE_OIDC_NAME_CLAIM",
        "email",
        "Claim with the name under which a person's work is recorded. It must not change.",
        parsers.non_blank,
    )
    scopes: str = setting(
        "SERVICE_OIDC_SCOPES",
        "openid email profile",
        "Scopes that are requested, separated by spaces; some providers need `groups` for the groups.",
        scope_list,
    )
    label: str = setting(
        "SERVICE_OIDC_LABEL", "single sign-on", "Name of the provider on the button of the sign-in page.", parsers.text
    )
    tenant: str = setting(
        "SERVICE_OIDC_TENANT", "default", "Tenant of the people who sign in with the provider.", parsers.non_blank
    )
