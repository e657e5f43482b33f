"""How the gateway ranks: known from its settings in its own process, else from what its last decision recorded."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core.clock import format_iso
from stentor.domains.routing.model import Policy
from stentor.surfaces.dashboard.store import Decided


class Ranking(msgspec.Struct, frozen=True):
    """What the settings of the gateway say; `trust_available` is its view in memory."""

    policy: Policy
    trust_available: bool


def shown(ranking: Ranking | None, decided: Decided | None) -> dict[str, Any]:
    """What is not known is None: the settings of a gateway in another process are its own."""
    if ranking is not None:
        policy = ranking.policy
        own: dict[str, Any] = {
            "source": "settings",
            "own_authority": policy.own_authority,
            "policy_file": policy.permitted is not None,
            "trust_available": ranking.trust_available,
            "decided_at": format_iso(decided.at) if decided else None,
        }
        return own | _weights(policy.alpha, policy.beta, policy.trust_floor)
    unknown = {"own_authority": None, "policy_file": None}
    if decided is None:
        nothing = dict.fromkeys(("alpha", "beta", "trust_floor", "trust_available", "decided_at"))
        return {"source": "unknown", **unknown, **nothing}
    known = {
        "source": "last_decision",
        "trust_available": decided.trust_available,
        "decided_at": format_iso(decided.at),
    }
    return known | unknown | _weights(decided.alpha, decided.beta, decided.trust_floor)


def _weights(alpha: float, beta: float, floor: float) -> dict[str, float]:
    """As in `domains/routing/ranking.py`."""
    return {"alpha": alpha, "beta": beta, "trust_floor": floor}
