"""`stentor invalidate`: mark a note, a passage of one or a source as invalid, restore it, or list what is invalid."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from stentor.cli.client.client import ServiceClient
from stentor.cli.client.responses import Response
from stentor.cli.command import ServiceTarget, with_service
from stentor.cli.commands.memory.memory import VaultName
from stentor.cli.output import EXIT_USAGE, CommandFailed, console, print_line
from stentor.core.jsontext import JsonObject
from stentor.domains.memory.validity.frontmatter_keys import split_path


class InvalidityCause(msgspec.Struct, frozen=True):
    kind: str
    target: str
    reason: str | None = None
    by: str | None = None
    at: str | None = None


class DerivationLink(msgspec.Struct, frozen=True):
    path: str
    derived_from: str


class InvalidNote(msgspec.Struct, frozen=True):
    path: str
    vault: str
    cause: InvalidityCause
    chain: list[DerivationLink]


class InvalidSource(msgspec.Struct, frozen=True):
    source: str
    reason: str
    by: str
    at: str


class MarkOutcome(msgspec.Struct, frozen=True):
    """The answer to a mark (`left`) or to its removal (`returned`)."""

    total: int
    left: list[InvalidNote] = []
    returned: list[InvalidNote] = []


class InvalidList(msgspec.Struct, frozen=True):
    sources: list[InvalidSource]
    claims: list[InvalidityCause]
    notes: list[InvalidNote]
    total: int


@with_service
def invalidate(
    service: ServiceTarget,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Path of a note, passage of one (plan.md#Costs, plan.md^id), or with --source a source.",
        ),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="What is wrong, or why it is restored.")] = None,
    source: Annotated[bool, typer.Option("--source", help="The target is a source: a URL, task:<id> or text.")] = False,
    restore: Annotated[bool, typer.Option("--restore", help="Remove the mark instead.")] = False,
    vault: VaultName = "default",
) -> None:
    """Exclude a note, a passage or a source, and everything derived from it, from search; without one, list them."""
    if target is None:
        service.call(lambda api: _list(api, vault), _show_list, access="memory")
        return
    kind = "source" if source else "claim" if split_path(target)[1] else "note"
    body: JsonObject = {kind: target, "vault": vault} | ({} if reason is None else {"reason": reason})
    service.call(
        lambda api: _mark(api, body, is_restored=restore),
        lambda outcome: _show_outcome(outcome, is_claim=kind == "claim", is_restored=restore),
        access="memory",
    )


async def _mark(api: ServiceClient, body: JsonObject, *, is_restored: bool) -> Response[MarkOutcome]:
    if not is_restored and "reason" not in body:
        raise CommandFailed("Pass --reason TEXT: what is wrong.", EXIT_USAGE)
    return await api.post(f"/memory/{'restore' if is_restored else 'invalidate'}", MarkOutcome, body)


async def _list(api: ServiceClient, vault: str) -> Response[InvalidList]:
    return await api.get("/memory/invalid", InvalidList, vault=vault, limit=500)


def _show_list(found: InvalidList) -> None:
    if not found.sources and not found.claims and not found.notes:
        console.print("Nothing is invalid.")
    for source in found.sources:
        print_line(f"source {source.source}: {source.reason} (by {source.by}, {source.at[:19]})")
    for claim in found.claims:
        print_line(f"passage {claim.target}{_describe_cause(claim)}")
    for note in found.notes:
        _print_note(note)
    if found.total > len(found.notes):
        console.print(f"and {found.total - len(found.notes)} more notes")


def _show_outcome(outcome: MarkOutcome, *, is_claim: bool, is_restored: bool) -> None:
    notes = outcome.returned if is_restored else outcome.left
    for note in notes:
        _print_note(note)
    if outcome.total > len(notes):
        console.print(f"and {outcome.total - len(notes)} more")
    if is_claim:
        console.print(f"The passage is {'no longer marked' if is_restored else 'excluded from search'}.")
        if not notes:
            return
    what = "note is searchable again" if is_restored else "note is excluded from search"
    several = "notes are searchable again" if is_restored else "notes are excluded from search"
    console.print(f"{outcome.total} {what if outcome.total == 1 else several}.")


def _print_note(note: InvalidNote) -> None:
    steps = " <- ".join(link.derived_from for link in note.chain)
    path = note.path if note.vault == "default" else f"{note.vault}: {note.path}"
    print_line(f"{path}{f' <- {steps}' if steps else ''}{_describe_cause(note.cause)}")


def _describe_cause(cause: InvalidityCause) -> str:
    reason = f": {cause.reason}" if cause.reason else ""
    return f"{reason} (by {cause.by})" if cause.by else reason
