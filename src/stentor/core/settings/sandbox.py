"""Settings: agents that are programs, and the cages that they run in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class SandboxSettings:
    command_agents: bool = setting(
        "SERVICE_COMMAND_AGENTS",
        False,
        "Whether agents with a `command` runtime are taken: programs that the service starts on this host.",
        kinds.flag,
    )
    cage: bool = setting(
        "SERVICE_CAGE", True, "Whether such programs run in a cage; `off` is for loopback only.", kinds.flag
    )
    cage_dir: Path | None = setting(
        "SERVICE_CAGE_DIR", None, "Folder of the cages; empty means `cage` in the data folder.", kinds.path_or_none
    )
    cage_roots: tuple[str, ...] = setting(
        "SERVICE_CAGE_ROOTS",
        (),
        "Folders that tools may reach and programs may lie in: `name=/folder`, with `:rw` to be written, comma "
        "separated.",
        kinds.items,
    )
    cage_tools: Path | None = setting(
        "SERVICE_CAGE_TOOLS", None, "TOML file of commands that caged agents may call as tools.", kinds.path_or_none
    )
