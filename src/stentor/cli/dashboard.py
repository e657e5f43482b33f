"""`stentor dashboard`: the dashboard service over a data folder, whether or not its gateway runs."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from stentor.cli.options import DataDir
from stentor.cli.output import out, print_json, reporting
from stentor.core import settings
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor


def dashboard(
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = None,
    url: Annotated[str | None, typer.Option(help="Gateway that takes work; else SERVICE_URL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Serve what tasks and agents do, read from the stores; the gateway may be down.

    The database is opened for reading alone. Work that is to be streamed goes to the gateway that holds the data
    folder, with the caller's own key. `stentor serve` starts the dashboard service by itself.
    """
    # The application takes most of the start: not for `stentor --help`.
    from stentor.bootstrap import dashboard as service
    from stentor.bootstrap import dashboard_parts as wiring
    from stentor.cli import standalone
    from stentor.cli.listening import Endpoint, bind
    from stentor.web import allowed_hosts

    redactor = Redactor()
    with reporting(as_json=as_json):
        options = {"data_dir": data_dir, "host": host, "dashboard_port": port, "client_url": url}
        chosen = settings.load(os.environ, options)
        redaction.configure_logging(chosen.log_level, redactor)
        opened = wiring.alone(chosen, redactor)
        listener = bind(chosen.host, chosen.dashboard_port, "--port")

        def ready() -> None:
            if as_json:
                print_json({"ready": True, "dashboard": listener.address})
            else:
                out.print(f"The dashboard service answers on [cyan]{listener.address}[/]", soft_wrap=True)

        app = allowed_hosts.wrap_allowed_hosts(
            opened.app, chosen.allowed_hosts, service.knows_key(chosen), loopback=chosen.loopback
        )
        with listener:
            standalone.run(chosen, [Endpoint(app, listener)], ready, at_end=[opened.close], leave=opened.leave)
