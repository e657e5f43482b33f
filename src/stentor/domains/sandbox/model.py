"""Is an access on the agent's allowlist? Pure, and denied unless something allows it.

Globs of allowlists: `**` crosses folders, `*` and `?` do not, `**/` may be no folder at all. Pure.

Not by a regular expression: one that has to try again takes minutes for a path that an agent makes up for it. Here a
path is read once, and all places of the glob that it may be at are kept.
"""

from __future__ import annotations

import posixpath
from functools import lru_cache

import msgspec

from stentor.core.clock import SECOND
from stentor.domains.registry.model import AllowedTool, SandboxWhitelist, ViolationType

MINUTE = 60 * SECOND


class Access(msgspec.Struct, frozen=True):
    """What an agent asks to do. `capability` is one that the agent needs for it, besides the allowlist."""

    tool: str
    operation: str
    path: str | None = None
    host: str | None = None
    port: int | None = None
    capability: str | None = None


class AccessDenial(msgspec.Struct, frozen=True):
    type: ViolationType
    details: str


def check_access(whitelist: SandboxWhitelist, access: Access) -> AllowedTool | AccessDenial:
    """The tool that allows the access, or why it is refused. Rates are judged by `spend`."""
    tool = next((tool for tool in whitelist.tools if tool.name == access.tool), None)
    if tool is None:
        return AccessDenial("unauthorized_tool", f"The tool {access.tool!r} is not on the allowlist.")
    if access.operation not in tool.operations:
        return AccessDenial("unauthorized_tool", f"The tool {tool.name!r} may not {access.operation!r}.")
    if access.path is None and tool.paths:
        return AccessDenial("unauthorized_path", f"The tool {tool.name!r} is limited to paths, and none was given.")
    if access.path is not None and not is_path_allowed(tool, access.path):
        return AccessDenial("unauthorized_path", f"The tool {tool.name!r} may not touch {access.path!r}.")
    if (access.host is not None or access.port is not None) and not is_network_allowed(whitelist, access):
        return AccessDenial("unsafe_network", f"{access.host}:{access.port} is not on the network allowlist.")
    return tool


def is_path_allowed(tool: AllowedTool, path: str) -> bool:
    """Whether a glob matches. A path that could mean another place is never matched.

    A glob without a leading slash speaks of the agent's own folder, so no absolute path matches it.
    """
    if "\0" in path or "\\" in path or ".." in path.split("/") or posixpath.normpath(path) != path:
        return False
    absolute = path.startswith("/")
    globs = (pattern for pattern in tool.paths if pattern.startswith("/") is absolute)
    return not path.startswith("//") and any(glob_matches(glob, path) for glob in globs)


def is_network_allowed(whitelist: SandboxWhitelist, access: Access) -> bool:
    """Exact host or `*.domain`, and the port; both must be given and allowed."""
    network = whitelist.network
    if access.host is None or access.port is None or access.port not in network.ports:
        return False
    host = normalize_host(access.host)
    return any(_host_matches(pattern.lower(), host) for pattern in network.allowlist)


def normalize_host(host: str) -> str:
    """The one spelling of a name that rules are held against."""
    return host.lower().rstrip(".")


def _host_matches(pattern: str, host: str) -> bool:
    return host.endswith(pattern[1:]) and host != pattern[2:] if pattern.startswith("*.") else host == pattern


def take_token(rate_limit: int, tokens: float | None, idle_us: int) -> float | None:
    """Tokens left after one call from a bucket of `rate_limit` per minute; None when it is empty.

    `tokens` None is a full bucket; `idle` is microseconds since it was last used.
    """
    level = rate_limit if tokens is None else min(rate_limit, tokens + max(0, idle_us) * rate_limit / MINUTE)
    return level - 1 if level >= 1 else None


_ANY_FOLDERS, _ANYTHING, _WITHIN_FOLDER, _ONE_CHARACTER = "**/", "**", "*", "?"
_WILDCARDS = (_ANY_FOLDERS, _ANYTHING, _WITHIN_FOLDER)


def glob_matches(pattern: str, path: str) -> bool:
    """Whether the whole path matches."""
    steps = _parse_glob(pattern)
    places: set[int] = set()
    _enter_state(steps, 0, places)
    for char in path:
        following: set[int] = set()
        for place in places:
            _advance_states(steps, place, char, following)
        if not following:
            return False
        places = following
    return len(steps) in places


@lru_cache(1024)
def _parse_glob(pattern: str) -> tuple[str, ...]:
    """The wildcards of a glob, and all else character by character."""
    found, at = [], 0
    while at < len(pattern):
        step = next((wild for wild in _WILDCARDS if pattern.startswith(wild, at)), pattern[at])
        found.append(step)
        at += len(step)
    return tuple(found)


def _enter_state(steps: tuple[str, ...], place: int, found: set[int]) -> None:
    """Be at a place, and behind it where a wildcard may stand for nothing. `~place` is within the folders of `**/`."""
    while place not in found:
        found.add(place)
        if place == len(steps) or steps[place] not in _WILDCARDS:
            return
        if steps[place] == _ANY_FOLDERS:
            found.add(~place)
        place += 1


def _advance_states(steps: tuple[str, ...], place: int, char: str, found: set[int]) -> None:
    """The places that a character leads to."""
    if place < 0:
        found.add(place)
        if char == "/":
            _enter_state(steps, ~place + 1, found)
        return
    step = steps[place] if place < len(steps) else _ANY_FOLDERS
    if step == _ANYTHING or (step == _WITHIN_FOLDER and char != "/"):
        _enter_state(steps, place, found)
    elif (step == char and step not in (_WITHIN_FOLDER, _ONE_CHARACTER)) or (step == _ONE_CHARACTER and char != "/"):
        _enter_state(steps, place + 1, found)
