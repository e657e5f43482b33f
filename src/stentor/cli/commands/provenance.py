"""`stentor provenance ...`: verify the run log, show a run, prove an event, export, run a witness."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from stentor.cli.client.client import ServiceClient, quote_segment
from stentor.cli.client.responses import Response
from stentor.cli.command import AsJson, DataDir, ServiceTarget, with_service
from stentor.cli.commands.servers.witness import witness
from stentor.cli.output import print_json, print_notice, print_result, report_errors
from stentor.cli.progress import progress_bar
from stentor.cli.provenance import checkpoint_sources, run_log, view
from stentor.cli.provenance.run_log import CheckedEventProof, EventProof
from stentor.cli.provenance.view import Run
from stentor.cli.service.offline import load_offline_settings
from stentor.domains.provenance.signing.signing_guard import ACCEPT_HINT
from stentor.domains.provenance.store import VERIFY_HINT

app = typer.Typer(help="Verify and export the run log, show runs, prove events.", no_args_is_help=True)
app.command()(witness)

Id = Annotated[str, typer.Argument(metavar="ID", help="A provenance id or a task id.")]
File = Annotated[Path | None, typer.Option("--file", help="Database file, such as a backup; default: the service's.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--verifier", help="Verifier key (or file) that must have signed the checkpoints; repeatable."),
]
Tenant = Annotated[str, typer.Option(help="Tenant whose events are exported.")]


@app.command()
def verify(
    file: File = None,
    checkpoints: Annotated[
        list[Path] | None, typer.Option(help="File with checkpoints stored elsewhere; repeatable.")
    ] = None,
    verifier: Keys = None,
    witness: Annotated[
        list[str] | None, typer.Option(help="Key (or file) of a witness that must have signed; repeatable.")
    ] = None,
    archive: Annotated[
        Path | None, typer.Option("--archive", help="Folder of the archives, whose events are verified too.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not query the configured witnesses.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the run log's hashes directly from the database; the exit code is 1 if the log was tampered with."""
    with report_errors(as_json=as_json):
        chosen = load_offline_settings(data_dir)
        keys = checkpoint_sources.load_verifiers(chosen, verifier or [], file)
        witnesses = checkpoint_sources.select_witnesses(chosen, witness or [], is_own_log=file is None)
        outside = checkpoint_sources.read_checkpoint_files(checkpoints or [], keys, witnesses.policy.witnesses)
        if file is None:
            outside += checkpoint_sources.read_local_checkpoints(chosen, keys, witnesses.policy.witnesses)
        if not offline:
            outside += checkpoint_sources.fetch_witness_checkpoints(witnesses, keys)
        with progress_bar("Verifying") as progress:
            report = run_log.verify_database(chosen, file, keys, outside, progress, witnesses.policy)
        if archive is not None:
            with progress_bar("Verifying the archives") as progress:
                run_log.add_archives(report, chosen, file, archive, progress)
        is_intact = report.is_intact
        print_result(report, view.report_document, view.show_report, as_json=as_json, is_success=is_intact)


@app.command()
def accept(
    reason: Annotated[str, typer.Option(help="Why the history or the key changed; recorded in the run log.")],
    new_key: Annotated[bool, typer.Option("--new-key", help="Generate a new key to replace a lost one.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Accept the current run log after a restore or a lost key; until then nothing is signed."""
    with report_errors(as_json=as_json):
        accepted = run_log.accept_run_log(load_offline_settings(data_dir), reason, new_key=new_key)
        if as_json:
            print_json(accepted._asdict() | {"acceptance": msgspec.to_builtins(accepted.acceptance)})
            return
        if accepted.made_key:
            print_notice(f"Generated a new key. Its public half: {accepted.made_key}")
        mismatch = accepted.objection.partition(f" {VERIFY_HINT}")[0].removesuffix(f" {ACCEPT_HINT}")
        print_notice(f"Accepted {accepted.acceptance.size} events despite this mismatch: {mismatch}")
        print_notice(
            "A running service signs them within seconds; otherwise the next start does. "
            "Until then `stentor provenance verify` reports the mismatch."
        )


@app.command()
@with_service
def show(service: ServiceTarget, record_id: Id) -> None:
    """Show the run of an event or a task as a tree."""
    service.call(lambda api: api.get(f"/provenance/{quote_segment(record_id)}", Run), view.show_run)


@app.command()
@with_service
def proof(
    service: ServiceTarget,
    record_id: Id,
    size: Annotated[int | None, typer.Option(min=1, help="Size of the tree; default: that of a checkpoint.")] = None,
    verifier: Keys = None,
) -> None:
    """Fetch and verify the proof that an event is in the log; the exit code is 1 unless a known key signed it."""

    async def work(api: ServiceClient) -> Response[CheckedEventProof]:
        response = await api.get(f"/provenance/{quote_segment(record_id)}/proof", EventProof, size=size)
        # Read locally: the service must not choose the key with which its own proof is verified.
        keys = checkpoint_sources.load_verifiers(load_offline_settings(service.data_dir), verifier or [], None)
        result = run_log.verify_proof(response.value, keys, record_id)
        return Response(response.document | result, CheckedEventProof)

    service.call(
        work,
        view.show_proof,
        # The service chooses the root: without a signature its hashes prove nothing.
        is_success=lambda proof: proof.holds and proof.signed is True,
    )


@app.command()
def export(
    form: Annotated[Literal["prov", "otlp"], typer.Option("--format", help="W3C PROV-JSON, or OTLP/JSON lines.")],
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    since: Annotated[datetime | None, typer.Option(help="From this time (UTC).")] = None,
    before: Annotated[datetime | None, typer.Option(help="Before this time (UTC).")] = None,
    tenant: Tenant = "default",
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    file: File = None,
    data_dir: DataDir = None,
) -> None:
    """Export events for other tools, directly from the database."""
    with report_errors():
        chosen = load_offline_settings(data_dir)
        selection = run_log.parse_selection(tenant, task, since, before)
        run_log.export_events(chosen, file, form, selection, output)
