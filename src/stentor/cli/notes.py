"""`stentor notes`: the note-store server over a vault plugin's REST API."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli.output import out, print_json, reporting
from stentor.core import settings
from stentor.core.errors import StartRefused, StentorError
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor

if TYPE_CHECKING:
    from stentor.domains.notes.plugin_vault import PluginVault


def notes(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; else PORT, else 3000.")] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(envvar="NOTES_TLS_CERT", help="Certificate in PEM, with its chain: answer on HTTPS alone."),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(envvar="NOTES_TLS_KEY", help="The certificate's key in PEM, without a password."),
    ] = None,
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
        redaction.configure_logging(opened.level, redactor)
        listener = bind(host, opened.port if port is None else port, "--port", _tls(tls_cert, tls_key))

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


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What the server shows on HTTPS; None for HTTP. Raises StartRefused: never falls back to HTTP."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise StartRefused("HTTPS needs both: --tls-cert (NOTES_TLS_CERT) and --tls-key (NOTES_TLS_KEY).")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without the password here OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        is_file_error = not isinstance(error, ssl.SSLError) and error.strerror
        reason = error.strerror if is_file_error else "no certificate with its key, in PEM and without a password"
        raise StartRefused(f"{certificate} and {key} cannot be used for HTTPS: {reason}.") from None
    return context


async def _look(vault: PluginVault) -> None:
    """Ask the plugin once, so that a wrong address or key stands in the log before an agent runs into it."""
    with suppress(StentorError):
        await vault.check()
