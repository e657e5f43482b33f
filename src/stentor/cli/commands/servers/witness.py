"""`stentor provenance witness`: a witness for the logs of other installations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stentor.bootstrap.tls import open_certificate
from stentor.cli.output import EXIT_USAGE, CommandFailed, print_json, print_line, report_errors
from stentor.core import settings
from stentor.core.clock import SystemClock
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.domains.provenance.signing.signed_note import NoteError, parse_verifier
from stentor.domains.provenance.witness.witness import Witness, WitnessFolder
from stentor.surfaces import witness as surface
from stentor.web.server import http_server
from stentor.web.server.http_server import Endpoint, bind


def witness(
    watch: Annotated[list[str], typer.Option(help="Verifier key (or file) of a log to watch; repeatable.")],
    folder: Annotated[Path, typer.Option(help="Folder for its key and its signed state.")] = Path("witness"),
    name: Annotated[str, typer.Option(help="Its name, such as example.com/witness; needed only once.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free port.")] = 8090,
    as_json: Annotated[bool, typer.Option("--json", help="Report readiness as one line of JSON.")] = False,
) -> None:
    """Run a witness for other logs (C2SP tlog-witness): it cosigns checkpoints that extend what it signed before."""
    with report_errors(as_json=as_json):
        redaction.configure_logging("info", Redactor())
        logs = []
        for text in watch:
            path = Path(text)
            try:
                logs.append(parse_verifier(path.read_text("utf-8") if path.is_file() else text))
            except (NoteError, OSError, UnicodeDecodeError) as error:
                raise CommandFailed(f"--watch {text} is not the verifier key of a log: {error}.", EXIT_USAGE) from None
        opened = WitnessFolder(folder, name)
        try:
            server = Witness(opened, logs, SystemClock())
            chosen = settings.load(os.environ, {"SERVICE_HOST": host})
            tls = open_certificate(chosen)
            listener = bind(host, port, "--port", tls)

            def ready() -> None:
                key = server.verifier.text
                if as_json:
                    print_json({"ready": True, "witness": listener.address, "key": key})
                else:
                    print_line(f"The witness {key} listens on ", (listener.address, "cyan"))

            with listener:
                endpoint = Endpoint(surface.app(server), listener)
                http_server.serve_endpoints(chosen.connections, [endpoint], ready, [tls.watch] if tls else [])
        finally:
            opened.close()
