"""docs/generated is what the program says of itself; `make docs` writes it again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stentor.cli import reference

FOLDER = Path(__file__).parent.parent / "docs" / "generated"
NAMES = {"cli.md", "errors.md", "http.md", "http-tasks.md", "openapi.json", "settings.md"}


def test_the_generated_reference_is_up_to_date(tmp_path: Path) -> None:
    # A process of its own: classes that other tests define must not appear in the reference.
    command = [sys.executable, "-m", "stentor.cli.reference", str(tmp_path)]
    subprocess.run(command, check=True, timeout=1100, env=os.environ | reference.PLAIN)
    written, kept = ({path.name: path.read_text() for path in folder.iterdir()} for folder in (tmp_path, FOLDER))
    assert written.keys() > NAMES
    drifted = [name for name in written.keys() | kept.keys() if written.get(name) != kept.get(name)]
    assert drifted == [], "docs/generated has drifted: run `make docs`"
