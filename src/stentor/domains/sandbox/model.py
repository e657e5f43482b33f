"""Is an access on the agent's allowlist? Pure, and denied unless something allows it."""

from __future__ import annotations

import posixpath

import msgspec

from stentor.core.clock import SECOND
from stentor.domains.registry.model import AllowedTool, SandboxWhitelist, ViolationType
from stentor.domains.sandbox.globs import matches

MINUTE = 60 * SECOND


class Access(msgspec.Struct, frozen=True):
    """What an agent asks to do. `capability` is one that the agent needs for it, besides the allowlist."""

    tool: str
    operation: str
    path: str | None = None
    host: str | None = None
    port: int | None = None
    capability: str | None = None


class Refusal(msgspec.Struct, frozen=True):
    type: ViolationType
    details: str


def judge(whitelist: SandboxWhitelist, access: Access) -> AllowedTool | Refusal:
    """The tool that allows the access, or why it is refused. Rates are judged by `spend`."""
    tool = next((tool for tool in whitelist.tools if tool.name == access.tool), None)
    if tool is None:
        return Refusal("unauthorized_tool", f"The tool {access.tool!r} is not on the allowlist.")
    if access.operation not in tool.operations:
        return Refusal("unauthorized_tool", f"The tool {tool.name!r} may not {access.operation!r}.")
    if access.path is None and tool.paths:
        return Refusal("unauthorized_path", f"The tool {tool.name!r} is limited to paths, and none was given.")
    if access.path is not None and not path_allowed(tool, access.path):
        return Refusal("unauthorized_path", f"The tool {tool.name!r} may not touch {access.path!r}.")
    if (access.host is not None or access.port is not None) and not network_allowed(whitelist, access):
        return Refusal("unsafe_network", f"{access.host}:{access.port} is not on the network allowlist.")
    return tool


def path_allowed(tool: AllowedTool, path: str) -> bool:
    """Whether a glob matches. A path that could mean another place is never matched.

    A glob without a leading slash speaks of the agent's own folder, so no absolute path matches it.
    """
    if "\0" in path or "\\" in path or ".." in path.split("/") or posixpath.normpath(path) != path:
        return False
    absolute = path.startswith("/")
    globs = (pattern for pattern in tool.paths if pattern.startswith("/") is absolute)
    return not path.startswith("//") and any(matches(glob, path) for glob in globs)


def network_allowed(whitelist: SandboxWhitelist, access: Access) -> bool:
    """Exact host or `*.domain`, and the port; both must be given and allowed."""
    network = whitelist.network
    if access.host is None or access.port is None or access.port not in network.ports:
        return False
    host = plain_host(access.host)
    return any(_host_matches(pattern.lower(), host) for pattern in network.allowlist)


def plain_host(host: str) -> str:
    """The one spelling of a name that rules are held against."""
    return host.lower().rstrip(".")


def _host_matches(pattern: str, host: str) -> bool:
    return host.endswith(pattern[1:]) and host != pattern[2:] if pattern.startswith("*.") else host == pattern


def spend(rate_limit: int, tokens: float | None, idle: int) -> float | None:
    """Tokens left after one call from a bucket of `rate_limit` per minute; None when it is empty.

    `tokens` None is a full bucket; `idle` is microseconds since it was last used.
    """
    level = rate_limit if tokens is None else min(rate_limit, tokens + max(0, idle) * rate_limit / MINUTE)
    return level - 1 if level >= 1 else None
