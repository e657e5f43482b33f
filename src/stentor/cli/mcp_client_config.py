"""What MCP clients want in their configuration to start `stentor mcp`. Pure but for the program's own path."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from stentor.auth.api_keys import find_unknown_vault
from stentor.auth.authority.context import ALL_NAMESPACES, is_pattern
from stentor.cli.output import EXIT_USAGE, CommandFailed
from stentor.core.settings import Settings
from stentor.domains.memory.governed.authorization import READ_CAPABILITY, WRITE_CAPABILITY

SERVER_NAME = "stentor-memory"
CONFIG_LOCATIONS = {
    "claude-desktop": "Put it into claude_desktop_config.json (Settings, Developer, Edit Config) and restart.",
    "claude-code": "Run it in a shell; `claude mcp list` shows it afterwards.",
    "vscode": "Put it into .vscode/mcp.json of a workspace, or into the user's (MCP: Open User Configuration).",
}


@dataclass(frozen=True)
class LaunchCommand:
    """How a client starts the server: absolute paths, because it may start it anywhere."""

    command: str
    arguments: list[str]
    environment: dict[str, str]


def create_launch_command(
    settings: Settings, principal: str, namespaces: list[str], *, read_only: bool
) -> LaunchCommand:
    """Raises CommandFailed for no namespace, and for what no namespace can be."""
    if not namespaces:
        raise CommandFailed(
            "Say what the client may reach: --namespace NAME, repeatable; `vault` is the vault, `'*'` everything else.",
            EXIT_USAGE,
        )
    if wrong := [name for name in namespaces if "," in name or not is_pattern(name)]:
        raise CommandFailed(f"{wrong[0][:80]!r} is no namespace, such as team/notes.", EXIT_USAGE)
    if (vault := find_unknown_vault(namespaces, settings.memory.vault_names)) is not None:
        raise CommandFailed(f"{vault[:80]!r} is no vault of SERVICE_VAULTS.", EXIT_USAGE)
    capabilities = [READ_CAPABILITY] if read_only else [READ_CAPABILITY, WRITE_CAPABILITY]
    environment = {
        "SERVICE_MCP_PRINCIPAL": principal,
        "SERVICE_MCP_NAMESPACES": ",".join(namespaces),
        "SERVICE_MCP_CAPABILITIES": ",".join(capabilities),
    }
    if settings.memory.vault_dir is not None:
        environment["SERVICE_VAULT_DIR"] = str(settings.memory.vault_dir.absolute())
    if settings.memory.vaults:
        named = (vault.partition("=") for vault in settings.memory.vaults)
        environment["SERVICE_VAULTS"] = ",".join(f"{name}={Path(folder).absolute()}" for name, _, folder in named)
    command, before = _program()
    return LaunchCommand(
        command, [*before, "mcp", "--data-dir", str(settings.storage.data_dir.absolute())], environment
    )


def describe_access(launch: LaunchCommand) -> str:
    """What the configuration lets the client do, in a sentence."""
    given = launch.environment
    spaces = given["SERVICE_MCP_NAMESPACES"].split(",")
    named = [space for space in spaces if space != ALL_NAMESPACES]
    parts = ["every namespace but vaults"] if ALL_NAMESPACES in spaces else []
    where = " and ".join([*parts, *([f"{', '.join(named)} and all below"] if named else [])])
    what = "read and write" if WRITE_CAPABILITY in given["SERVICE_MCP_CAPABILITIES"].split(",") else "read"
    return f"This lets {given['SERVICE_MCP_PRINCIPAL']!r} {what} {where}."


def render_client_config(client: str, launch: LaunchCommand) -> tuple[str, str]:
    """The text for this client, and where it goes. Raises CommandFailed."""
    if client not in CONFIG_LOCATIONS:
        raise CommandFailed(f"There is no client {client!r} here; one of {', '.join(CONFIG_LOCATIONS)}.", EXIT_USAGE)
    server = {"command": launch.command, "args": launch.arguments, "env": launch.environment}
    if client == "claude-code":
        pairs = [part for name, value in launch.environment.items() for part in ("--env", f"{name}={value}")]
        text = shlex.join(["claude", "mcp", "add", SERVER_NAME, *pairs, "--", launch.command, *launch.arguments])
    elif client == "vscode":
        text = json.dumps({"servers": {SERVER_NAME: {"type": "stdio", **server}}}, indent=2)
    else:
        text = json.dumps({"mcpServers": {SERVER_NAME: server}}, indent=2)
    return text, CONFIG_LOCATIONS[client]


def _program() -> tuple[str, list[str]]:
    """This program, by its absolute path."""
    beside = Path(sys.executable).with_name("stentor")
    found = str(beside) if beside.exists() else shutil.which("stentor")
    return (found, []) if found else (sys.executable, ["-m", "stentor"])
