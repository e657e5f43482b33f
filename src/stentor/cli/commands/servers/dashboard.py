"""`stentor dashboard`: only the dashboard, over the data folder of a service that may be down."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from stentor.bootstrap.surfaces import dashboard as service
from stentor.bootstrap.surfaces import dashboard_parts as wiring
from stentor.bootstrap.tls import open_certificate
from stentor.cli.command import DataDir
from stentor.cli.output import print_json, print_line, report_errors
from stentor.core import settings
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.web import allowed_hosts
from stentor.web.server import http_server
from stentor.web.server.http_server import Endpoint, bind


def dashboard(
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 for any free port.")] = None,
    url: Annotated[str | None, typer.Option(help="URL of the gateway; default: SERVICE_URL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report readiness as one line of JSON.")] = False,
) -> None:
    """Run only the dashboard, which shows tasks and agents even while the gateway is down.

    It opens the database read-only. Work to be streamed is sent to the gateway of the data folder with the caller's own
    key. `stentor serve` already includes the dashboard.
    """
    redactor = Redactor()
    with report_errors(as_json=as_json):
        options = {
            "SERVICE_DATA_DIR": data_dir,
            "SERVICE_HOST": host,
            "SERVICE_DASHBOARD_PORT": port,
            "SERVICE_URL": url,
        }
        chosen = settings.load(os.environ, options)
        redaction.configure_logging(chosen.server.log_level, redactor)
        opened = wiring.open_alone(chosen, redactor)
        tls = open_certificate(chosen)
        listener = bind(chosen.server.host, chosen.dashboard.port, "--port", tls)

        def ready() -> None:
            if as_json:
                print_json({"ready": True, "dashboard": listener.address})
            else:
                print_line("The dashboard listens on ", (listener.address, "cyan"))

        app = allowed_hosts.wrap_allowed_hosts(
            opened.app, chosen.connections.allowed_hosts, service.key_check(chosen), loopback=chosen.loopback
        )
        with listener:
            http_server.serve_endpoints(
                chosen.connections,
                [Endpoint(app, listener)],
                ready,
                background=[tls.watch] if tls else [],
                on_exit=[opened.close],
                on_stop=opened.end_streams,
            )
