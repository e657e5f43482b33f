"""The configuration with which an MCP client starts `stentor mcp`, in the format of each supported client.

It only builds texts; it changes no file of a client.
"""

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
from stentor.core.db import database_url
from stentor.core.settings import Settings
from stentor.domains.memory.governed.authorization import READ_CAPABILITY, WRITE_CAPABILITY

SERVER_NAME = "stentor-memory"
CONFIG_LOCATIONS = {
    "claude-desktop": "Add this to claude_desktop_config.json (Settings, Developer, Edit Config) and restart the app.",
    "claude-code": "Run this command in the folder of your project, or with `--scope user` after `add` for all of your "
    "projects; then `claude mcp list` lists the server there.",
    "cursor": "Add this to ~/.cursor/mcp.json, or to .cursor/mcp.json in a project, and restart Cursor; "
    "Customize, MCPs (Settings, MCP in older versions) lists the server.",
    "vscode": "Add this to .vscode/mcp.json in a workspace, or to the user's file (MCP: Open User Configuration).",
}


@dataclass(frozen=True)
class LaunchCommand:
    """How a client starts the server; paths are absolute, because its working directory is unknown."""

    command: str
    arguments: list[str]
    environment: dict[str, str]


def create_launch_command(
    settings: Settings, principal: str, namespaces: list[str], *, read_only: bool
) -> LaunchCommand:
    """Build the launch command. Raises CommandFailed for missing or invalid namespaces."""
    if not namespaces:
        raise CommandFailed(
            "Specify what the client may access: --namespace NAME (repeatable). `vault` is the vault, `'*'` every "
            "namespace except vaults.",
            EXIT_USAGE,
        )
    if invalid := [name for name in namespaces if "," in name or not is_pattern(name)]:
        raise CommandFailed(f"{invalid[0][:80]!r} is not a valid namespace. Example: team/notes.", EXIT_USAGE)
    if (vault := find_unknown_vault(namespaces, settings.memory.vault_names)) is not None:
        raise CommandFailed(f"{vault[:80]!r} is not a vault of SERVICE_VAULTS.", EXIT_USAGE)
    capabilities = [READ_CAPABILITY] if read_only else [READ_CAPABILITY, WRITE_CAPABILITY]
    environment = {
        "SERVICE_MCP_PRINCIPAL": principal,
        "SERVICE_MCP_NAMESPACES": ",".join(namespaces),
        "SERVICE_MCP_CAPABILITIES": ",".join(capabilities),
    }
    if settings.memory.vault_dir is not None:
        environment["SERVICE_VAULT_DIR"] = str(settings.memory.vault_dir.absolute())
    if settings.memory.vaults:
        pairs = (vault.partition("=") for vault in settings.memory.vaults)
        environment["SERVICE_VAULTS"] = ",".join(f"{name}={Path(folder).absolute()}" for name, _, folder in pairs)
    environment |= _service_environment(settings)
    command, prefix = _find_program()
    return LaunchCommand(
        command, [*prefix, "mcp", "--data-dir", str(settings.storage.data_dir.absolute())], environment
    )


def _service_environment(settings: Settings) -> dict[str, str]:
    """Return what identifies the service besides its folder. Raises CommandFailed for an invalid database URL."""
    environment = {
        "SERVICE_VAULT_TENANT": settings.memory.tenant,
        "SERVICE_AUTHORITY_AUDIENCE": settings.auth.authority_audience,
    }
    environment = {name: value for name, value in environment.items() if settings.sources.get(name) != "default"}
    if settings.storage.database_url:
        try:
            # Without the password: the server opens no PostgreSQL, but with a URL it opens no SQLite either.
            url = database_url.parse_postgres_url(settings.storage.database_url).display
        except ValueError as error:
            raise CommandFailed(f"SERVICE_DATABASE_URL {error}.", EXIT_USAGE) from None
        environment["SERVICE_DATABASE_URL"] = url
    return environment


def describe_access(launch: LaunchCommand) -> str:
    """Describe in one sentence what the configuration lets the client do."""
    environment = launch.environment
    namespaces = environment["SERVICE_MCP_NAMESPACES"].split(",")
    names = [name for name in namespaces if name != ALL_NAMESPACES]
    parts = ["every namespace except vaults"] if ALL_NAMESPACES in namespaces else []
    where = " and ".join([*parts, *([f"{', '.join(names)} and everything below"] if names else [])])
    what = "read and write" if WRITE_CAPABILITY in environment["SERVICE_MCP_CAPABILITIES"].split(",") else "read"
    return f"This lets {environment['SERVICE_MCP_PRINCIPAL']!r} {what} {where}."


def render_client_config(client: str, launch: LaunchCommand) -> tuple[str, str]:
    """Return the configuration for this client and how to install it. Raises CommandFailed."""
    if client not in CONFIG_LOCATIONS:
        raise CommandFailed(f"Unknown client {client!r}. Supported: {', '.join(CONFIG_LOCATIONS)}.", EXIT_USAGE)
    server = {"command": launch.command, "args": launch.arguments, "env": launch.environment}
    if client == "claude-code":
        pairs = [part for name, value in launch.environment.items() for part in ("--env", f"{name}={value}")]
        text = shlex.join(["claude", "mcp", "add", SERVER_NAME, *pairs, "--", launch.command, *launch.arguments])
    elif client == "vscode":
        text = json.dumps({"servers": {SERVER_NAME: {"type": "stdio", **server}}}, indent=2)
    else:
        text = json.dumps({"mcpServers": {SERVER_NAME: server}}, indent=2)
    return text, CONFIG_LOCATIONS[client]


def _find_program() -> tuple[str, list[str]]:
    """Return the absolute path of this program and the arguments before the command."""
    sibling = Path(sys.executable).with_name("stentor")
    program = str(sibling) if sibling.exists() else shutil.which("stentor")
    return (program, []) if program else (sys.executable, ["-m", "stentor"])
