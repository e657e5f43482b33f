"""`stentor notes`: the note store over a vault plugin, in a process of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli.output import out, print_json, reporting
from stentor.core import redaction
from stentor.core.errors import StentorError
from stentor.core.redaction import Redactor

if TYPE_CHECKING:
    from stentor.domains.notes.pluginvault import PluginVault


def notes(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port, else PORT, else 3000; 0 takes a free one.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds that the vault plugin may take.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Serve the note store's tools over a vault plugin.

    Needs MCP_API_KEY, NOTES_BASE_URL and NOTES_API_KEY in the environment.
    """
    with reporting(as_json=as_json):
        # An HTTP client and a server: not for `stentor --help`.
        from stentor.cli import standalone
        from stentor.domains.notes.plugin import Plugin
        from stentor.domains.notes.pluginvault import PluginVault
        from stentor.surfaces.notestore import app, settings

        chosen = settings.load(os.environ, port)
        redactor = Redactor()
        redactor.add(chosen.key)
        redactor.add(chosen.plugin_key)
        redaction.configure(chosen.log_level, redactor)
        vault = PluginVault(Plugin(chosen.address, chosen.plugin_key, timeout))

        looking: list[asyncio.Task[None]] = []

        def say(address: str) -> None:
            looking.append(asyncio.create_task(_look(vault)))
            if as_json:
                print_json({"ready": True, "notes": address})
            else:
                out.print(f"The note store answers on [cyan]{address}[/]\nCtrl-C stops it.")

        async def close() -> None:
            for task in looking:
                task.cancel()
            await vault.close()

        standalone.run(app.build(vault, chosen.key, patience=timeout), host, chosen.port, say, close)


async def _look(vault: PluginVault) -> None:
    """Ask the plugin once, so that a wrong address or key stands in the log before an agent runs into it."""
    with suppress(StentorError):
        await vault.check()
