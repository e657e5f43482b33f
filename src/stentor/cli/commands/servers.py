"""`stentor serve`: the whole service in one process.

`stentor dashboard`: the dashboard service over a data folder, whether or not its gateway runs.

`stentor vault`: the vault plugin's REST API over a folder, without Obsidian.

`stentor notes`: the note-store server over a vault plugin's REST API.

`stentor provenance witness`: a witness for other logs, in a process and a folder of its own.
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
    "dashboard": "the dashboard",
    "vault": "the vault",
    "vault_tls": "the vault",
    "notes": "the note store",
    "mcp": "the governed memory (MCP)",
    "grpc": "gRPC",
}
SURFACE_PATHS = {"mcp": "/mcp"}
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of this surface; 0 takes a free one.")]


def serve(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the database and the keys.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    gateway_port: Port = None,
    dashboard_port: Port = None,
    notes_port: Port = None,
    mcp_port: Port = None,
    vault_port: Port = None,
    vault_tls_port: Port = None,
    grpc_port: Port = None,
    roles: Annotated[
        str | None, typer.Option(help="What this process does, between commas; the default is all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Start the service; it stops cleanly on Ctrl-C.

    The gateway, the dashboard service, the vault server, the note store and the governed memory server answer each on
    a port of its own. gRPC is served when a port is chosen for it, and needs the extra `grpc`.
    """
    # uvicorn and the applications take most of the start: not for `stentor --help`.
    from stentor.cli.server import service_runner

    redactor = Redactor()

    def say(ready: service_runner.StartupReport) -> None:
        if as_json:
            print_json(_line(ready))
        else:
            _greet(ready)

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
        service_runner.run_service(chosen, os.environ, redactor, say)


def _line(ready: StartupReport) -> dict[str, object]:
    keys = {f"{name}_key_file": path for name, path in ready.key_files.items()}
    known = {"ready": True, "gateway": ready.gateway, **ready.surfaces, "admin_key_file": ready.admin_key_file, **keys}
    return known | ({"warnings": ready.warnings} if ready.warnings else {})


def _greet(ready: StartupReport) -> None:
    for warning in ready.warnings:
        error_console.print(f"[yellow]warning:[/] {warning}")
    console.print(f"[bold]Stentor[/] answers on [cyan]{ready.gateway}[/]")
    for name, address in ready.surfaces.items():
        key = f", its key lies in {ready.key_files[name]}" if name in ready.key_files else ""
        console.print(
            f"  {SURFACE_LABELS[name]} on [cyan]{address}{SURFACE_PATHS.get(name, '')}[/]{key}", soft_wrap=True
        )
    if ready.generated_key:
        console.print("\nNo key was configured, so one was made. It is shown this once:")
        console.print(f"\n    [bold]{ready.generated_key}[/]\n", soft_wrap=True)
        console.print(f"It lies in {ready.admin_key_file}, readable for you alone.", soft_wrap=True)
    if ready.resumed_tasks:
        console.print(f"{ready.resumed_tasks} tasks were running when the service last ended; they are taken up again.")
    console.print("Ctrl-C stops it.")


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
                console.print(f"The dashboard service answers on [cyan]{listener.address}[/]", soft_wrap=True)

        app = allowed_hosts.wrap_allowed_hosts(
            opened.app, chosen.connections.allowed_hosts, service.knows_key(chosen), loopback=chosen.loopback
        )
        with listener:
            http_server.serve_endpoints(
                chosen.connections, [Endpoint(app, listener)], ready, on_exit=[opened.close], on_stop=opened.leave
            )


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
        named = {
            "vault": addresses[0],
            "vault_tls": secure,
            "key_file": opened.key_file,
            "certificate_file": certificate,
        }
        print_json({"ready": True, **named})
        return
    shown = " and ".join(f"[cyan]{address}[/]" for address in addresses)
    console.print(f"The vault {opened.folder} answers on {shown}", soft_wrap=True)
    if opened.key_file:
        error_console.print(f"Its key lies in {opened.key_file}, readable for you alone.", soft_wrap=True)


def notes(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; else PORT, else 3000.")] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(envvar="NOTES_TLS_CERT", help="Certificate in PEM, with its chain: answer on HTTPS alone."),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(envvar="NOTES_TLS_KEY", help="The certificate's key in PEM, without a password."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Serve note tools for agents over a vault plugin; needs MCP_API_KEY, NOTES_BASE_URL and NOTES_API_KEY."""
    # The application takes most of the start: not for `stentor --help`.
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
                console.print(f"The note store answers on [cyan]{listener.address}[/]", soft_wrap=True)

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
    """What the server shows on HTTPS; None for HTTP. Raises StartRefused: never falls back to HTTP."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise StartRefused("HTTPS needs both: --tls-cert (NOTES_TLS_CERT) and --tls-key (NOTES_TLS_KEY).")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without the password here OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        is_file_error = not isinstance(error, ssl.SSLError) and error.strerror
        reason = error.strerror if is_file_error else "no certificate with its key, in PEM and without a password"
        raise StartRefused(f"{certificate} and {key} cannot be used for HTTPS: {reason}.") from None
    return context


async def _check_plugin(vault: PluginVault) -> None:
    """Ask the plugin once, so that a wrong address or key stands in the log before an agent runs into it."""
    with suppress(StentorError):
        await vault.check()


def witness(
    watch: Annotated[list[str], typer.Option(help="Verifier key (or its file) of a log to watch; repeatable.")],
    folder: Annotated[Path, typer.Option(help="Folder of its key and of what it signed.")] = Path("witness"),
    name: Annotated[str, typer.Option(help="Its name, needed once: such as example.com/witness.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8090,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready in one line of JSON.")] = False,
) -> None:
    """Witness the checkpoints of other logs (C2SP tlog-witness): sign what extends all that was signed before."""
    with report_errors(as_json=as_json):
        # The server and the cryptography: not for `stentor --help`.
        from stentor.cli.server import http_server
        from stentor.cli.server.http_server import Endpoint, bind
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
                raise CommandFailed(f"--watch {text} is no verifier key of a log: {error}.", EXIT_USAGE) from None
        opened = WitnessFolder(folder, name)
        try:
            made = Witness(opened, logs, SystemClock())
            listener = bind(host, port, "--port")

            def ready() -> None:
                key = made.verifier.text
                if as_json:
                    print_json({"ready": True, "witness": listener.address, "key": key})
                else:
                    console.print(f"The witness {key} answers on [cyan]{listener.address}[/]", soft_wrap=True)

            with listener:
                http_server.serve_endpoints(
                    settings.load(os.environ).connections, [Endpoint(surface.app(made), listener)], ready
                )
        finally:
            opened.close()
