"""Runs the governed memory server: for one client on standard input, or over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from stentor.bootstrap.mcp import launch_context
from stentor.cli import serving
from stentor.cli.foldercalls import FolderCalls
from stentor.cli.listening import runner
from stentor.cli.output import notice, out, print_json
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.surfaces.memory_mcp import server
from stentor.surfaces.memory_mcp.streamable_http import MCP_PATH

BLANK = (
    "Every call will be denied: SERVICE_MCP_PRINCIPAL and SERVICE_MCP_CAPABILITIES say who calls and what it may do "
    "(`stentor mcp install` prints a configuration that sets them)."
)


def on_stdio(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> None:
    """Until the client closes its end."""
    who = launch_context(settings)
    if who is None:
        notice(BLANK, "yellow")
    with runner() as loop:
        loop.run(_on_stdio(settings, environ, redactor))


async def _on_stdio(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> None:
    calls = FolderCalls(settings, environ, redactor)
    try:
        await server.serve_stdio(calls, launch_context(settings))
    finally:
        await calls.close()


def over_http(settings: Settings, environ: Mapping[str, str], redactor: Redactor, *, as_json: bool) -> None:
    """Until SIGINT or SIGTERM; the folder is this process's meanwhile. Raises StartRefused."""

    def say(ready: serving.Ready) -> None:
        address = ready.surfaces["mcp"]
        for warning in ready.warnings:
            notice(f"warning: {warning}", "yellow")
        if as_json:
            print_json({"ready": True, "mcp": address, "admin_key_file": ready.admin_key_file})
        else:
            out.print(f"The governed memory answers on [cyan]{address}{MCP_PATH}[/]", soft_wrap=True)

    serving.run(settings, environ, redactor, say, alone="mcp")
