"""`stentor provenance witness`: a witness for other logs, in a process and a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli.output import USAGE, CommandFailed, out, print_json, reporting


def witness(
    watch: Annotated[list[str], typer.Option(help="Verifier key (or its file) of a log to watch; repeatable.")],
    folder: Annotated[Path, typer.Option(help="Folder of its key and of what it signed.")] = Path("witness"),
    name: Annotated[str, typer.Option(help="Its name, needed once: such as example.com/witness.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8090,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Witness the checkpoints of other logs (C2SP tlog-witness): sign what extends all that was signed before."""
    with reporting(as_json=as_json):
        # The server and the cryptography: not for `stentor --help`.
        from stentor.cli import standalone
        from stentor.cli.listening import Endpoint, bind
        from stentor.core import settings
        from stentor.core.clock import SystemClock
        from stentor.core.security import redaction
        from stentor.core.security.redaction import Redactor
        from stentor.domains.provenance.signed_note import NoteError, parse_verifier
        from stentor.domains.provenance.witness.witness import Witness, WitnessFolder
        from stentor.surfaces import witness as surface

        redaction.configure_logging("info", Redactor())
        logs = []
        for text in watch:
            path = Path(text)
            try:
                logs.append(parse_verifier(path.read_text("utf-8") if path.is_file() else text))
            except (NoteError, OSError, UnicodeDecodeError) as error:
                raise CommandFailed(f"--watch {text} is no verifier key of a log: {error}.", USAGE) from None
        opened = WitnessFolder(folder, name)
        try:
            made = Witness(opened, logs, SystemClock())
            listener = bind(host, port, "--port")

            def ready() -> None:
                key = made.verifier.text
                if as_json:
                    print_json({"ready": True, "witness": listener.address, "key": key})
                else:
                    out.print(f"The witness {key} answers on [cyan]{listener.address}[/]", soft_wrap=True)

            with listener:
                standalone.run(settings.load(os.environ), [Endpoint(surface.app(made), listener)], ready)
        finally:
            opened.close()
