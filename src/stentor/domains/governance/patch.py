"""Patches of an agent: RFC 7386 over its configuration, what they change, and whether they widen anything. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import canonical_json, jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.registry.model import Agent, AllowedNetwork, AllowedTool, Runtime, SandboxWhitelist

FIELDS = ("capabilities", "runtime", "sandbox_whitelist")


class Config(msgspec.Struct, frozen=True):
    """What a patch can change of an agent."""

    capabilities: tuple[str, ...]
    runtime: Runtime
    sandbox_whitelist: SandboxWhitelist

    @property
    def document(self) -> dict[str, Any]:
        """As JSON, in the shape of a registration."""
        return dict(jsontext.load(jsontext.dump(self)))

    @property
    def hash(self) -> str:
        return canonical_json.digest(self.document)


def of(agent: Agent) -> Config:
    return Config(agent.capabilities, agent.runtime, agent.sandbox_whitelist)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: objects are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def merged(config: Config, patch: dict[str, Any]) -> dict[str, Any]:
    """The document after the patch. Raises InvalidRequest for a patch of anything else."""
    if unknown := [name for name in patch if name not in FIELDS]:
        raise InvalidRequest(
            f"changes.agent_patch may change {', '.join(FIELDS)}, not {unknown[0]!r}.",
            {"fields": {f"changes.agent_patch.{name}": "is not a field of the patch" for name in unknown}},
        )
    document: dict[str, Any] = merge(config.document, patch)
    return document


def check_kind(before: Config, after: Config) -> None:
    """Raises InvalidRequest: tasks that wait for the agent are bound to how it is reached."""
    if before.runtime.kind != after.runtime.kind:
        raise InvalidRequest(
            f"changes.agent_patch may not make a runtime {after.runtime.kind!r} of {before.runtime.kind!r}: "
            "register another agent."
        )


def diff(before: Any, after: Any, path: str = "") -> list[dict[str, Any]]:
    """What differs: `{path, before, after}`, null where there is nothing; lists are compared as a whole."""
    if before == after:
        return []
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [{"path": path, "before": before, "after": after}]
    found = []
    for name in dict.fromkeys((*before, *after)):
        found += diff(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    return found


def widens(before: Config, after: Config) -> bool:
    """Whether the agent may do anything afterwards that it may not do now. In doubt it does."""
    if not set(after.capabilities) <= set(before.capabilities):
        return True
    now, then = before.sandbox_whitelist, after.sandbox_whitelist
    return _widens_network(now.network, then.network) or _widens_tools(now.tools, then.tools)


def _widens_network(now: AllowedNetwork, then: AllowedNetwork) -> bool:
    return not (set(then.allowlist) <= set(now.allowlist) and set(then.ports) <= set(now.ports))


def _widens_tools(now: tuple[AllowedTool, ...], then: tuple[AllowedTool, ...]) -> bool:
    known, wanted = _by_name(now), _by_name(then)
    return any(name not in known or _widens_tool(known[name], tool) for name, tool in wanted.items())


def _by_name(tools: tuple[AllowedTool, ...]) -> dict[str, AllowedTool]:
    """The one that counts: the sandbox takes the first of a name."""
    return {tool.name: tool for tool in reversed(tools)}


def _widens_tool(now: AllowedTool, then: AllowedTool) -> bool:
    """Without paths a tool may be used without one, and with none of its own: neither is a part of the other."""
    return (
        not set(then.operations) <= set(now.operations)
        or not set(then.paths) <= set(now.paths)
        or bool(then.paths) != bool(now.paths)
        or (now.rate_limit > 0 and not 0 < then.rate_limit <= now.rate_limit)
    )
