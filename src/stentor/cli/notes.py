"""`stentor notes`: the note-store server over a vault plugin's REST API."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli.output import out, print_json, reporting
from stentor.core import redaction, settings
from stentor.core.errors import StentorError
from stentor.core.redaction import Redactor

if TYPE_CHECKING:
    from stentor.domains.notes.pluginvault import PluginVault


def notes(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; else PORT, else 3000.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Serve note tools for agents over a vault plugin; needs MCP_API_KEY, NOTES_BASE_URL and NOTES_API_KEY."""
    # The application takes most of the start: not for `stentor --help`.
    from stentor.bootstrap import notes as wiring
    from stentor.cli import standalone
    from stentor.cli.listening import Endpoint, bind

    redactor = Redactor()
    with reporting(as_json=as_json):
        opened = wiring.open_notes(os.environ, redactor)
        redaction.configure(opened.level, redactor)
        listener = bind(host, opened.port if port is None else port, "--port")

        def ready() -> None:
            if as_json:
                print_json({"ready": True, "notes": listener.address})
            else:
                out.print(f"The note store answers on [cyan]{listener.address}[/]", soft_wrap=True)

        with listener:
            endpoint = Endpoint(opened.app, listener)
            standalone.run(
                settings.load(os.environ), [endpoint], ready, [lambda: _look(opened.vault)], [opened.vault.close]
            )


async def _look(vault: PluginVault) -> None:
    """Ask the plugin once, so that a wrong address or key stands in the log before an agent runs into it."""
    with suppress(StentorError):
        await vault.check()
