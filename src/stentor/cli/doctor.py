"""`stentor doctor`: what is configured, what is reachable, what is unsafe, and what to do about it."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import typer

from stentor.cli import display
from stentor.cli.options import AsJson, DataDir
from stentor.cli.output import FAILED, out, print_json, reporting


def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check the installation; the exit code is 1 when there is a problem."""
    with reporting(as_json=as_json):
        # The checks bring an HTTP client and the databases: not for `stentor --help`.
        from stentor.cli import checks

        found = checks.run(os.environ, data_dir)
        bad = any(finding.level == "problem" for finding in found)
        if as_json:
            print_json({"ok": not bad, "checks": msgspec.to_builtins(found)})
        else:
            _show([(f.level, f.check, f.message) for f in found])
        if bad:
            raise typer.Exit(FAILED)


def _show(rows: list[tuple[Any, ...]]) -> None:
    out.print(display.table(("", "check", "what was found"), rows))
