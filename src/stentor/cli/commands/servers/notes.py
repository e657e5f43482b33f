"""`stentor notes`: only the note store, on top of a vault plugin."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.bootstrap.surfaces import notes as wiring
from stentor.bootstrap.tls import open_certificate
from stentor.cli.output import print_json, print_line, report_errors
from stentor.core import settings
from stentor.core.errors import StartRefused, StentorError
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.web.server import http_server
from stentor.web.server.http_server import Endpoint, bind

if TYPE_CHECKING:
    from stentor.web.server.certificate import ServedCertificate


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
        chosen = settings.load(os.environ, {"SERVICE_HOST": host})
        tls = _open_certificate(tls_cert, tls_key) or open_certificate(chosen)
        listener = bind(host, opened.port if port is None else port, "--port", tls)

        def ready() -> None:
            if as_json:
                print_json({"ready": True, "notes": listener.address})
            else:
                print_line("The note store listens on ", (listener.address, "cyan"))

        with listener:
            endpoint = Endpoint(opened.app, listener)
            http_server.serve_endpoints(
                chosen.connections,
                [endpoint],
                ready,
                [lambda: _check_plugin(opened.vault), *([tls.watch] if tls else [])],
                [opened.vault.close],
            )


def _open_certificate(certificate: Path | None, key: Path | None) -> ServedCertificate | None:
    """Load the certificate of the options; None without them. Raises StartRefused: it never falls back to HTTP."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise StartRefused("HTTPS needs both --tls-cert (NOTES_TLS_CERT) and --tls-key (NOTES_TLS_KEY).")
    # Imported late: nothing needs it without TLS.
    from stentor.web.server.certificate import ServedCertificate

    return ServedCertificate(certificate, key)


async def _check_plugin(vault: PluginVault) -> None:
    """Call the plugin once, so that a wrong URL or key shows up in the log before an agent uses it."""
    with suppress(StentorError):
        await vault.check()
