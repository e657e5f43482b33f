"""`stentor vault`: the vault plugin's REST API over a folder, without Obsidian."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli.options import DataDir
from stentor.cli.output import err, out, print_json, reporting
from stentor.core import settings
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor

if TYPE_CHECKING:
    from stentor.bootstrap.vault import OpenedVault


def vault(
    folder: Annotated[
        Path | None, typer.Argument(help="The vault; else SERVICE_VAULT_DIR or that of the data folder.")
    ] = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of HTTP; 0 takes a free one.")] = None,
    tls_port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of HTTPS; 0 takes a free one.")] = None,
    tls: Annotated[bool | None, typer.Option(help="Whether to answer on HTTPS as well.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Serve a folder of notes as Obsidian's REST plugin would; stops cleanly on Ctrl-C."""
    # The application takes most of the start: not for `stentor --help`.
    from stentor.bootstrap import vault as wiring
    from stentor.cli import standalone
    from stentor.cli.listening import Endpoint, bind

    redactor = Redactor()
    with reporting(as_json=as_json), ExitStack() as sockets:
        options = {"data_dir": data_dir, "vault_dir": folder, "host": host, "vault_port": port}
        chosen = settings.load(os.environ, options | {"vault_tls_port": tls_port, "vault_tls": tls})
        redaction.configure_logging(chosen.log_level, redactor)
        opened = wiring.open_vault(chosen, redactor)
        opened.texts.request_load()
        listeners = [sockets.enter_context(bind(chosen.host, chosen.vault_port, "--port"))]
        if opened.certificate is not None:
            secure = bind(chosen.host, chosen.vault_tls_port, "--tls-port", opened.certificate.ssl_context)
            listeners.append(sockets.enter_context(secure))
        endpoints = [Endpoint(opened.app, listener) for listener in listeners]

        def ready() -> None:
            _say(opened, [listener.address for listener in listeners], as_json=as_json)

        standalone.run(chosen, endpoints, ready, opened.background)


def _say(opened: OpenedVault, addresses: list[str], *, as_json: bool) -> None:
    secure = addresses[1] if len(addresses) > 1 else None
    certificate = None if opened.certificate is None else str(opened.certificate.path.absolute())
    if as_json:
        named = {
            "vault": addresses[0],
            "vault_tls": secure,
            "key_file": opened.key_file,
            "certificate_file": certificate,
        }
        print_json({"ready": True, **named})
        return
    shown = " and ".join(f"[cyan]{address}[/]" for address in addresses)
    out.print(f"The vault {opened.folder} answers on {shown}", soft_wrap=True)
    if opened.key_file:
        err.print(f"Its key lies in {opened.key_file}, readable for you alone.", soft_wrap=True)
