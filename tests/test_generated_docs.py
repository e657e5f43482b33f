"""docs/generated is what the program says of itself; `make docs` writes it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "generated"
pytestmark = pytest.mark.xdist_group("generated")  # its fixture runs once
NAMES = ["cli.md", "errors.md", "openapi.json", "settings.md"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A process of its own: classes that other tests define must not appear in the reference.
    folder = tmp_path_factory.mktemp("generated")
    subprocess.run([sys.executable, "-m", "stentor.cli.reference", str(folder)], check=True, timeout=100)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_generated_reference_is_up_to_date(written: Path, name: str) -> None:
    same = (FOLDER / name).read_text() == (written / name).read_text()
    assert same, f"docs/generated/{name} has drifted: run `make docs`"


def test_nothing_else_lies_among_the_generated_pages(written: Path) -> None:
    assert sorted(p.name for p in written.iterdir()) == NAMES
    assert sorted(p.name for p in FOLDER.iterdir()) == NAMES
