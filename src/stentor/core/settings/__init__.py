"""Every setting: its name in the environment, its type, default, meaning and bounds; a file for each area.

Names of the contract are kept; ours begin with SERVICE_ too. A value that cannot be read stops the
start with a sentence that names the variable; secrets are never repeated in it.
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


# A dataclass takes the fields of its last base first: read the list upwards.
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
    """Immutable; `sources` says where each value came from (default, environment, option)."""

    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def development(self) -> bool:
        return self.node_env == "development"

    @property
    def loopback(self) -> bool:
        return self.host in {"127.0.0.1", "localhost", "::1"}


def setting_infos() -> dict[str, SettingInfo]:
    """Field name to its description, in order."""
    return {f.name: f.metadata["meta"] for f in fields(Settings) if "meta" in f.metadata}


def load(environ: Mapping[str, str], options: Mapping[str, Any] | None = None) -> Settings:
    """Settings from the environment; options of the command line win. Raises StartRefused."""
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
    _check_together(settings)
    return settings


def _parse(meta: SettingInfo, text: str) -> Any:
    try:
        return meta.parse(text.strip())
    except ValueError as error:
        shown = "" if meta.secret else f" (it is {text!r})"
        raise StartRefused(f"{meta.env} {error}{shown}.") from None


def _check_together(settings: Settings) -> None:
    if not settings.database_url and not {"gateway", "worker"} <= set(settings.roles):
        raise StartRefused(
            "SERVICE_ROLES leaves out gateway or worker, and on SQLite one process is both: set SERVICE_DATABASE_URL "
            "to a PostgreSQL address, or name both."
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
