"""`stentor search`: find notes of the memory by word and by meaning."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.commands.memory import VaultName
from stentor.cli.output import console, strip_controls
from stentor.core.jsontext import JsonObject


class FoundNote(msgspec.Struct, frozen=True):
    path: str
    title: str
    excerpt: str


class FoundNotes(msgspec.Struct, frozen=True):
    matches: list[FoundNote]


def search(
    query: Annotated[list[str], typer.Argument(metavar="WORDS...", help="Words, or a question.")],
    limit: Annotated[int, typer.Option(min=1, max=200, help="Number of notes at most.")] = 5,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only notes that held at this time, such as 2026-03-01.")
    ] = None,
    vault: VaultName = "default",
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Find notes by word and by meaning, the best first; the exit code is 1 if none is found."""
    body: JsonObject = {"query": " ".join(query), "limit": limit, "vault": vault}
    if as_of is not None:
        body["as_of"] = as_of
    run_command(
        ServiceTarget(data_dir, url, key),
        lambda api: api.post("/memory/search/hybrid", FoundNotes, body),
        _show,
        as_json=as_json,
        access="memory",
        is_success=lambda found: bool(found.matches),
    )


def _show(found: FoundNotes) -> None:
    for note in found.matches:
        path, title = strip_controls(note.path), strip_controls(note.title)
        console.print(Text.assemble((path, "bold"), f"  {title}"), soft_wrap=True)
        # One line, whatever lines the note has: so that each note takes the same room, and grep shows it with its text.
        console.print(Text("  " + " ".join(strip_controls(note.excerpt).split())), soft_wrap=True)
    if not found.matches:
        console.print("No note answers this.")
