"""Check an access against the agent's allow-list: denied unless something allows it. Pure.

In the globs of allow-lists `**` crosses folders, `*` and `?` do not, and `**/` also matches no folder. Globs are not
translated to regular expressions, whose backtracking can take minutes for a path that an agent makes up for it; the
matcher reads the path once and tracks all possible positions in the glob.
"""

from __future__ import annotations

import posixpath
from functools import lru_cache

import msgspec

from stentor.core.clock import SECOND
from stentor.domains.registry.model import AllowedTool, SandboxWhitelist, ViolationType

MINUTE = 60 * SECOND
_ANY_FOLDERS, _ANYTHING, _WITHIN_FOLDER, _ONE_CHARACTER = "**/", "**", "*", "?"
_WILDCARDS = (_ANY_FOLDERS, _ANYTHING, _WITHIN_FOLDER)


class Access(msgspec.Struct, frozen=True):
    """A requested access. `capability` is one that the agent needs for it, besides the allow-list."""

    tool: str
    operation: str
    path: str | None = None
    host: str | None = None
    port: int | None = None
    capability: str | None = None


SEARCH_TOOL = "memory_search"
"""Without paths on the allow-list it may search everything, so a folder only narrows the search."""


class AccessDenial(msgspec.Struct, frozen=True):
    """The kind of violation and the reason for people."""

    type: ViolationType
    details: str


def check_access(whitelist: SandboxWhitelist, access: Access) -> AllowedTool | AccessDenial:
    """Return the tool that allows the access, or the denial. For rate limits see `take_token`."""
    tool = next((tool for tool in whitelist.tools if tool.name == access.tool), None)
    if tool is None:
        return AccessDenial("unauthorized_tool", f"The tool {access.tool!r} is not on the allow-list{_wanted(access)}.")
    if access.operation not in tool.operations:
        return AccessDenial(
            "unauthorized_tool", f"The tool {tool.name!r} may not {access.operation!r}{_wanted(access)}."
        )
    if access.path is None and tool.paths:
        return AccessDenial("unauthorized_path", f"The tool {tool.name!r} is limited to paths, but none was given.")
    is_narrowed = tool.name == SEARCH_TOOL and not tool.paths
    if access.path is not None and not is_narrowed and not is_path_allowed(tool, access.path):
        return AccessDenial("unauthorized_path", f"The tool {tool.name!r} may not touch {access.path!r}.")
    if (access.host is not None or access.port is not None) and not is_network_allowed(whitelist, access):
        return AccessDenial("unsafe_network", f"{access.host}:{access.port} is not on the allow-list of network hosts.")
    return tool


def _wanted(access: Access) -> str:
    """Return what the agent was after, for the reason of a denial: which file or host says more than which tool."""
    target = access.path if access.path is not None else access.host
    return f" ({access.operation} {target!r})" if target is not None else ""


def is_path_allowed(tool: AllowedTool, path: str) -> bool:
    """Return whether a glob of the tool matches the path; never for a path that is not normalized.

    A glob without a leading slash is relative to the agent's own folder, so no absolute path matches it.
    """
    if "\0" in path or "\\" in path or ".." in path.split("/") or posixpath.normpath(path) != path:
        return False
    absolute = path.startswith("/")
    globs = (pattern for pattern in tool.paths if pattern.startswith("/") is absolute)
    return not path.startswith("//") and any(glob_matches(glob, path) for glob in globs)


def normalize_path(path: str) -> str:
    """Return a path without `./`, doubled slashes and a slash at its end; as it is if it might mean another place."""
    is_doubtful = not path or path.startswith("//") or ".." in path.split("/")
    return path if is_doubtful else posixpath.normpath(path)


def is_network_allowed(whitelist: SandboxWhitelist, access: Access) -> bool:
    """Return whether host (exact or `*.domain`) and port are allowed; both must be given."""
    network = whitelist.network
    if access.host is None or access.port is None or access.port not in network.ports:
        return False
    host = normalize_host(access.host)
    return any(
        host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
        for pattern in map(str.lower, network.allowlist)
    )


def normalize_host(host: str) -> str:
    """Return the spelling of a host name that rules are compared with: lower case, without the root's dot."""
    return host.lower().rstrip(".")


def take_token(rate_limit: int, tokens: float | None, idle_us: int) -> float | None:
    """Return the tokens left after one call from a bucket of `rate_limit` per minute; None when it is empty.

    `tokens` None is a full bucket; `idle_us` is the time since the last use.
    """
    # Never below 0 elapsed: a clock that is set back must not take tokens away.
    level = rate_limit if tokens is None else min(rate_limit, tokens + max(0, idle_us) * rate_limit / MINUTE)
    return level - 1 if level >= 1 else None


def glob_matches(pattern: str, path: str) -> bool:
    """Return whether the glob matches the whole path."""
    tokens = _parse_glob(pattern)
    states: set[int] = set()
    _enter_state(tokens, 0, states)
    for char in path:
        next_states: set[int] = set()
        for state in states:
            _advance_state(tokens, state, char, next_states)
        if not next_states:
            return False
        states = next_states
    return len(tokens) in states


@lru_cache(1024)
def _parse_glob(pattern: str) -> tuple[str, ...]:
    """Split a glob into wildcards and single characters."""
    tokens, at = [], 0
    while at < len(pattern):
        token = next((wildcard for wildcard in _WILDCARDS if pattern.startswith(wildcard, at)), pattern[at])
        tokens.append(token)
        at += len(token)
    return tuple(tokens)


def _enter_state(tokens: tuple[str, ...], state: int, states: set[int]) -> None:
    """Add a state, which is an index of `tokens`, and the following ones if a wildcard may match nothing.

    `~state` is the state inside the folders of a `**/`.
    """
    while state not in states:
        states.add(state)
        if state == len(tokens) or tokens[state] not in _WILDCARDS:
            return
        if tokens[state] == _ANY_FOLDERS:
            states.add(~state)
        state += 1


def _advance_state(tokens: tuple[str, ...], state: int, char: str, states: set[int]) -> None:
    """Add the states that a character leads to."""
    if state < 0:
        states.add(state)
        if char == "/":
            _enter_state(tokens, ~state + 1, states)
        return
    # Behind the last token, `**/` stands for a token that matches no character.
    token = tokens[state] if state < len(tokens) else _ANY_FOLDERS
    if token == _ANYTHING or (token == _WITHIN_FOLDER and char != "/"):
        _enter_state(tokens, state, states)
    elif (token == char and token not in (_WITHIN_FOLDER, _ONE_CHARACTER)) or (token == _ONE_CHARACTER and char != "/"):
        _enter_state(tokens, state + 1, states)
