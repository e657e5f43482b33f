"""`stentor mcp`: the governed memory for MCP clients, on standard input and output or over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli.command import DataDir
from stentor.cli.output import CommandFailed, print_notice, report_errors
from stentor.core import settings
from stentor.core.filesystem import read_lock_holder
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor

app = typer.Typer(help="The governed memory for MCP clients.")


@app.callback(invoke_without_command=True)
def mcp(
    context: typer.Context,
    data_dir: DataDir = None,
    http: Annotated[bool, typer.Option("--http", help="Streamable HTTP at /mcp instead of standard input.")] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on, with --http.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port, with --http; 0 takes a free one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --http: say that it is ready in one line.")] = False,
) -> None:
    """Serve the four memory tools. On standard input the authority is that of the launch configuration:
    SERVICE_MCP_PRINCIPAL, SERVICE_MCP_NAMESPACES, SERVICE_MCP_CAPABILITIES. Blank means denied.
    """
    if context.invoked_subcommand is not None:
        return
    # The protocol takes half a second to load: not for `stentor --help`.
    from stentor.cli.server import mcp_server

    redactor = Redactor()
    with report_errors(as_json=as_json):
        chosen = settings.load(
            os.environ, {"SERVICE_DATA_DIR": data_dir, "SERVICE_HOST": host, "SERVICE_MCP_PORT": port}
        )
        redaction.configure_logging("warning" if not http else chosen.server.log_level, redactor)
        if not chosen.memory.enabled:
            raise CommandFailed("The memory is switched off (SERVICE_MEMORY).")
        if http:
            _require_no_mcp_server(chosen.storage.data_dir)
            mcp_server.serve_http(chosen, os.environ, redactor, as_json=as_json)
        else:
            mcp_server.serve_stdio(chosen, os.environ, redactor)


@app.command()
def install(
    client: Annotated[str, typer.Argument(help="claude-desktop, claude-code or vscode.")] = "claude-desktop",
    principal: Annotated[str, typer.Option(help="Who the client acts as.")] = "",
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="A namespace that it reaches, or * for all; repeatable. Required: there is no default."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Without the capability to write.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Print what to put into the configuration of an MCP client; nothing is changed."""
    from stentor.cli import mcp_client_config

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
        raise CommandFailed(f"The service that runs on this folder answers already: {owner.mcp}/mcp.")
