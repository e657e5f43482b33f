"""docs/generated is what the program says of itself; `make docs` writes it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "generated"
NAMES = ["cli.md", "errors.md", "openapi.json", "settings.md"]


def test_the_generated_reference_is_up_to_date(tmp_path: Path) -> None:
    # A process of its own: classes that other tests define must not appear in the reference.
    subprocess.run([sys.executable, "-m", "stentor.cli.reference", str(tmp_path)], check=True, timeout=100)
    drifted = [name for name in NAMES if (FOLDER / name).read_text() != (tmp_path / name).read_text()]
    assert drifted == [], "docs/generated has drifted: run `make docs`"
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES
    assert sorted(path.name for path in FOLDER.iterdir()) == NAMES
