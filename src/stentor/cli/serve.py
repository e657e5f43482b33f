"""`stentor serve`: the whole service in one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli.output import err, out, print_json, reporting
from stentor.core import redaction, settings
from stentor.core.redaction import Redactor

Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of this surface; 0 takes a free one.")]


def serve(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the database and the keys.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    gateway_port: Port = None,
    dashboard_port: Port = None,
    notes_port: Port = None,
    mcp_port: Port = None,
    vault_port: Port = None,
    grpc_port: Port = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Start the service; it stops cleanly on Ctrl-C.

    Surfaces that this version does not have yet (all but the gateway) are left out.
    """
    # uvicorn and the applications take most of the start: not for `stentor --help`.
    from stentor.cli import serving

    redactor = Redactor()

    def say(ready: serving.Ready) -> None:
        if as_json:
            print_json({"ready": True, "gateway": ready.gateway, "admin_key_file": ready.admin_key_file})
        else:
            _greet(ready)

    with reporting(as_json=as_json):
        chosen = settings.load(os.environ, {"data_dir": data_dir, "host": host, "gateway_port": gateway_port})
        redaction.configure(chosen.log_level, redactor)
        serving.run(chosen, os.environ, redactor, say)


def _greet(ready) -> None:  # type: ignore[no-untyped-def]
    for warning in ready.warnings:
        err.print(f"[yellow]warning:[/] {warning}")
    out.print(f"[bold]Stentor[/] answers on [cyan]{ready.gateway}[/]")
    if ready.made_key:
        out.print("\nNo key was configured, so one was made. It is shown this once:")
        out.print(f"\n    [bold]{ready.made_key}[/]\n", soft_wrap=True)
        out.print(f"It lies in {ready.admin_key_file}, readable for you alone.", soft_wrap=True)
    if ready.taken_up:
        out.print(f"{ready.taken_up} tasks were running when the service last ended; they are taken up again.")
    out.print("Ctrl-C stops it.")
