"""The configuration as `stentor config` lists it, and the input and output of the checks of `stentor doctor`.

Unlike a start of the service, an inspection does not stop at the first invalid setting. No secret is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from stentor.auth import api_keys
from stentor.bootstrap.parts.agents import load_policies
from stentor.bootstrap.surfaces.builder import surface_names
from stentor.bootstrap.surfaces.memory_mcp import public_origin
from stentor.core import settings as settings_module
from stentor.core.errors import StartRefused
from stentor.core.security.pattern_process import PatternProcess
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings, config_file
from stentor.core.settings.parsers import SettingInfo
from stentor.domains.llm.costs import PriceList, parse_budgets
from stentor.domains.llm.model_routes import ModelRoutes
from stentor.domains.retention import parquet_files


class SettingStatus(msgspec.Struct, frozen=True):
    """One setting for people: `value` is text; for a secret only whether it is set."""

    name: str
    env: str
    value: str
    source: str
    doc: str
    problem: str | None = None


class ApiKeyVariable(msgspec.Struct, frozen=True):
    """One SERVICE_API_KEY_* variable, without its key; `problem` is why it is ignored."""

    variable: str
    name: str
    role: str | None = None
    permissions: tuple[str, ...] = ()
    tenant: str | None = None
    well_known: bool = False
    is_short: bool = False
    problem: str | None = None


class ConfigInspection(msgspec.Struct, frozen=True):
    """All settings and keys; `effective` has defaults for invalid values, `problem` is why a start would fail."""

    settings: tuple[SettingStatus, ...]
    keys: tuple[ApiKeyVariable, ...]
    effective: Settings
    problem: str | None


def inspect_config(environ: Mapping[str, str], data_dir: Path | None = None) -> ConfigInspection:
    """Read all settings and keys from the environment; never raises on invalid values."""
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    rows: list[tuple[str, SettingInfo, str | None]] = []
    path = config_file.find_config_file(environ)
    from_file = config_file.read_config_file(path) if path else {}
    for name, meta in settings_module.setting_infos().items():
        problem, sources[meta.env] = None, "default"
        if name == "storage.data_dir" and data_dir is not None:
            values[meta.env], sources[meta.env] = data_dir, "option"
        elif meta.env in environ:
            # The file was already copied into the environment, so the values are compared.
            is_from_file = from_file.get(meta.env) == environ[meta.env]
            sources[meta.env] = "file" if is_from_file else "environment"
            try:
                values[meta.env] = meta.parse(environ[meta.env].strip())
            except ValueError as error:
                problem = f"{config_file.name_origin(meta, environ)} {error}."
        rows.append((name, meta, problem))
    effective = Settings.from_values(values, sources)
    statuses = tuple(
        SettingStatus(
            name,
            meta.env,
            "-" if problem else _format_value(effective, name, meta),
            sources[meta.env],
            meta.doc,
            problem,
        )
        for name, meta, problem in rows
    )
    keys = inspect_key_variables(environ)
    return ConfigInspection(statuses, keys, effective, _startup_problem(environ, data_dir, keys))


def _startup_problem(environ: Mapping[str, str], data_dir: Path | None, keys: tuple[ApiKeyVariable, ...]) -> str | None:
    try:
        settings = settings_module.load(environ, {"SERVICE_DATA_DIR": data_dir})
        names = {variable.name for variable in keys if variable.problem is None}
        api_keys.load_memory_access(
            environ, names or {"mcp" if settings.auth.shared_key else "admin"}, settings.memory.vault_names
        )
        _check_parts(settings)
    except StartRefused as error:
        return error.message
    return None


def _check_parts(settings: Settings) -> None:
    """Read the settings that only the parts of a service read. Raises StartRefused, as a start does."""
    parse_budgets(settings.llm.budgets)
    PriceList(settings.llm.prices)
    ModelRoutes(settings.llm.groups, settings.llm.fallbacks)
    PatternProcess(settings.llm.redact_patterns)
    load_policies(settings)
    if settings.storage.retention_days:
        parquet_files.require_library()
    if "mcp" in surface_names(settings):
        public_origin(settings, "http://localhost")


def _format_value(effective: Settings, name: str, meta: SettingInfo) -> str:
    value = effective.get(name)
    if meta.secret:
        return "set" if value else "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value in (None, "", ()):
        return "not set"
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    # A URL may contain a password.
    return Redactor().redact(text)


def inspect_key_variables(environ: Mapping[str, str]) -> tuple[ApiKeyVariable, ...]:
    """Parse all SERVICE_API_KEY_* variables, invalid ones included."""
    variables = []
    for variable in sorted(name for name in environ if name.startswith(api_keys.KEY_VARIABLE_PREFIX)):
        name = variable.removeprefix(api_keys.KEY_VARIABLE_PREFIX).lower()
        try:
            key, principal = api_keys.parse_key_variable(variable, environ[variable])
        except ValueError as error:
            variables.append(ApiKeyVariable(variable, name, problem=f"ignored: {error}"))
            continue
        permissions = tuple(sorted(principal.permissions))
        well_known = key.lower() in api_keys.WELL_KNOWN_KEYS
        variables.append(
            ApiKeyVariable(
                variable,
                name,
                principal.role,
                permissions,
                principal.tenant,
                well_known,
                len(key) < api_keys.SHORTEST_KEY,
            )
        )
    return tuple(variables)


FindingLevel = Literal["ok", "warning", "problem"]


class CheckFinding(msgspec.Struct, frozen=True):
    """One result of a check of `stentor doctor`; a warning or problem includes what to do."""

    level: FindingLevel
    check: str
    message: str


@dataclass(frozen=True)
class CheckContext:
    """The configuration that the checks examine; `settings` has defaults for invalid values."""

    inspection: ConfigInspection
    settings: Settings
    environ: Mapping[str, str]
