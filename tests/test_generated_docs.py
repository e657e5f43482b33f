"""docs/generated is what the program says of itself; `make docs` writes it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from stentor.cli import reference
from tests import ahead
from tests.conftest import shared_folder

FOLDER = Path(__file__).parent.parent / "docs" / "generated"
NAMES = {"cli.md", "errors.md", "http.md", "http-tasks.md", "openapi.json", "settings.md"}


def test_the_generated_reference_is_up_to_date(tmp_path_factory: pytest.TempPathFactory) -> None:
    # A process of its own: classes that other tests define must not appear in the reference.
    folder = shared_folder(tmp_path_factory) / "reference"
    done = ahead.run(ahead.reference(folder), reference.PLAIN)
    assert done.returncode == 0, done.stdout + done.stderr
    written, kept = ({path.name: path.read_text() for path in one.iterdir()} for one in (folder, FOLDER))
    assert written.keys() > NAMES
    drifted = [name for name in written.keys() | kept.keys() if written.get(name) != kept.get(name)]
    assert drifted == [], "docs/generated has drifted: run `make docs`"
