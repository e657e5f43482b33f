"""The commands that run servers: `stentor serve` for the whole service in one process, and `dashboard`, `vault`,
`notes` and `provenance witness` for one server each.

They parse options and report readiness; `cli.server` binds the ports and runs the servers.
"""

from __future__ import annotations

import os
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stentor.cli.command import DataDir
from stentor.cli.output import EXIT_USAGE, CommandFailed, console, error_console, print_json, report_errors
from stentor.core import settings
from stentor.core.errors import StartRefused, StentorError
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor

if TYPE_CHECKING:
    from stentor.bootstrap.surfaces.vault import OpenedVault
    from stentor.cli.server.service_runner import StartupReport
    from stentor.domains.notes.plugin_vault import PluginVault


SURFACE_LABELS = {
    "dashboard": "dashboard",
    "vault": "vault",
    "vault_tls": "vault (HTTPS)",
    "notes": "note store",
    "mcp": "governed memory (MCP)",
    "grpc": "gRPC",
}
SURFACE_PATHS = {"mcp": "/mcp"}
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of this server; 0 for any free port.")]


def serve(
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the database and the keys.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    gateway_port: Port = None,
    dashboard_port: Port = None,
    notes_port: Port = None,
    mcp_port: Port = None,
    vault_port: Port = None,
    vault_tls_port: Port = None,
    grpc_port: Port = None,
    roles: Annotated[str | None, typer.Option(help="Roles of this process, comma-separated; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report readiness as one line of JSON.")] = False,
) -> None:
    """Run the service; Ctrl-C stops it gracefully.

    The gateway, the dashboard, the vault, the note store and the governed memory each listen on their own port. gRPC is
    served only if its port is set, and needs the extra `grpc`.
    """
    # Imported late: keeps `stentor --help` fast.
    from stentor.cli.server import service_runner

    redactor = Redactor()

    def on_ready(report: service_runner.StartupReport) -> None:
        if as_json:
            print_json(_startup_document(report))
        else:
            _print_startup(report)

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
        chosen = settings.load(environ, {"SERVICE_DATA_DIR": data_dir, "SERVICE_HOST": host, **ports})
        redaction.configure_logging(chosen.server.log_level, redactor)
        service_runner.run_service(chosen, os.environ, redactor, on_ready)


def _startup_document(report: StartupReport) -> dict[str, object]:
    keys = {f"{name}_key_file": path for name, path in report.key_files.items()}
    document = {
        "ready": True,
        "gateway": report.gateway,
        **report.surfaces,
        "admin_key_file": report.admin_key_file,
        **keys,
    }
    return document | ({"warnings": report.warnings} if report.warnings else {})


def _print_startup(report: StartupReport) -> None:
    for warning in report.warnings:
        error_console.print(f"[yellow]warning:[/] {warning}")
    console.print(f"[bold]Stentor[/] listens on [cyan]{report.gateway}[/]")
    for name, address in report.surfaces.items():
        key = f", key file: {report.key_files[name]}" if name in report.key_files else ""
        console.print(f"  {SURFACE_LABELS[name]}: [cyan]{address}{SURFACE_PATHS.get(name, '')}[/]{key}", soft_wrap=True)
    if report.generated_key:
        console.print("\nNo API key is configured, so one was generated. It is shown only once:")
        console.print(f"\n    [bold]{report.generated_key}[/]\n", soft_wrap=True)
        console.print(f"Key file: {report.admin_key_file} (readable only by you).", soft_wrap=True)
    if report.resumed_tasks:
        console.print(f"Resumed {report.resumed_tasks} tasks that were running when the service last stopped.")
    console.print("Press Ctrl-C to stop.")


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
    # Imported late: keeps `stentor --help` fast.
    from stentor.bootstrap.surfaces import dashboard as service
    from stentor.bootstrap.surfaces import dashboard_parts as wiring
    from stentor.cli.server import http_server
    from stentor.cli.server.http_server import Endpoint, bind
    from stentor.web import allowed_hosts

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
        opened = wiring.alone(chosen, redactor)
        listener = bind(chosen.server.host, chosen.dashboard.port, "--port")

        def ready() -> None:
            if as_json:
                print_json({"ready": True, "dashboard": listener.address})
            else:
                console.print(f"The dashboard listens on [cyan]{listener.address}[/]", soft_wrap=True)

        app = allowed_hosts.wrap_allowed_hosts(
            opened.app, chosen.connections.allowed_hosts, service.knows_key(chosen), loopback=chosen.loopback
        )
        with listener:
            http_server.serve_endpoints(
                chosen.connections, [Endpoint(app, listener)], ready, on_exit=[opened.close], on_stop=opened.leave
            )


def vault(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of the vault; default: SERVICE_VAULT_DIR, else in the data folder."),
    ] = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="HTTP port; 0 for any free port.")] = None,
    tls_port: Annotated[int | None, typer.Option(min=0, max=65535, help="HTTPS port; 0 for any free port.")] = None,
    tls: Annotated[bool | None, typer.Option(help="Whether to serve HTTPS as well.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report readiness as one line of JSON.")] = False,
) -> None:
    """Serve a folder of notes with the REST API of Obsidian's plugin; Ctrl-C stops it gracefully."""
    # Imported late: keeps `stentor --help` fast.
    from stentor.bootstrap.surfaces import vault as wiring
    from stentor.cli.server import http_server
    from stentor.cli.server.http_server import Endpoint, bind

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
        opened = wiring.open_vault(chosen, redactor)
        opened.texts.request_load()
        listeners = [sockets.enter_context(bind(chosen.server.host, chosen.vault.port, "--port"))]
        if opened.certificate is not None:
            secure = bind(chosen.server.host, chosen.vault.tls_port, "--tls-port", opened.certificate.ssl_context)
            listeners.append(sockets.enter_context(secure))
        endpoints = [Endpoint(opened.app, listener) for listener in listeners]

        def ready() -> None:
            _print_vault_ready(opened, [listener.address for listener in listeners], as_json=as_json)

        http_server.serve_endpoints(chosen.connections, endpoints, ready, opened.background)


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
    links = " and ".join(f"[cyan]{address}[/]" for address in addresses)
    console.print(f"The vault {opened.folder} listens on {links}", soft_wrap=True)
    if opened.key_file:
        error_console.print(f"Key file: {opened.key_file} (readable only by you).", soft_wrap=True)


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
    # Imported late: keeps `stentor --help` fast.
    from stentor.bootstrap.surfaces import notes as wiring
    from stentor.cli.server import http_server
    from stentor.cli.server.http_server import Endpoint, bind

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
        # Imported late: keeps `stentor --help` fast.
        from stentor.cli.server import http_server
        from stentor.cli.server.http_server import Endpoint, bind
        from stentor.core.clock import SystemClock
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
                raise CommandFailed(f"--watch {text} is not the verifier key of a log: {error}.", EXIT_USAGE) from None
        opened = WitnessFolder(folder, name)
        try:
            server = Witness(opened, logs, SystemClock())
            listener = bind(host, port, "--port")

            def ready() -> None:
                key = server.verifier.text
                if as_json:
                    print_json({"ready": True, "witness": listener.address, "key": key})
                else:
                    console.print(f"The witness {key} listens on [cyan]{listener.address}[/]", soft_wrap=True)

            with listener:
                http_server.serve_endpoints(
                    settings.load(os.environ).connections, [Endpoint(surface.app(server), listener)], ready
                )
        finally:
            opened.close()
