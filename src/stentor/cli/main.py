"""The `stentor` program: the Typer application with all commands and groups of `stentor.cli.commands`."""

from __future__ import annotations

import typer

from stentor import __version__
from stentor.cli.commands import (
    agent,
    db,
    governance,
    installation,
    llm,
    mcp,
    policy,
    provenance,
    receipt,
    task,
    webhook,
)
from stentor.cli.commands.installation import config, doctor
from stentor.cli.commands.memory import history, reindex, verify
from stentor.cli.commands.servers import dashboard, notes, serve, vault
from stentor.cli.demo import demo
from stentor.core import filesystem

app = typer.Typer(
    help="A self-hosted control plane for software agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(demo)
app.add_typer(task.app, name="task")
app.add_typer(agent.app, name="agent")
app.add_typer(governance.app, name="governance")
app.add_typer(policy.app, name="policy")
app.add_typer(receipt.app, name="receipt")
app.add_typer(mcp.app, name="mcp")
app.add_typer(llm.app, name="llm")
app.add_typer(webhook.app, name="webhook")
app.add_typer(provenance.app, name="provenance")
app.add_typer(db.app, name="db")
app.add_typer(installation.keys_app, name="keys")
app.command()(vault)
app.command()(notes)
app.command()(dashboard)
app.command()(reindex)
app.command()(verify)
app.command()(history)
app.command()(config)
app.command()(doctor)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"stentor {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """A self-hosted control plane for software agents."""
    filesystem.set_private_umask()


def main() -> None:
    app()
