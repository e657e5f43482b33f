"""`stentor search`: find notes of the memory by word and by meaning."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from stentor.cli.command import ServiceTarget, with_service
from stentor.cli.commands.memory.memory import VaultName
from stentor.cli.output import console, error_console, strip_controls
from stentor.core.jsontext import JsonObject


class FoundNote(msgspec.Struct, frozen=True):
    path: str
    title: str
    excerpt: str
    weak: bool = False


class FoundNotes(msgspec.Struct, frozen=True):
    matches: list[FoundNote]
    incomplete: bool = False


@with_service
def search(
    service: ServiceTarget,
    query: Annotated[list[str], typer.Argument(metavar="WORDS...", help="Words, or a question.")],
    limit: Annotated[int, typer.Option(min=1, max=200, help="Number of notes at most.")] = 5,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only notes that were valid at this time, such as 2026-03-01.")
    ] = None,
    vault: VaultName = "default",
) -> None:
    """Find notes by word and by meaning, the best match first; the exit code is 1 if none is found."""
    body: JsonObject = {"query": " ".join(query), "limit": limit, "vault": vault}
    if as_of is not None:
        body["as_of"] = as_of
    service.call(
        lambda api: api.post("/memory/search/hybrid", FoundNotes, body),
        _show,
        access="memory",
        is_success=lambda found: bool(found.matches),
    )


def _show(found: FoundNotes) -> None:
    for note in found.matches:
        path, title = strip_controls(note.path), strip_controls(note.title)
        mark = "  (weak match)" if note.weak else ""
        console.print(Text.assemble((path, "bold"), f"  {title}{mark}"), soft_wrap=True)
        # Always one line, so that each note takes the same space and grep shows it together with its text.
        console.print(Text("  " + " ".join(strip_controls(note.excerpt).split())), soft_wrap=True)
    if not found.matches:
        console.print("No note answers this.")
    if found.incomplete:
        error_console.print("The search index is being built, so notes may be missing.")
