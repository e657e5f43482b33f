"""Which tier an update needs: one pure function. Source: core contract, "Governance update".

Fails closed: what is unknown means `human`. What the proposer says of its change is taken at its word where that makes
the tier higher, and the files, the kind of update and the patch are looked at besides.
"""

from __future__ import annotations

import re

import msgspec

from stentor.domains.governance.model import AUTO, HUMAN, MONITORED, Changes

AUTO_TRUST, LEAST_TRUST = 0.9, 0.7
"""Auto above the first, monitored from the second."""
AUTO_RATIO, LARGEST_RATIO = 0.01, 0.10
"""Auto below the first, monitored up to the second."""
_RULES = re.compile(r"(?:^|[^a-z0-9])(?:polic(?:y|ies)|governance)(?:[^a-z0-9]|$)|\.cedar$")


class Facts(msgspec.Struct, frozen=True):
    """What the tier depends on. `trust` is the decayed score at the moment of the proposal."""

    update_type: str
    changes: Changes
    known: bool = True
    active: bool = True
    trust: float | None = None
    widens: bool = False
    changes_runtime: bool = False
    forbidden: bool = False


class Classified(msgspec.Struct, frozen=True):
    """`reasons` say why it is not a lower tier; for auto they are empty."""

    tier: int
    reasons: tuple[str, ...]


def classify(facts: Facts) -> Classified:
    """The tier of an update.

    human: the agent is unknown, not active or unscored; trust below 0.7; an unknown ratio or one above 10 percent; an
    unknown flag; a breaking change; anything of policy or governance; a patch that widens the agent's capabilities
    or whitelist, or changes its runtime; a `forbid` of the policy file.
    auto: trust above 0.9, ratio below 1 percent, no new dependency. monitored: what is left.
    """
    human = tuple(_human(facts))
    if human:
        return Classified(HUMAN, human)
    monitored = tuple(_monitored(facts))
    return Classified(MONITORED, monitored) if monitored else Classified(AUTO, ())


def _human(facts: Facts) -> list[str]:
    changes, trust, ratio = facts.changes, facts.trust, facts.changes.ratio
    found = {
        "the agent is unknown": not facts.known,
        "the agent is not active": facts.known and not facts.active,
        "the agent has no trust score": facts.known and trust is None,
        f"trust is below {LEAST_TRUST:g}": trust is not None and trust < LEAST_TRUST,
        "the share of changed lines is unknown": ratio is None,
        f"more than {LARGEST_RATIO:.0%} of the lines change": ratio is not None and ratio > LARGEST_RATIO,
        "it is not said whether the change is breaking": changes.breaking is None,
        "the change is breaking": changes.breaking is True,
        "it is not said whether there are new dependencies": changes.new_dependencies is None,
        "it is not said whether policy is touched": changes.touches_policy is None,
        "policy or governance is touched": changes.touches_policy is True or touches_rules(facts),
        "the patch widens what the agent may do": facts.widens,
        "the patch changes how the agent runs": facts.changes_runtime,
        "the policy file forbids it without a person": facts.forbidden,
    }
    return [reason for reason, holds in found.items() if holds]


def _monitored(facts: Facts) -> list[str]:
    trust, ratio = facts.trust, facts.changes.ratio
    found = {
        f"trust is not above {AUTO_TRUST:g}": trust is None or trust <= AUTO_TRUST,
        f"{AUTO_RATIO:.0%} of the lines or more change": ratio is None or ratio >= AUTO_RATIO,
        "there are new dependencies": facts.changes.new_dependencies is not False,
    }
    return [reason for reason, holds in found.items() if holds]


def touches_rules(facts: Facts) -> bool:
    """Whether the kind of update or one of its files speaks of policy or governance, whatever the flag says."""
    return any(_RULES.search(text.lower()) for text in (facts.update_type, *facts.changes.files_modified))
