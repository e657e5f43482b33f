"""The effect of an update: what a patch changes, whether it widens access, and which tier it needs. Pure.

Patches follow RFC 7386. The tier fails closed: unknown means `human`. The proposer's own statements can only raise the
tier; files, kind of update and patch are checked as well. Source: core contract, "Governance update".
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.formats import canonical_json, json_diff
from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import to_visible
from stentor.domains.governance.model import AUTO, HUMAN, MONITORED, Changes
from stentor.domains.registry.model import Agent, AllowedTool, Runtime, SandboxWhitelist

PATCHABLE_FIELDS = ("capabilities", "runtime", "sandbox_whitelist")
AUTO_MIN_TRUST, MONITORED_MIN_TRUST = 0.9, 0.7
"""Tier auto above the first, monitored from the second on."""
AUTO_MAX_RATIO, MONITORED_MAX_RATIO = 0.01, 0.10
"""Tier auto below the first, monitored up to the second."""
# Whole words only: "policyholder.py" is not a policy, but "policyEngine.py" and "IAMPolicy.json" are.
_HUMP = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_POLICY_WORDS = re.compile(r"(?:^|[^a-z0-9])(?:polic(?:y|ies)|governance)(?:[^a-z0-9]|$)|\.cedar$")


class AgentConfig(msgspec.Struct, frozen=True):
    """The part of an agent that a patch can change."""

    capabilities: tuple[str, ...]
    runtime: Runtime
    sandbox_whitelist: SandboxWhitelist

    @property
    def document(self) -> JsonObject:
        """The JSON form, as in a registration."""
        return dict(jsontext.load(jsontext.dump(self)))

    @property
    def digest(self) -> str:
        return canonical_json.digest(self.document)


def agent_config(agent: Agent) -> AgentConfig:
    return AgentConfig(agent.capabilities, agent.runtime, agent.sandbox_whitelist)


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386): objects are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def apply_patch(config: AgentConfig, patch: JsonObject) -> JsonObject:
    """Return the patched document. Raises InvalidRequest for fields that cannot be patched."""
    if unknown := [name for name in patch if name not in PATCHABLE_FIELDS]:
        raise InvalidRequest(
            f"changes.agent_patch may change {', '.join(PATCHABLE_FIELDS)}, not {unknown[0]!r}.",
            {"fields": {f"changes.agent_patch.{name}": "cannot be patched" for name in unknown}},
        )
    document: JsonObject = merge_patch(config.document, patch)
    return document


def check_runtime_kind(before: AgentConfig, after: AgentConfig) -> None:
    """Raise InvalidRequest if the runtime's kind changes: queued tasks of the agent depend on it."""
    if before.runtime.kind != after.runtime.kind:
        raise InvalidRequest(
            f"changes.agent_patch may not change the runtime from {before.runtime.kind!r} to {after.runtime.kind!r}. "
            "Register another agent."
        )


def diff_documents(before: Any, after: Any, path: str = "") -> list[JsonObject]:
    """Return the differences as `{path, before, after}`; a missing value is null, lists are compared as a whole.

    Both are null for a member that is null on one side and missing on the other.
    """
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if json_diff.is_same(before, after) else [{"path": path, "before": before, "after": after}]
    differences = []
    for name in dict.fromkeys((*before, *after)):
        inner = f"{path}.{name}" if path else name
        changed = diff_documents(before.get(name), after.get(name), inner)
        if not changed and (name in before) != (name in after):
            changed = [{"path": inner, "before": None, "after": None}]
        differences += changed
    return differences


def changes_runtime(before: AgentConfig, after: AgentConfig) -> bool:
    """Return whether the agents run differently: the kind, the endpoint or any option, also 1 that becomes 1.0."""
    return not json_diff.is_same(before.document["runtime"], after.document["runtime"])


def is_widening(before: AgentConfig, after: AgentConfig) -> bool:
    """Return whether `after` allows anything that `before` does not. Fails closed: if in doubt, True."""
    if not set(after.capabilities) <= set(before.capabilities):
        return True
    old, new = before.sandbox_whitelist.network, after.sandbox_whitelist.network
    if not (set(new.allowlist) <= set(old.allowlist) and set(new.ports) <= set(old.ports)):
        return True
    old_tools, new_tools = _by_name(before.sandbox_whitelist.tools), _by_name(after.sandbox_whitelist.tools)
    return any(name not in old_tools or _widens_tool(old_tools[name], tool) for name, tool in new_tools.items())


def _by_name(tools: tuple[AllowedTool, ...]) -> dict[str, AllowedTool]:
    # Reversed, because the sandbox uses the first tool of a name.
    return {tool.name: tool for tool in reversed(tools)}


def _widens_tool(old: AllowedTool, new: AllowedTool) -> bool:
    return (
        not set(new.operations) <= set(old.operations)
        or not set(new.paths) <= set(old.paths)
        # A tool without paths is not restricted to any, so neither form is contained in the other.
        or bool(new.paths) != bool(old.paths)
        or (old.rate_limit > 0 and not 0 < new.rate_limit <= old.rate_limit)
    )


class TierFacts(msgspec.Struct, frozen=True):
    """The inputs of the tier. `trust` is the decayed score at the time of the proposal."""

    update_type: str
    changes: Changes
    known: bool = True
    active: bool = True
    trust: float | None = None
    widens: bool = False
    changes_runtime: bool = False
    forbidden: bool = False


class TierDecision(msgspec.Struct, frozen=True):
    """A tier, with the reasons why it is not a lower one; empty for auto."""

    tier: int
    reasons: tuple[str, ...]


def classify_tier(facts: TierFacts) -> TierDecision:
    """Return the tier of an update.

    human: the agent is unknown, not active or unscored; trust below 0.7; the ratio of changed lines unknown or above 10
    percent; lines that change in no named file; an unknown flag; a breaking change; a change of policy or governance; a
    patch that widens capabilities or allow-list, or changes the runtime; a `forbid` of the policy file.
    auto: trust above 0.9, ratio below 1 percent, no new dependency. monitored: everything else.
    """
    human = tuple(_human_reasons(facts))
    if human:
        return TierDecision(HUMAN, human)
    monitored = tuple(_monitored_reasons(facts))
    return TierDecision(MONITORED, monitored) if monitored else TierDecision(AUTO, ())


def _human_reasons(facts: TierFacts) -> list[str]:
    changes, trust, ratio = facts.changes, facts.trust, facts.changes.changed_ratio
    conditions = {
        "the agent is unknown": not facts.known,
        "the agent is not active": facts.known and not facts.active,
        "the agent has no trust score": facts.known and trust is None,
        f"trust is below {MONITORED_MIN_TRUST:g}": trust is not None and trust < MONITORED_MIN_TRUST,
        "the share of changed lines is unknown": ratio is None,
        f"more than {MONITORED_MAX_RATIO:.0%} of the lines change": ratio is not None and ratio > MONITORED_MAX_RATIO,
        # Without names the check for files of policy would find nothing.
        "the changed files are unknown": bool(changes.lines_added or changes.lines_deleted)
        and not (changes.files_modified and all(to_visible(name).strip() for name in changes.files_modified)),
        "whether the change is breaking is unknown": changes.breaking is None,
        "the change is breaking": changes.breaking is True,
        "whether there are new dependencies is unknown": changes.new_dependencies is None,
        "whether policy is touched is unknown": changes.touches_policy is None,
        "policy or governance is touched": changes.touches_policy is True or touches_governance(facts),
        "the patch widens what the agent may do": facts.widens,
        "the patch changes how the agent runs": facts.changes_runtime,
        "the policy file forbids it without a person": facts.forbidden,
    }
    return [reason for reason, applies in conditions.items() if applies]


def _monitored_reasons(facts: TierFacts) -> list[str]:
    trust, ratio = facts.trust, facts.changes.changed_ratio
    conditions = {
        f"trust is not above {AUTO_MIN_TRUST:g}": trust is None or trust <= AUTO_MIN_TRUST,
        f"{AUTO_MAX_RATIO:.0%} of the lines or more change": ratio is None or ratio >= AUTO_MAX_RATIO,
        "there are new dependencies": facts.changes.new_dependencies is not False,
    }
    return [reason for reason, applies in conditions.items() if applies]


def touches_governance(facts: TierFacts) -> bool:
    """Return whether the kind of update or a file names policy or governance, regardless of the proposer's flag."""
    texts = (facts.update_type, *facts.changes.files_modified)
    return any(_POLICY_WORDS.search(_HUMP.sub("_", to_visible(text).strip()).lower()) for text in texts)
