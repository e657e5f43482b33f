"""What a check sees and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from stentor.cli.inspection import Inspection
from stentor.core.settings import Settings

Level = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """One sentence of the doctor; a warning or problem says what to do."""

    level: Level
    check: str
    message: str


@dataclass(frozen=True)
class Situation:
    """The configuration as it stands; `settings` has the defaults where a value cannot be read."""

    inspection: Inspection
    settings: Settings
    environ: Mapping[str, str]
