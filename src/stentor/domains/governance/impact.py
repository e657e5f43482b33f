"""Patches of an agent: RFC 7386 over its configuration, what they change, and whether they widen anything. Pure.

Which tier an update needs: one pure function. Source: core contract, "Governance update".

Fails closed: what is unknown means `human`. What the proposer says of its change is taken at its word where that makes
the tier higher, and the files, the kind of update and the patch are looked at besides.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from stentor.core import canonical_json, jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.governance.model import AUTO, HUMAN, MONITORED, Changes
from stentor.domains.registry.model import Agent, AllowedNetwork, AllowedTool, Runtime, SandboxWhitelist

PATCHABLE_FIELDS = ("capabilities", "runtime", "sandbox_whitelist")


class AgentConfig(msgspec.Struct, frozen=True):
    """What a patch can change of an agent."""

    capabilities: tuple[str, ...]
    runtime: Runtime
    sandbox_whitelist: SandboxWhitelist

    @property
    def document(self) -> dict[str, Any]:
        """As JSON, in the shape of a registration."""
        return dict(jsontext.load(jsontext.dump(self)))

    @property
    def digest(self) -> str:
        return canonical_json.digest(self.document)


def agent_config(agent: Agent) -> AgentConfig:
    return AgentConfig(agent.capabilities, agent.runtime, agent.sandbox_whitelist)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: objects are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def apply_patch(config: AgentConfig, patch: dict[str, Any]) -> dict[str, Any]:
    """The document after the patch. Raises InvalidRequest for a patch of anything else."""
    if unknown := [name for name in patch if name not in PATCHABLE_FIELDS]:
        raise InvalidRequest(
            f"changes.agent_patch may change {', '.join(PATCHABLE_FIELDS)}, not {unknown[0]!r}.",
            {"fields": {f"changes.agent_patch.{name}": "is not a field of the patch" for name in unknown}},
        )
    document: dict[str, Any] = merge_patch(config.document, patch)
    return document


def check_runtime_kind(before: AgentConfig, after: AgentConfig) -> None:
    """Raises InvalidRequest: tasks that wait for the agent are bound to how it is reached."""
    if before.runtime.kind != after.runtime.kind:
        raise InvalidRequest(
            f"changes.agent_patch may not make a runtime {after.runtime.kind!r} of {before.runtime.kind!r}: "
            "register another agent."
        )


def diff_documents(before: Any, after: Any, path: str = "") -> list[dict[str, Any]]:
    """What differs: `{path, before, after}`, null where there is nothing; lists are compared as a whole."""
    if before == after:
        return []
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [{"path": path, "before": before, "after": after}]
    found = []
    for name in dict.fromkeys((*before, *after)):
        found += diff_documents(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    return found


def is_widening(before: AgentConfig, after: AgentConfig) -> bool:
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


AUTO_MIN_TRUST, MONITORED_MIN_TRUST = 0.9, 0.7
"""Auto above the first, monitored from the second."""
AUTO_MAX_RATIO, MONITORED_MAX_RATIO = 0.01, 0.10
"""Auto below the first, monitored up to the second."""
_POLICY_WORDS = re.compile(r"(?:^|[^a-z0-9])(?:polic(?:y|ies)|governance)(?:[^a-z0-9]|$)|\.cedar$")


class TierFacts(msgspec.Struct, frozen=True):
    """What the tier depends on. `trust` is the decayed score at the moment of the proposal."""

    update_type: str
    changes: Changes
    known: bool = True
    active: bool = True
    trust: float | None = None
    widens: bool = False
    changes_runtime: bool = False
    forbidden: bool = False


class TierDecision(msgspec.Struct, frozen=True):
    """`reasons` say why it is not a lower tier; for auto they are empty."""

    tier: int
    reasons: tuple[str, ...]


def classify_tier(facts: TierFacts) -> TierDecision:
    """The tier of an update.

    human: the agent is unknown, not active or unscored; trust below 0.7; an unknown ratio or one above 10 percent; an
    unknown flag; a breaking change; anything of policy or governance; a patch that widens the agent's capabilities
    or whitelist, or changes its runtime; a `forbid` of the policy file.
    auto: trust above 0.9, ratio below 1 percent, no new dependency. monitored: what is left.
    """
    human = tuple(_human_reasons(facts))
    if human:
        return TierDecision(HUMAN, human)
    monitored = tuple(_monitored_reasons(facts))
    return TierDecision(MONITORED, monitored) if monitored else TierDecision(AUTO, ())


def _human_reasons(facts: TierFacts) -> list[str]:
    changes, trust, ratio = facts.changes, facts.trust, facts.changes.changed_ratio
    found = {
        "the agent is unknown": not facts.known,
        "the agent is not active": facts.known and not facts.active,
        "the agent has no trust score": facts.known and trust is None,
        f"trust is below {MONITORED_MIN_TRUST:g}": trust is not None and trust < MONITORED_MIN_TRUST,
        "the share of changed lines is unknown": ratio is None,
        f"more than {MONITORED_MAX_RATIO:.0%} of the lines change": ratio is not None and ratio > MONITORED_MAX_RATIO,
        "it is not said whether the change is breaking": changes.breaking is None,
        "the change is breaking": changes.breaking is True,
        "it is not said whether there are new dependencies": changes.new_dependencies is None,
        "it is not said whether policy is touched": changes.touches_policy is None,
        "policy or governance is touched": changes.touches_policy is True or touches_governance(facts),
        "the patch widens what the agent may do": facts.widens,
        "the patch changes how the agent runs": facts.changes_runtime,
        "the policy file forbids it without a person": facts.forbidden,
    }
    return [reason for reason, holds in found.items() if holds]


def _monitored_reasons(facts: TierFacts) -> list[str]:
    trust, ratio = facts.trust, facts.changes.changed_ratio
    found = {
        f"trust is not above {AUTO_MIN_TRUST:g}": trust is None or trust <= AUTO_MIN_TRUST,
        f"{AUTO_MAX_RATIO:.0%} of the lines or more change": ratio is None or ratio >= AUTO_MAX_RATIO,
        "there are new dependencies": facts.changes.new_dependencies is not False,
    }
    return [reason for reason, holds in found.items() if holds]


def touches_governance(facts: TierFacts) -> bool:
    """Whether the kind of update or one of its files speaks of policy or governance, whatever the flag says."""
    return any(_POLICY_WORDS.search(text.lower()) for text in (facts.update_type, *facts.changes.files_modified))
