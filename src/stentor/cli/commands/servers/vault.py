"""`stentor vault`: a folder of notes behind the REST API of Obsidian's plugin."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from stentor.bootstrap.surfaces import vault as wiring
from stentor.bootstrap.surfaces.vault import OpenedVault
from stentor.bootstrap.tls import open_certificate
from stentor.cli.command import DataDir
from stentor.cli.output import print_json, print_line, print_notice, report_errors
from stentor.core import settings
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.web.server import http_server
from stentor.web.server.http_server import Endpoint, bind


def vault(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="Folder of the vault; default: SERVICE_VAULT_DIR, else in the data folder."
        ),
    ] = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="HTTP port; 0 for any free port.")] = None,
    tls_port: Annotated[int | None, typer.Option(min=0, max=65535, help="HTTPS port; 0 for any free port.")] = None,
    tls: Annotated[bool | None, typer.Option(help="Whether to serve HTTPS as well.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report readiness as one line of JSON.")] = False,
) -> None:
    """Serve a folder of notes with the REST API of Obsidian's plugin; Ctrl-C stops it gracefully."""
    redactor = Redactor()
    with report_errors(as_json=as_json), ExitStack() as sockets:
        options = {
            "SERVICE_DATA_DIR": data_dir,
            "SERVICE_VAULT_DIR": folder,
            "SERVICE_HOST": host,
            "SERVICE_VAULT_PORT": port,
        }
        chosen = settings.load(os.environ, options | {"SERVICE_VAULT_TLS_PORT": tls_port, "SERVICE_VAULT_TLS": tls})
        redaction.configure_logging(chosen.server.log_level, redactor)
        tls_of_all = open_certificate(chosen)
        opened = wiring.open_vault(chosen, redactor, tls_of_all)
        opened.texts.request_load()
        listeners = []
        if tls_of_all is None:
            listeners.append(sockets.enter_context(bind(chosen.server.host, chosen.vault.port, "--port")))
        if opened.certificate is not None:
            secure = bind(chosen.server.host, chosen.vault.tls_port, "--tls-port", opened.certificate)
            listeners.append(sockets.enter_context(secure))
        endpoints = [Endpoint(opened.app, listener) for listener in listeners]

        def ready() -> None:
            _print_vault_ready(opened, [listener.address for listener in listeners], as_json=as_json)

        background = [*opened.background, *([tls_of_all.watch] if tls_of_all else [])]
        http_server.serve_endpoints(chosen.connections, endpoints, ready, background)


def _print_vault_ready(opened: OpenedVault, addresses: list[str], *, as_json: bool) -> None:
    secure = addresses[1] if len(addresses) > 1 else None
    certificate = None if opened.certificate is None else str(opened.certificate.path.absolute())
    if as_json:
        document = {
            "vault": addresses[0],
            "vault_tls": secure,
            "key_file": opened.key_file,
            "certificate_file": certificate,
        }
        print_json({"ready": True, **document})
        return
    also = () if secure is None else (" and ", (secure, "cyan"))
    print_line(f"The vault {opened.folder} listens on ", (addresses[0], "cyan"), *also)
    if opened.key_file:
        print_notice(f"Key file: {opened.key_file} (readable only by you).")
