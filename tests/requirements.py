"""The requirement manifest: every rule of the contract and every decision of ours, with its tests.

An entry is `[area.rule]` in `tests/manifest/<area>.toml` with a sentence and its source. A test says
`@requirement("area.rule")`. What is not built yet carries `deferred = <step that builds it>`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "manifest"


@dataclass(frozen=True)
class Requirement:
    id: str
    text: str
    source: str
    deferred: int | None = None


def load() -> dict[str, Requirement]:
    """All entries by id, from all files of the manifest."""
    found: dict[str, Requirement] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for area, rules in tomllib.loads(path.read_text()).items():
            for name, entry in rules.items():
                found[f"{area}.{name}"] = Requirement(id=f"{area}.{name}", **entry)
    return found


def requirement(*ids: str) -> pytest.MarkDecorator:
    """Marks a test as showing these rules."""
    return pytest.mark.requirement(*ids)
