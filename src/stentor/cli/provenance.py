"""`stentor provenance ...`: verify the run log, show a run, prove an event, export."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from stentor.cli.command import perform
from stentor.cli.options import AsJson, DataDir, Key, Target, Url
from stentor.cli.output import FAILED, notice, print_json, reporting
from stentor.cli.witness import witness

if TYPE_CHECKING:
    from stentor.cli.api import Api

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
    with reporting(as_json=as_json):
        # The databases and the cryptography: not for `stentor --help`.
        from stentor.cli import provenance_files as files
        from stentor.cli import provenance_view as view
        from stentor.cli import witnesses

        chosen = files.settings_of(data_dir)
        keys = files.verifiers(chosen, verifier or [], file)
        asked = witnesses.chosen(chosen, witness or [], own=file is None)
        outside = files.outside(checkpoints or [], keys, asked.witnessing.witnesses)
        if file is None:
            outside += files.kept(chosen, keys, asked.witnessing.witnesses)
        if not offline:
            outside += witnesses.fetched(asked, keys)
        with view.bar("Verifying") as progress:
            report = files.verified(chosen, file, keys, outside, progress, asked.witnessing)
        if as_json:
            print_json(view.document(report))
        else:
            view.show(report)
        if not report.is_intact:
            raise typer.Exit(FAILED)


@app.command()
def accept(
    reason: Annotated[str, typer.Option(help="Why the history or the key changed; it is recorded in the run log.")],
    new_key: Annotated[bool, typer.Option("--new-key", help="Begin a new key in place of one that is gone.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Accept the run log as it is now, after a restore or with a new key; until then nothing is signed."""
    with reporting(as_json=as_json):
        from stentor.cli import acceptance
        from stentor.cli import provenance_files as files

        accepted = acceptance.accept(files.settings_of(data_dir), reason, new_key=new_key)
        if as_json:
            print_json(accepted._asdict() | {"acceptance": msgspec.to_builtins(accepted.acceptance)})
            return
        if accepted.made_key:
            notice(f"A new key was made. Its public half: {accepted.made_key}")
        notice(f"Accepted {accepted.acceptance.size} events although: {accepted.objection}")
        notice("A running service signs within seconds, else the next start does.")


@app.command()
def show(wanted: Id, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """The run that an event or a task is of, as a tree."""

    async def work(api: Api) -> dict[str, Any]:
        from urllib.parse import quote

        found: dict[str, Any] = await api.get(f"/provenance/{quote(wanted, safe='')}")
        return found

    def tell(run: dict[str, Any]) -> None:
        from stentor.cli import provenance_view as view

        view.show_run(run)

    perform(Target(data_dir, url, key), work, tell, as_json=as_json)


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
    from stentor.cli import provenance_files as files

    async def work(api: Api) -> dict[str, Any]:
        from urllib.parse import quote

        query = {} if size is None else {"size": size}
        found: dict[str, Any] = await api.get(f"/provenance/{quote(wanted, safe='')}/proof", **query)
        return files.judged(found, files.verifiers(files.settings_of(data_dir), verifier or [], None))

    def tell(found: dict[str, Any]) -> None:
        from stentor.cli import provenance_view as view

        view.show_proof(found)

    found = perform(Target(data_dir, url, key), work, tell, as_json=as_json)
    if not found["holds"]:
        raise typer.Exit(FAILED)


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
    with reporting():
        from stentor.cli import provenance_files as files

        chosen = files.settings_of(data_dir)
        selection = files.selection(tenant, task, since, before)
        files.exported(chosen, file, form, selection, output)
