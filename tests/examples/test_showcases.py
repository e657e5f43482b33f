"""The showcases run as their pages say, without a key and to their end, and tell the story that the pages promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.readme.blocks import blocks
from tests.requirements import requirement

SHOWCASES = Path(__file__).parents[2] / "examples" / "showcases"
TELLS = {
    "pull-request-desk": [
        r"No OPENAI_API_KEY is set: a scripted model answers",
        r"#28 \S.* docs +small +yes +0\.\d\d, 0\.\d\d  0\.\d\d, 0\.\d\d\n",
        r"#32 \S.* security +large +yes",
        r"the task is pending_approval\. Approved",
        r"Saved: [3-6]\d%\.",
        r"/agents/compare\?agent=",
    ],
    "triage": [
        r"hasty wants to read inbox/\.\./\.\./\.ssh/id_ed25519: refused",
        r"hasty is quarantined",
        r"Where is my parcel\? +careful +completed +shipping",
        r"The alert, critical: hasty is quarantined",
        r"The run log is intact\.",
        r"/agents/[0-9a-f-]{36}",
    ],
    "travel-desk": [
        r"No OPENAI_API_KEY is set: a scripted model answers",
        r"kill -9, number 2: the task waits for a person",
        r"it asks: Book TP 577",
        r"The task is completed; the agent was killed 5 times\.",
        r"booked: TP 577.*\n.*booked: Hotel Sol.*\n.*booked: a small car",
        r"Requests to the agency: 6\. Bookings there: 3\.",
        r"Model calls: 4 for three offers",
        r"/tasks/[0-9a-f-]{36}",
    ],
    "librarian": [
        r"\[1\] Notes/backups\.md: Backups are taken",
        r"restored on a spare machine once a month \[1\]",
        r"Over MCP the assistant reads Projects/launch\.md",
        r"not granted: AUTHORITY_DENIED",
        r"merged: True\n +\| We launch on 19 May\..*\n +\| Done: the price list\.",
        r"its change is undone: Open: the price list\.",
        r"/memory/note\?path=Projects%2Flaunch\.md",
    ],
}
"""What each prints, in this order."""
QUICK = "pull-request-desk"
CASES: list[Any] = [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in sorted(TELLS)]


@pytest.mark.parametrize("name", CASES)
@requirement("documentation.showcases")
def test_a_showcase_tells_its_story_and_ends(name: str, tmp_path: Path) -> None:
    (command,) = (block.text.strip() for block in blocks(SHOWCASES / name / "README.md") if block.language == "bash")
    program = command.removeprefix(".venv/bin/python ")
    assert program == f"examples/showcases/{name}/run.py"
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, SHOWCASES.parents[1] / program],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert "The showcase has ended and its dashboard is closed" in run.stdout
    position = 0
    for told in TELLS[name]:
        found = re.compile(told).search(run.stdout, position)
        assert found, (told, run.stdout, run.stderr)
        position = found.end()
    # An address is not broken over lines, where nobody could click it.
    assert [line for line in run.stdout.splitlines() if len(line) > 80 and "http://" not in line] == []
    assert not list(tmp_path.iterdir()), "it removes what it made"
