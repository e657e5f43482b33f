"""The demo's last part: the run log is verified, then one row is edited behind the service's back."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from stentor.cli.output import CommandFailed

EDIT = "update events set message = 'Nothing happened.' where event_id = ?"
VICTIM = "select event_id from events where event_type = 'violation_recorded' order by event_id limit 1"


def tamper(folder: Path) -> dict[str, Any]:
    """Verify, edit, verify again; the service is down. Raises CommandFailed when the log is not as it should be."""
    before = _verify(folder)
    with closing(sqlite3.connect(folder / "stentor.db")) as database:
        (event_id,) = database.execute(VICTIM).fetchone()
        database.execute(EDIT, (event_id,))
        database.commit()
    after = _verify(folder)
    if not before["intact"] or after["intact"]:
        raise CommandFailed(f"The run log was verified as {before['intact']}, and with an edit as {after['intact']}.")
    return {"events": before["events"], "before": before, "after": after, "edited": event_id}


def _verify(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "stentor", "provenance", "verify", "--json", "--data-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise CommandFailed(f"The verification gave no answer: {done.stderr.strip()}") from None
    return found | {"exit_code": done.returncode}


def show(told: dict[str, Any]) -> Panel:
    first, code = told["after"]["findings"][0], told["after"]["exit_code"]
    lines = [
        Text("$ stentor provenance verify", style="cyan"),
        Text(f"{told['events']} events, intact (exit code {told['before']['exit_code']})", style="green"),
        Text("$ sqlite3 stentor.db \"update events set message = 'Nothing happened.' where ...\"", style="cyan"),
        Text("$ stentor provenance verify", style="cyan"),
        Text(
            f"{first['kind']}: number {first['number']}, event {first['event_id']} (exit code {code})",
            style="bold red",
        ),
    ]
    return Panel(Group(*lines), title="A log that can be proven", title_align="left")
