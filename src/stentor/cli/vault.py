"""`stentor vault`: the vault plugin's REST API over a folder, without Obsidian."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli.options import DataDir
from stentor.cli.output import err, out, print_json, reporting
from stentor.core import redaction, settings
from stentor.core.redaction import Redactor


def vault(
    folder: Annotated[
        Path | None, typer.Argument(help="The vault; else SERVICE_VAULT_DIR or that of the data folder.")
    ] = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Serve a folder of notes as Obsidian's REST plugin would; stops cleanly on Ctrl-C."""
    # The application takes most of the start: not for `stentor --help`.
    from stentor.bootstrap import vault as wiring
    from stentor.cli import standalone
    from stentor.cli.listening import Endpoint, bind

    redactor = Redactor()
    with reporting(as_json=as_json):
        options = {"data_dir": data_dir, "vault_dir": folder, "host": host, "vault_port": port}
        chosen = settings.load(os.environ, options)
        redaction.configure(chosen.log_level, redactor)
        opened = wiring.open_vault(chosen, redactor)
        listener = bind(chosen.host, chosen.vault_port, "--port")

        def ready() -> None:
            if as_json:
                print_json({"ready": True, "vault": listener.address, "key_file": opened.key_file})
                return
            out.print(f"The vault {opened.folder} answers on [cyan]{listener.address}[/]", soft_wrap=True)
            if opened.key_file:
                err.print(f"Its key lies in {opened.key_file}, readable for you alone.", soft_wrap=True)

        standalone.run([Endpoint(opened.app, listener)], ready, opened.texts.run())
