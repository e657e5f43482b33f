"""`stentor serve`: the whole service in one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli.output import err, out, print_json, reporting
from stentor.core import settings
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor

if TYPE_CHECKING:
    from stentor.cli.serving import Ready

SHOWN = {
    "dashboard": "the dashboard",
    "vault": "the vault",
    "vault_tls": "the vault",
    "notes": "the note store",
    "mcp": "the governed memory (MCP)",
    "grpc": "gRPC",
}
PATHS = {"mcp": "/mcp"}
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of this surface; 0 takes a free one.")]


def serve(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the database and the keys.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    gateway_port: Port = None,
    dashboard_port: Port = None,
    notes_port: Port = None,
    mcp_port: Port = None,
    vault_port: Port = None,
    vault_tls_port: Port = None,
    grpc_port: Port = None,
    roles: Annotated[
        str | None, typer.Option(help="What this process does, between commas; the default is all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Start the service; it stops cleanly on Ctrl-C.

    The gateway, the dashboard service, the vault server, the note store and the governed memory server answer each on
    a port of its own. gRPC is served when a port is chosen for it, and needs the extra `grpc`.
    """
    # uvicorn and the applications take most of the start: not for `stentor --help`.
    from stentor.cli import serving

    redactor = Redactor()

    def say(ready: serving.Ready) -> None:
        if as_json:
            print_json(_line(ready))
        else:
            _greet(ready)

    with reporting(as_json=as_json):
        ports = {"gateway_port": gateway_port, "notes_port": notes_port, "mcp_port": mcp_port, "vault_port": vault_port}
        ports |= {"vault_tls_port": vault_tls_port, "dashboard_port": dashboard_port, "grpc_port": grpc_port}
        environ = os.environ | ({} if roles is None else {"SERVICE_ROLES": roles})
        chosen = settings.load(environ, {"data_dir": data_dir, "host": host, **ports})
        redaction.configure_logging(chosen.log_level, redactor)
        serving.run(chosen, os.environ, redactor, say)


def _line(ready: Ready) -> dict[str, object]:
    keys = {f"{name}_key_file": path for name, path in ready.key_files.items()}
    known = {"ready": True, "gateway": ready.gateway, **ready.surfaces, "admin_key_file": ready.admin_key_file, **keys}
    return known | ({"warnings": ready.warnings} if ready.warnings else {})


def _greet(ready: Ready) -> None:
    for warning in ready.warnings:
        err.print(f"[yellow]warning:[/] {warning}")
    out.print(f"[bold]Stentor[/] answers on [cyan]{ready.gateway}[/]")
    for name, address in ready.surfaces.items():
        key = f", its key lies in {ready.key_files[name]}" if name in ready.key_files else ""
        out.print(f"  {SHOWN[name]} on [cyan]{address}{PATHS.get(name, '')}[/]{key}", soft_wrap=True)
    if ready.made_key:
        out.print("\nNo key was configured, so one was made. It is shown this once:")
        out.print(f"\n    [bold]{ready.made_key}[/]\n", soft_wrap=True)
        out.print(f"It lies in {ready.admin_key_file}, readable for you alone.", soft_wrap=True)
    if ready.taken_up:
        out.print(f"{ready.taken_up} tasks were running when the service last ended; they are taken up again.")
    out.print("Ctrl-C stops it.")
