"""Settings: policies, and who may approve an update."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class GovernanceSettings:
    policy_file: Path | None = setting(
        "SERVICE_POLICY_FILE",
        None,
        "Cedar policies that narrow routing, the tiers of updates and the use of tools; see docs/policy.md.",
        kinds.path_or_none,
    )
    self_approval: bool = setting(
        "SERVICE_GOVERNANCE_SELF_APPROVAL",
        False,
        "Whether who proposed an update may approve it: for an installation with a single admin.",
        kinds.flag,
    )
    checkpoint_days: int = setting(
        "SERVICE_CHECKPOINT_RETENTION_DAYS", 60, "Days that a checkpoint is kept.", kinds.number(1, 36_500, int)
    )
