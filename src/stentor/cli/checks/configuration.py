"""Settings that cannot be read, unsafe settings, and keys."""

from __future__ import annotations

from collections.abc import Iterator

from stentor.auth.api_keys import WELL_KNOWN_KEYS, admin_key_file
from stentor.cli.checks.finding import Finding, Situation

MAKE_KEY = "make one with `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`"


def settings(situation: Situation) -> Iterator[Finding]:
    found = situation.inspection
    bad = [s.problem for s in found.settings if s.problem]
    for problem in bad:
        yield Finding("problem", "settings", f"{problem} The service does not start until it is put right.")
    if found.problem and not bad:
        yield Finding("problem", "settings", found.problem)
    if not found.problem:
        changed = sum(s.source != "default" for s in found.settings)
        yield Finding("ok", "settings", f"All can be read; {changed} of {len(found.settings)} are not the default.")


def safety(situation: Situation) -> Iterator[Finding]:
    chosen = situation.settings
    found = [*_skip_auth(situation)]
    if not chosen.loopback:
        found.append(_warning(f"The service listens on {chosen.host} without TLS: put a proxy with TLS before it."))
    if not chosen.rate_limit:
        found.append(
            _warning("The rate limit is off: set SERVICE_RATE_LIMIT_PER_MINUTE unless all callers are trusted.")
        )
    if chosen.development:
        found.append(_warning("NODE_ENV=development permits well-known keys: unset it where others can connect."))
    yield from found or [Finding("ok", "safety", "No unsafe setting.")]


def _skip_auth(situation: Situation) -> Iterator[Finding]:
    chosen = situation.settings
    if chosen.skip_auth and chosen.development and chosen.loopback:
        yield _warning("SKIP_AUTH=true makes every local process an admin: unset it outside development.")
    elif chosen.skip_auth and not chosen.development:
        yield _warning("SKIP_AUTH=true has no effect outside NODE_ENV=development: unset it.")


def _warning(message: str) -> Finding:
    return Finding("warning", "safety", message)


def keys(situation: Situation) -> Iterator[Finding]:
    chosen, variables = situation.settings, situation.inspection.keys
    for variable in variables:
        if variable.problem:
            yield Finding("warning", "keys", f"{variable.variable}: {variable.problem}. Correct it or unset it.")
        elif variable.well_known:
            yield _well_known(variable.variable, development=chosen.development)
    loaded = [v for v in variables if v.problem is None]
    if loaded:
        listed = ", ".join(f"{v.name} ({v.role}; {'/'.join(v.permissions)}; {v.tenant})" for v in loaded)
        yield Finding("ok", "keys", f"From SERVICE_API_KEY_*: {listed}.")
        return
    if chosen.shared_key:
        if chosen.shared_key.lower() in WELL_KNOWN_KEYS:
            yield _well_known("MCP_API_KEY", development=chosen.development)
        yield Finding("ok", "keys", "MCP_API_KEY is the one key, with all permissions.")
        return
    path = admin_key_file(chosen.data_dir)
    where = f"in {path}" if path.exists() else f"made at the first start, in {path}"
    yield Finding("ok", "keys", f"The one key is {where}.")


def _well_known(variable: str, *, development: bool) -> Finding:
    level, end = ("warning", "permitted in development only") if development else ("problem", "the start is refused")
    return Finding(level, "keys", f"{variable} holds a publicly known key ({end}): {MAKE_KEY}.")  # type: ignore[arg-type]
