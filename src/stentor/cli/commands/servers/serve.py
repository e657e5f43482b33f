"""`stentor serve`: the whole service in one process. `cli.service_runner` binds the ports and runs it."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from stentor.cli.command import DataDir
from stentor.cli.output import print_line, print_notice, print_result, report_errors
from stentor.cli.service import runner as service_runner
from stentor.cli.service.runner import SURFACE_LABELS, StartupReport
from stentor.core import settings
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor

SURFACE_PATHS = {"mcp": "/mcp"}


def _port(what: str, *names: str) -> Any:
    return typer.Option(*names, min=0, max=65535, help=f"Port of {what}; 0 for any free port.")


def serve(
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    gateway_port: Annotated[int | None, _port("the API", "--gateway-port", "--port")] = None,
    dashboard_port: Annotated[int | None, _port("the dashboard")] = None,
    notes_port: Annotated[int | None, _port("the note store")] = None,
    mcp_port: Annotated[int | None, _port("the governed memory")] = None,
    vault_port: Annotated[int | None, _port("the vault over HTTP")] = None,
    vault_tls_port: Annotated[int | None, _port("the vault over HTTPS")] = None,
    grpc_port: Annotated[int | None, _port("gRPC")] = None,
    tls: Annotated[
        bool | None,
        typer.Option(help="Whether every port speaks TLS, with a certificate made at the first start or your own."),
    ] = None,
    roles: Annotated[str | None, typer.Option(help="Roles of this process, comma-separated; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report readiness as one line of JSON.")] = False,
) -> None:
    """Run the service; Ctrl-C stops it gracefully.

    The gateway, the dashboard, the vault, the note store and the governed memory each listen on their own port. gRPC is
    served only if its port is set, and needs the extra `grpc`.
    """
    redactor = Redactor()

    def on_ready(report: service_runner.StartupReport) -> None:
        print_result(report, _startup_document, _print_startup, as_json=as_json)

    with report_errors(as_json=as_json):
        ports = {
            "SERVICE_GATEWAY_PORT": gateway_port,
            "SERVICE_NOTES_PORT": notes_port,
            "SERVICE_MCP_PORT": mcp_port,
            "SERVICE_VAULT_PORT": vault_port,
        }
        ports |= {
            "SERVICE_VAULT_TLS_PORT": vault_tls_port,
            "SERVICE_DASHBOARD_PORT": dashboard_port,
            "SERVICE_GRPC_PORT": grpc_port,
        }
        environ = os.environ | ({} if roles is None else {"SERVICE_ROLES": roles})
        chosen = settings.load(
            environ, {"SERVICE_DATA_DIR": data_dir, "SERVICE_HOST": host, "SERVICE_TLS": tls, **ports}
        )
        redaction.configure_logging(chosen.server.log_level, redactor)
        service_runner.run_service(chosen, os.environ, redactor, on_ready)
        if not as_json:
            print_line("Stopped.")


def _startup_document(report: StartupReport) -> dict[str, object]:
    keys = {f"{name}_key_file": path for name, path in report.key_files.items()}
    document: dict[str, object] = {
        "ready": True,
        "gateway": report.gateway,
        **report.surfaces,
        "admin_key_file": report.admin_key_file,
        **keys,
    }
    if report.certificate is not None:
        document |= {"certificate_file": report.certificate.file, "certificate_sha256": report.certificate.sha256}
    return document | ({"warnings": report.warnings} if report.warnings else {})


def _print_startup(report: StartupReport) -> None:
    for warning in report.warnings:
        print_notice(f"warning: {warning}", "yellow")
    print_line(("Stentor", "bold"), " listens on ", (str(report.gateway), "cyan"))
    for name, address in report.surfaces.items():
        key = f", key file: {report.key_files[name]}" if name in report.key_files else ""
        tls = " over TLS" if name == "grpc" and report.certificate else ""
        print_line(f"  {SURFACE_LABELS[name]}{tls}: ", (f"{address}{SURFACE_PATHS.get(name, '')}", "cyan"), key)
    if report.certificate is not None:
        print_line(f"Certificate: {report.certificate.file}")
        print_line(f"  SHA-256 {report.certificate.sha256}")
    if report.generated_key:
        print_line("\nNo API key is configured, so one was generated. It is shown only once:")
        print_line("\n    ", (report.generated_key, "bold"), "\n")
    # Shown at every start: the start that generated the key may have failed before it could show it.
    if report.only_key_file:
        print_line(f"Key file: {report.only_key_file} (readable only by you).")
    if report.resumed_tasks:
        print_line(f"Resumed {report.resumed_tasks} tasks that were running when the service last stopped.")
    print_line("Press Ctrl-C to stop.")
