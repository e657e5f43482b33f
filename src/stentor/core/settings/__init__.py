"""All settings: environment variable, type, default, bounds and description; one file per area.

Names that the contract fixes stay as they are; all others begin with SERVICE_ as well. An invalid value stops the
start with an error that names the variable and never repeats a secret. The descriptions are published in
docs/generated/settings.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from stentor.core.errors import StartRefused
from stentor.core.settings.installation import (
    AuthSettings,
    ClientSettings,
    MigrationSettings,
    ProcessSettings,
    ProvenanceSettings,
    StorageSettings,
)
from stentor.core.settings.listeners import (
    ConnectionSettings,
    DashboardSettings,
    GrpcSettings,
    NetworkSettings,
    NotesAndMcpSettings,
    VaultSettings,
)
from stentor.core.settings.llm import LlmSettings
from stentor.core.settings.memory import MemorySettings
from stentor.core.settings.parsers import SettingInfo
from stentor.core.settings.tasks import (
    GovernanceSettings,
    RoutingSettings,
    SandboxSettings,
    TaskNoteSettings,
    TaskSettings,
    WebhookSettings,
)

__all__ = ["Settings", "load", "setting_infos"]


# A dataclass takes the fields of its last base first: the published order is this list from bottom to top.
@dataclass(frozen=True)
class Settings(
    GrpcSettings,
    ProcessSettings,
    DashboardSettings,
    GovernanceSettings,
    WebhookSettings,
    ProvenanceSettings,
    SandboxSettings,
    LlmSettings,
    NotesAndMcpSettings,
    TaskNoteSettings,
    VaultSettings,
    MemorySettings,
    RoutingSettings,
    TaskSettings,
    ClientSettings,
    AuthSettings,
    ConnectionSettings,
    NetworkSettings,
    MigrationSettings,
    StorageSettings,
):
    """The settings of a process. `sources` is the origin of each value: default, environment or option."""

    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def development(self) -> bool:
        return self.node_env == "development"

    @property
    def loopback(self) -> bool:
        return self.host in {"127.0.0.1", "localhost", "::1"}


def setting_infos() -> dict[str, SettingInfo]:
    """Return the description of each setting by field name, in the published order."""
    return {f.name: f.metadata["meta"] for f in fields(Settings) if "meta" in f.metadata}


def load(environ: Mapping[str, str], options: Mapping[str, Any] | None = None) -> Settings:
    """Read settings from the environment; command-line options (by field name) win. Raises StartRefused."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, meta in setting_infos().items():
        option = (options or {}).get(name)
        if option is not None:
            values[name], sources[name] = option, "option"
        elif meta.env in environ:
            values[name], sources[name] = _parse(meta, environ[meta.env]), "environment"
        else:
            sources[name] = "default"
    settings = Settings(**values, sources=sources)
    _check_combinations(settings)
    return settings


def _parse(meta: SettingInfo, text: str) -> Any:
    try:
        return meta.parse(text.strip())
    except ValueError as error:
        value = "" if meta.secret else f" (it is {text!r})"
        raise StartRefused(f"{meta.env} {error}{value}.") from None


def _check_combinations(settings: Settings) -> None:
    if not settings.database_url and not {"gateway", "worker"} <= set(settings.roles):
        raise StartRefused(
            "SERVICE_ROLES omits gateway or worker, but with SQLite one process must be both: set SERVICE_DATABASE_URL "
            "to a PostgreSQL address, or list both."
        )
    if settings.plugin_url and not settings.plugin_key:
        raise StartRefused("SERVICE_VAULT_PLUGIN_URL needs SERVICE_VAULT_PLUGIN_KEY, the plugin's API key.")
    if settings.plugin_url and settings.vault_dir is not None:
        raise StartRefused("SERVICE_VAULT_DIR and SERVICE_VAULT_PLUGIN_URL exclude each other: unset one of them.")
    if settings.command_agents and not settings.cage and not settings.loopback:
        raise StartRefused(
            f"SERVICE_CAGE=off is for loopback only, but SERVICE_HOST is {settings.host}: unset "
            "SERVICE_CAGE, or listen on 127.0.0.1."
        )
    if settings.development and settings.skip_auth and not settings.loopback:
        raise StartRefused(
            f"SKIP_AUTH=true is for loopback only, but SERVICE_HOST is {settings.host}: "
            "unset SKIP_AUTH, or listen on 127.0.0.1."
        )
