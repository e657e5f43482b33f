"""Whether programs of agents can be run, and run caged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from stentor.bootstrap.cage import cage_of
from stentor.cli.checks.finding import Finding, Situation
from stentor.core.errors import SandboxUnavailable, StartRefused
from stentor.domains.sandbox.broker import programs
from stentor.domains.sandbox.cage.cage import Cage, check_folder


def cage(situation: Situation) -> Iterator[Finding]:
    """Makes a cage in a folder of its own, so that a running service keeps its own."""
    settings = situation.settings
    if not settings.command_agents:
        yield Finding("ok", "cage", "Command agents are switched off (SERVICE_COMMAND_AGENTS).")
        return
    if not settings.cage:
        message = "SERVICE_CAGE=off: programs of agents have all rights of the service's user. Unset it."
        yield Finding("warning", "cage", message)
        return
    try:
        chosen = cage_of(settings)
        programs.load(settings.cage_tools, chosen)
        check_folder(chosen.folder)
    except (StartRefused, SandboxUnavailable) as error:
        yield Finding("problem", "cage", error.message)
    with tempfile.TemporaryDirectory(prefix="stentor-") as folder:
        Path(folder).chmod(0o711)
        tried = Cage(Path(folder) / "cage", {})
        tried.open()
    if tried.problem is not None:
        yield Finding("problem", "cage", f"Command agents are refused: {tried.problem}")
    else:
        yield Finding("ok", "cage", "A program was run in a cage.")
