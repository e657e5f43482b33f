"""The configuration as it stands, good or bad: what `stentor config` lists and `stentor doctor` judges.

Unlike a start, it does not stop at the first setting that cannot be read. No secret is repeated.

What a check sees and what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from stentor.core import settings as settings_module
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.core.settings.parsers import SettingInfo


class SettingStatus(msgspec.Struct, frozen=True):
    """One setting as people see it: `value` is text, for a secret only whether it is set."""

    name: str
    env: str
    value: str
    source: str
    doc: str
    problem: str | None = None


class ApiKeyVariable(msgspec.Struct, frozen=True):
    """One SERVICE_API_KEY_* variable, without its key; `problem` says why it is ignored."""

    variable: str
    name: str
    role: str | None = None
    permissions: tuple[str, ...] = ()
    tenant: str | None = None
    well_known: bool = False
    problem: str | None = None


class ConfigInspection(msgspec.Struct, frozen=True):
    """`effective` has the defaults where a value cannot be read; `problem` is why a start would be refused."""

    settings: tuple[SettingStatus, ...]
    keys: tuple[ApiKeyVariable, ...]
    effective: Settings
    problem: str | None


def inspect_config(environ: Mapping[str, str], data_dir: Path | None = None) -> ConfigInspection:
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    rows: list[tuple[str, SettingInfo, str | None]] = []
    for name, meta in settings_module.setting_infos().items():
        problem, sources[meta.env] = None, "default"
        if name == "storage.data_dir" and data_dir is not None:
            values[meta.env], sources[meta.env] = data_dir, "option"
        elif meta.env in environ:
            sources[meta.env] = "environment"
            try:
                values[meta.env] = meta.parse(environ[meta.env].strip())
            except ValueError as error:
                problem = f"{meta.env} {error}."
        rows.append((name, meta, problem))
    effective = Settings.from_values(values, sources)
    shown = tuple(
        SettingStatus(
            name, meta.env, "-" if problem else _shown(effective, name, meta), sources[meta.env], meta.doc, problem
        )
        for name, meta, problem in rows
    )
    keys = inspect_key_variables(environ)
    return ConfigInspection(shown, keys, effective, _refusal(environ, data_dir, keys))


def _refusal(environ: Mapping[str, str], data_dir: Path | None, keys: tuple[ApiKeyVariable, ...]) -> str | None:
    from stentor.auth import api_keys

    try:
        settings = settings_module.load(environ, {"SERVICE_DATA_DIR": data_dir})
        named = {variable.name for variable in keys if variable.problem is None}
        api_keys.load_memory_access(
            environ, named or {"mcp" if settings.auth.shared_key else "admin"}, settings.memory.vault_names
        )
    except StartRefused as error:
        return error.message
    return None


def _shown(effective: Settings, name: str, meta: SettingInfo) -> str:
    value = effective.get(name)
    if meta.secret:
        return "set" if value else "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(value)
    # An address may carry a password.
    return Redactor().redact(str(value))


def inspect_key_variables(environ: Mapping[str, str]) -> tuple[ApiKeyVariable, ...]:
    # Loads the cryptographic modules: not for `stentor --help`.
    from stentor.auth import api_keys

    found = []
    for variable in sorted(name for name in environ if name.startswith(api_keys.KEY_VARIABLE_PREFIX)):
        name = variable.removeprefix(api_keys.KEY_VARIABLE_PREFIX).lower()
        try:
            key, principal = api_keys.parse_key_variable(variable, environ[variable])
        except ValueError as error:
            found.append(ApiKeyVariable(variable, name, problem=f"it is ignored: {error}"))
            continue
        permissions = tuple(sorted(principal.permissions))
        well_known = key.lower() in api_keys.WELL_KNOWN_KEYS
        found.append(ApiKeyVariable(variable, name, principal.role, permissions, principal.tenant, well_known))
    return tuple(found)


FindingLevel = Literal["ok", "warning", "problem"]


class CheckFinding(msgspec.Struct, frozen=True):
    """One sentence of the doctor; a warning or problem says what to do."""

    level: FindingLevel
    check: str
    message: str


@dataclass(frozen=True)
class CheckContext:
    """The configuration as it stands; `settings` has the defaults where a value cannot be read."""

    inspection: ConfigInspection
    settings: Settings
    environ: Mapping[str, str]
