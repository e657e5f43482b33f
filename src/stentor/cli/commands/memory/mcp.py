"""`stentor mcp`: serve the governed memory to MCP clients, on standard input or over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli.command import DataDir
from stentor.cli.output import CommandFailed, print_notice, report_errors
from stentor.core import settings
from stentor.core.filesystem import read_lock_holder
from stentor.core.lazy_import import lazy_module
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor

if TYPE_CHECKING:
    from stentor.cli.mcp import client_config as mcp_client_config
    from stentor.cli.mcp import server as mcp_server
else:
    # Each command imports only what it needs: MCP clients wait five seconds for the server.
    mcp_client_config = lazy_module("stentor.cli.mcp.client_config")
    mcp_server = lazy_module("stentor.cli.mcp.server")

app = typer.Typer(help="Serve the governed memory to MCP clients.")


@app.callback(invoke_without_command=True)
def mcp(
    context: typer.Context,
    data_dir: DataDir = None,
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP at /mcp, not standard input.")] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on, with --http.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port, with --http; 0 for any free port.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --http: report readiness as one line of JSON.")] = False,
) -> None:
    """Serve the four memory tools. On standard input, the environment defines what the client may do:
    SERVICE_MCP_PRINCIPAL, SERVICE_MCP_NAMESPACES, SERVICE_MCP_CAPABILITIES. An empty value denies access.
    """
    if context.invoked_subcommand is not None:
        return
    redactor = Redactor()
    with report_errors(as_json=as_json):
        chosen = settings.load(
            os.environ, {"SERVICE_DATA_DIR": data_dir, "SERVICE_HOST": host, "SERVICE_MCP_PORT": port}
        )
        # Standard error of a server on standard input goes to the log of its client.
        redaction.configure_logging("warning" if not http else chosen.server.log_level, redactor)
        if not chosen.memory.enabled:
            raise CommandFailed("The memory is disabled (SERVICE_MEMORY).")
        if http:
            _require_no_mcp_server(chosen.storage.data_dir)
            mcp_server.serve_http(chosen, os.environ, redactor, as_json=as_json)
        else:
            mcp_server.serve_stdio(chosen, os.environ, redactor)


@app.command()
def install(
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="claude-desktop, claude-code, cursor or vscode.")
    ] = "claude-desktop",
    principal: Annotated[str, typer.Option(help="Principal that the client acts as; default: the client.")] = "",
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="A namespace that it may access, or * for all except vaults; repeatable. Required."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Do not allow writing.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Print the configuration for an MCP client; no file is changed."""
    with report_errors():
        chosen = settings.load(os.environ, {"SERVICE_DATA_DIR": data_dir})
        launch = mcp_client_config.create_launch_command(
            chosen, principal or client, namespace or [], read_only=read_only
        )
        text, where = mcp_client_config.render_client_config(client, launch)
        sys.stdout.write(text + "\n")
    print_notice(mcp_client_config.describe_access(launch), "yellow")
    print_notice(where, "dim")


def _require_no_mcp_server(data_dir: Path) -> None:
    owner = read_lock_holder(data_dir) if data_dir.exists() else None
    if owner is not None and owner.mcp:
        raise CommandFailed(f"The service on this data folder already serves it: {owner.mcp}/mcp.")
