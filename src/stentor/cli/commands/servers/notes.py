"""`stentor notes`: the note store alone, on top of a vault plugin."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from stentor.bootstrap.surfaces import notes as wiring
from stentor.cli.output import console, print_json, report_errors
from stentor.core import settings
from stentor.core.errors import StartRefused, StentorError
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.web.server import http_server
from stentor.web.server.http_server import Endpoint, bind


def notes(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; default: PORT, else 3000.")] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(envvar="NOTES_TLS_CERT", help="Certificate chain in PEM; serves HTTPS only."),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(envvar="NOTES_TLS_KEY", help="Private key of the certificate in PEM, without a password."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report readiness as one line of JSON.")] = False,
) -> None:
    """Serve note tools for agents on top of a vault plugin; needs MCP_API_KEY, NOTES_BASE_URL and NOTES_API_KEY."""
    redactor = Redactor()
    with report_errors(as_json=as_json):
        opened = wiring.open_notes(os.environ, redactor)
        redaction.configure_logging(opened.level, redactor)
        listener = bind(host, opened.port if port is None else port, "--port", _load_tls_context(tls_cert, tls_key))

        def ready() -> None:
            if as_json:
                print_json({"ready": True, "notes": listener.address})
            else:
                console.print(f"The note store listens on [cyan]{listener.address}[/]", soft_wrap=True)

        with listener:
            endpoint = Endpoint(opened.app, listener)
            http_server.serve_endpoints(
                settings.load(os.environ).connections,
                [endpoint],
                ready,
                [lambda: _check_plugin(opened.vault)],
                [opened.vault.close],
            )


def _load_tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Load the certificate; None without options, for HTTP. Raises StartRefused: it never falls back to HTTP."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise StartRefused("HTTPS needs both --tls-cert (NOTES_TLS_CERT) and --tls-key (NOTES_TLS_KEY).")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password argument OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        is_file_error = not isinstance(error, ssl.SSLError) and error.strerror
        reason = error.strerror if is_file_error else "not a PEM certificate with its private key without a password"
        raise StartRefused(f"{certificate} and {key} cannot be used for HTTPS: {reason}.") from None
    return context


async def _check_plugin(vault: PluginVault) -> None:
    """Call the plugin once, so that a wrong URL or key shows up in the log before an agent uses it."""
    with suppress(StentorError):
        await vault.check()
