"""All settings: environment variable, type, default, bounds and description; one file per area.

Names that the contract fixes stay as they are; all others begin with SERVICE_ as well. An invalid value stops the
start with an error that names the variable and never repeats a secret. The descriptions are published in
docs/generated/settings.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from stentor.core.errors import StartRefused
from stentor.core.security.redaction import Redactor
from stentor.core.settings import parsers
from stentor.core.settings.alerts import AlertSettings
from stentor.core.settings.installation import (
    AuthSettings,
    ClientSettings,
    ProcessSettings,
    ProvenanceSettings,
    SignInSettings,
    StorageSettings,
)
from stentor.core.settings.listeners import (
    ConnectionSettings,
    DashboardSettings,
    GrpcSettings,
    McpSettings,
    NotesSettings,
    ServerSettings,
    TlsSettings,
    VaultSettings,
)
from stentor.core.settings.llm import LlmSettings
from stentor.core.settings.memory import MemorySettings
from stentor.core.settings.parsers import SettingInfo
from stentor.core.settings.tasks import (
    GovernanceSettings,
    KubernetesSettings,
    RaySettings,
    RoutingSettings,
    SandboxSettings,
    TaskNoteSettings,
    TaskSettings,
    WebhookSettings,
)

__all__ = ["Settings", "load", "setting_infos"]


@dataclass(frozen=True)
class Settings:
    """The settings of a process, by area; they are published in this order.

    `sources` is the origin of each value by variable: default, environment or option.
    """

    storage: StorageSettings = StorageSettings()
    server: ServerSettings = ServerSettings()
    tls: TlsSettings = TlsSettings()
    connections: ConnectionSettings = ConnectionSettings()
    auth: AuthSettings = AuthSettings()
    oidc: SignInSettings = SignInSettings()
    client: ClientSettings = ClientSettings()
    tasks: TaskSettings = TaskSettings()
    routing: RoutingSettings = RoutingSettings()
    memory: MemorySettings = MemorySettings()
    vault: VaultSettings = VaultSettings()
    task_notes: TaskNoteSettings = TaskNoteSettings()
    notes: NotesSettings = NotesSettings()
    mcp: McpSettings = McpSettings()
    llm: LlmSettings = LlmSettings()
    sandbox: SandboxSettings = SandboxSettings()
    ray: RaySettings = RaySettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    provenance: ProvenanceSettings = ProvenanceSettings()
    webhooks: WebhookSettings = WebhookSettings()
    alerts: AlertSettings = AlertSettings()
    governance: GovernanceSettings = GovernanceSettings()
    dashboard: DashboardSettings = DashboardSettings()
    process: ProcessSettings = ProcessSettings()
    grpc: GrpcSettings = GrpcSettings()
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], sources: Mapping[str, str]) -> Settings:
        """Build settings from parsed values by variable; what is missing has its default."""
        by_area: dict[str, dict[str, Any]] = {}
        for name, info in setting_infos().items():
            if info.env in values:
                area, _, key = name.partition(".")
                by_area.setdefault(area, {})[key] = values[info.env]
        return cls(**{area: _area_type(area)(**given) for area, given in by_area.items()}, sources=sources)

    def get(self, name: str) -> Any:
        """Return a value by its dotted name, such as `storage.data_dir`."""
        area, _, key = name.partition(".")
        return getattr(getattr(self, area), key)

    def secrets(self) -> Iterator[str]:
        """Yield the values of secret settings, for redaction."""
        for name, info in setting_infos().items():
            if info.secret and (value := self.get(name)):
                yield value

    @property
    def development(self) -> bool:
        return self.auth.node_env == "development"

    @property
    def loopback(self) -> bool:
        return self.server.host in parsers.LOOPBACK_HOSTS


def _area_type(area: str) -> Any:
    # Not from the annotations, which are texts here.
    return type(getattr(_DEFAULTS, area))


_DEFAULTS = Settings()


@cache
def setting_infos() -> Mapping[str, SettingInfo]:
    """Return the description of each setting by its dotted name, in the published order."""
    return {
        f"{area.name}.{f.name}": f.metadata["meta"]
        for area in fields(Settings)
        if area.name != "sources"
        for f in fields(getattr(_DEFAULTS, area.name))
    }


def load(environ: Mapping[str, str], options: Mapping[str, Any] | None = None) -> Settings:
    """Read settings from the environment. Command-line options, by variable, win. Raises StartRefused."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for info in setting_infos().values():
        option = (options or {}).get(info.env)
        if option is not None:
            values[info.env], sources[info.env] = option, "option"
        elif info.env in environ:
            values[info.env], sources[info.env] = _parse(info, environ), "environment"
        else:
            sources[info.env] = "default"
    settings = Settings.from_values(values, sources)
    _check_combinations(settings)
    return settings


def _parse(info: SettingInfo, environ: Mapping[str, str]) -> Any:
    text = environ[info.env]
    try:
        return info.parse(text.strip())
    except ValueError as error:
        # Imported here, because the file is read by means of the settings of this module.
        from stentor.core.settings.config_file import name_origin

        # A URL may contain a password.
        value = "" if info.secret else Redactor().redact(f" (it is {text!r})")
        raise StartRefused(f"{name_origin(info, environ)} {error}{value}.") from None


def _check_combinations(settings: Settings) -> None:
    if settings.storage.session_url and not settings.storage.database_url:
        raise StartRefused(
            "SERVICE_DATABASE_SESSION_URL needs SERVICE_DATABASE_URL, the address of the pooler; without a pooler set "
            "only SERVICE_DATABASE_URL."
        )
    if settings.process.nats_url and not settings.storage.database_url:
        raise StartRefused(
            "SERVICE_NATS_URL needs SERVICE_DATABASE_URL: with SQLite one process serves the data folder, and there is "
            "no other one to send messages to."
        )
    if not settings.storage.database_url and not {"gateway", "worker"} <= set(settings.process.roles):
        raise StartRefused(
            "SERVICE_ROLES omits gateway or worker, but with SQLite one process must be both: set SERVICE_DATABASE_URL "
            "to a PostgreSQL address, or list both."
        )
    if settings.oidc.issuer and not (settings.oidc.client_id and settings.oidc.roles):
        raise StartRefused(
            "SERVICE_OIDC_ISSUER needs SERVICE_OIDC_CLIENT_ID, the id under which the provider knows this service, and "
            "SERVICE_OIDC_ROLES, such as platform=admin,*=viewer: without a role nobody can sign in."
        )
    _check_tls(settings)
    if settings.alerts.emails and not settings.alerts.smtp_url:
        raise StartRefused("SERVICE_ALERT_EMAILS needs SERVICE_SMTP_URL, the mail server that takes the e-mails.")
    if settings.memory.plugin_url and not settings.memory.plugin_key:
        raise StartRefused("SERVICE_VAULT_PLUGIN_URL needs SERVICE_VAULT_PLUGIN_KEY, the plugin's API key.")
    if settings.memory.plugin_url and settings.memory.vault_dir is not None:
        raise StartRefused("SERVICE_VAULT_DIR and SERVICE_VAULT_PLUGIN_URL cannot be combined: unset one of them.")
    if settings.sandbox.command_agents and not settings.sandbox.enabled and not settings.loopback:
        raise StartRefused(
            f"SERVICE_CAGE=off is for loopback only, but SERVICE_HOST is {settings.server.host}: unset "
            "SERVICE_CAGE, or listen on 127.0.0.1."
        )
    if settings.development and settings.auth.skip_auth and not settings.loopback:
        raise StartRefused(
            f"SKIP_AUTH=true is for loopback only, but SERVICE_HOST is {settings.server.host}: "
            "unset SKIP_AUTH, or listen on 127.0.0.1."
        )


def _check_tls(settings: Settings) -> None:
    if (settings.tls.cert is None) != (settings.tls.key is None):
        raise StartRefused(
            "A certificate needs its key: set both SERVICE_TLS_CERT and SERVICE_TLS_KEY, or SERVICE_TLS=true for a "
            "certificate that Stentor makes."
        )
    # Only an explicit `false` contradicts a certificate, which by itself switches TLS on.
    if settings.tls.cert is not None and not settings.tls.enabled and settings.sources["SERVICE_TLS"] != "default":
        raise StartRefused("SERVICE_TLS=false and SERVICE_TLS_CERT cannot be combined: unset one of them.")
    if settings.tls.is_on and not settings.vault.tls:
        raise StartRefused("SERVICE_VAULT_TLS=false and TLS on every port cannot be combined: unset one of them.")
