"""`stentor provenance ...`: verify the run log, show a run, prove an event, export."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.commands.servers import witness
from stentor.cli.output import EXIT_FAILED, print_json, print_notice, report_errors

if TYPE_CHECKING:
    from stentor.cli.client import ServiceClient

app = typer.Typer(help="Verify the run log, show a run, prove an event, export.", no_args_is_help=True)
app.command()(witness)

Id = Annotated[str, typer.Argument(metavar="ID", help="A provenance id or a task id.")]
File = Annotated[Path | None, typer.Option("--file", help="A database file, such as a backup.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--verifier", help="Verifier key (or its file) that checkpoints must be signed with; repeatable."),
]
Tenant = Annotated[str, typer.Option(help="Whose events.")]


@app.command()
def verify(
    file: File = None,
    checkpoints: Annotated[
        list[Path] | None, typer.Option(help="File with checkpoints that were kept elsewhere; repeatable.")
    ] = None,
    verifier: Keys = None,
    witness: Annotated[
        list[str] | None,
        typer.Option(help="Key (or its file) of a witness that must have signed; repeatable."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the configured witnesses.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every hash straight from the database; ends with 1 and names what was tampered with."""
    with report_errors(as_json=as_json):
        # The databases and the cryptography: not for `stentor --help`.
        from stentor.cli import provenance_view as view
        from stentor.cli import run_log
        from stentor.cli import run_log as files

        chosen = files.load_run_log_settings(data_dir)
        keys = files.load_verifiers(chosen, verifier or [], file)
        asked = run_log.select_witnesses(chosen, witness or [], is_own_log=file is None)
        outside = files.read_checkpoint_files(checkpoints or [], keys, asked.policy.witnesses)
        if file is None:
            outside += files.read_local_checkpoints(chosen, keys, asked.policy.witnesses)
        if not offline:
            outside += run_log.fetch_witness_checkpoints(asked, keys)
        with view.progress_bar("Verifying") as progress:
            report = files.verify_database(chosen, file, keys, outside, progress, asked.policy)
        if as_json:
            print_json(view.report_document(report))
        else:
            view.show_report(report)
        if not report.is_intact:
            raise typer.Exit(EXIT_FAILED)


@app.command()
def accept(
    reason: Annotated[str, typer.Option(help="Why the history or the key changed; it is recorded in the run log.")],
    new_key: Annotated[bool, typer.Option("--new-key", help="Begin a new key in place of one that is gone.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Accept the run log as it is now, after a restore or with a new key; until then nothing is signed."""
    with report_errors(as_json=as_json):
        from stentor.cli import run_log
        from stentor.cli import run_log as files

        accepted = run_log.accept_run_log(files.load_run_log_settings(data_dir), reason, new_key=new_key)
        if as_json:
            print_json(accepted._asdict() | {"acceptance": msgspec.to_builtins(accepted.acceptance)})
            return
        if accepted.made_key:
            print_notice(f"A new key was made. Its public half: {accepted.made_key}")
        print_notice(f"Accepted {accepted.acceptance.size} events although: {accepted.objection}")
        print_notice("A running service signs within seconds, else the next start does.")


@app.command()
def show(wanted: Id, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """The run that an event or a task is of, as a tree."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        from urllib.parse import quote

        found: dict[str, Any] = await api.get(f"/provenance/{quote(wanted, safe='')}")
        return found

    def tell(run: dict[str, Any]) -> None:
        from stentor.cli import provenance_view as view

        view.show_run(run)

    run_command(ServiceTarget(data_dir, url, key), work, tell, as_json=as_json)


@app.command()
def proof(
    wanted: Id,
    size: Annotated[int | None, typer.Option(min=1, help="Size of the tree; else that of a checkpoint.")] = None,
    verifier: Keys = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """The proof that an event is in the log, verified here; ends with 1 when it does not hold."""
    from stentor.cli import run_log as files

    async def work(api: ServiceClient) -> dict[str, Any]:
        from urllib.parse import quote

        query = {} if size is None else {"size": size}
        found: dict[str, Any] = await api.get(f"/provenance/{quote(wanted, safe='')}/proof", **query)
        return files.verify_proof(
            found, files.load_verifiers(files.load_run_log_settings(data_dir), verifier or [], None)
        )

    def tell(found: dict[str, Any]) -> None:
        from stentor.cli import provenance_view as view

        view.show_proof(found)

    found = run_command(ServiceTarget(data_dir, url, key), work, tell, as_json=as_json)
    if not found["holds"]:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def export(
    form: Annotated[Literal["prov", "otlp"], typer.Option("--format", help="W3C PROV-JSON, or OTLP/JSON lines.")],
    task: Annotated[str | None, typer.Option(help="This task alone.")] = None,
    since: Annotated[datetime | None, typer.Option(help="From this time (UTC).")] = None,
    before: Annotated[datetime | None, typer.Option(help="Up to this time (UTC), it excluded.")] = None,
    tenant: Tenant = "default",
    output: Annotated[Path | None, typer.Option(help="File to write; else standard output.")] = None,
    file: File = None,
    data_dir: DataDir = None,
) -> None:
    """Write events for other tools, straight from the database and as they are read."""
    with report_errors():
        from stentor.cli import run_log as files

        chosen = files.load_run_log_settings(data_dir)
        selection = files.parse_selection(tenant, task, since, before)
        files.export_events(chosen, file, form, selection, output)
