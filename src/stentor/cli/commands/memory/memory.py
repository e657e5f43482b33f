"""`stentor reindex`, `stentor verify` and `stentor history`: rebuild or check the search index, list note versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
import typer

from stentor.cli.client.client import ServiceClient
from stentor.cli.client.responses import Response
from stentor.cli.command import ServiceTarget, with_service
from stentor.cli.output import EXIT_USAGE, CommandFailed, console, print_line
from stentor.cli.progress import progress_bar
from stentor.core.jsontext import JsonObject

MAX_DIFFERENCES_SHOWN = 50
_LEFT_OUT = frozenset({"invalid_name", "not_utf8", "too_large"})
"""Problems that only a person can mend. They are no difference: a check that always fails would hide the next one."""
_PROBLEM_TEXTS = {
    "missing": "is not in the index",
    "stale": "has another version in the index",
    "gone": "is only in the index",
    "invalid_name": "is left out: its path has a backslash or a control character, is not UTF-8 or too long, or "
    "there is another name that differs only in its Unicode form",
    "not_utf8": "is left out: it is not UTF-8 text",
    "too_large": "is left out: it has more than 20 MB",
    "unwritten": "is missing: the task has no note",
    "altered": "does not match its task",
}
_CAUSES = {
    "found": "found on disk",
    "edited": "edited on disk",
    "written": "written through the service",
    "restored": "restored through the service",
}
VaultName = Annotated[str, typer.Option("--vault", help="Name of a vault in SERVICE_VAULTS.")]


class NoteDifference(msgspec.Struct, frozen=True):
    """A note that differs; `problem` is a key of `_PROBLEM_TEXTS`."""

    path: str
    problem: str


class IndexReport(msgspec.Struct, frozen=True):
    """The number of notes that were indexed or compared, and how they differ.

    `task_notes` of them are notes of tasks, which the Memory page does not count.
    """

    notes: int
    task_notes: int = 0
    differences: list[NoteDifference] = []


class IndexBatch(msgspec.Struct, frozen=True):
    """One batch: `next` is where the next one starts, None after the last; `total` is an estimate of all notes."""

    done: int
    total: int
    next: str | None
    differences: list[JsonObject] = []
    what: str = "notes"


class ListedVersion(msgspec.Struct, frozen=True):
    version: str
    created_at: str
    size: int
    origin: str
    current: bool
    name: str | None = None
    cause: str = "written"
    first_at: str | None = None
    by: str | None = None
    agent_id: str | None = None


class NoteVersions(msgspec.Struct, frozen=True):
    versions: list[ListedVersion]


class VersionDocument(msgspec.Struct, frozen=True):
    document: JsonObject


class RestoredVersion(msgspec.Struct, frozen=True):
    version: str


@with_service
def reindex(service: ServiceTarget, vault: VaultName = "default") -> None:
    """Rebuild the search index from the files of the vault, and the notes of tasks. Search keeps working."""
    service.call(
        _run_in_batches("reindex", "Indexing", vault),
        lambda report: console.print(f"Indexed {report.notes} notes{_describe_parts(report)}."),
        access="memory",
    )


@with_service
def verify(service: ServiceTarget, vault: VaultName = "default") -> None:
    """Compare the search index and the tasks with the files of the vault; the exit code is 1 if they differ.

    Notes that are left out because of their name, encoding or size are listed, and are no difference.

    For the run log: stentor provenance verify.
    """
    service.call(
        _run_in_batches("verify", "Comparing", vault),
        _show_differences,
        access="memory",
        is_success=lambda report: all(d.problem in _LEFT_OUT for d in report.differences),
    )


@with_service
def history(
    service: ServiceTarget,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Path of the note in the vault, such as Projects/plan.md.")
    ],
    vault: VaultName = "default",
    restore: Annotated[str | None, typer.Option(help="Restore this version; a unique prefix is enough.")] = None,
) -> None:
    """List the stored versions of a note, newest first, even if it was deleted; or restore one."""
    if restore is None:
        service.call(lambda api: _list_versions(api, path, vault), _show_versions, access="memory")
        return
    service.call(
        lambda api: _restore(api, path, restore, vault),
        lambda note: console.print(
            f"Restored version {note.version[:12]}; the previous content is stored as a version as well."
        ),
        access="memory",
    )


async def _list_versions(api: ServiceClient, path: str, vault: str) -> Response[NoteVersions]:
    return await api.get("/memory/versions", NoteVersions, path=path, vault=vault)


async def _restore(api: ServiceClient, path: str, prefix: str, vault: str) -> Response[RestoredVersion]:
    page = await _list_versions(api, path, vault)
    matches = [note.version for note in page.value.versions if note.version.startswith(prefix.lower())]
    if len(matches) != 1:
        problem = "More than one version" if matches else "No version"
        raise CommandFailed(
            f"{problem} of {path} begins with {prefix}. List them with `stentor history {path}`.", EXIT_USAGE
        )
    stored = await api.get(f"/memory/versions/{matches[0]}", VersionDocument, path=path, vault=vault)
    body = {"operation": "write", "vault": vault, "document": stored.value.document}
    # Written like any other change, so that the current content becomes a version too.
    written = await api.post("/memory/write", JsonObject, body)
    return Response({"version": matches[0], **written.value}, RestoredVersion)


def _show_versions(page: NoteVersions) -> None:
    for note in page.versions:
        mark = "  (current)" if note.current else ""
        cause = _CAUSES.get(note.cause, note.cause) + (f" by {note.by}" if note.by else "")
        if note.first_at:
            cause += f", first stored {note.first_at[:19]}Z"
        name = f"  {note.name}" if note.name else ""
        line = f"{note.version[:12]}  {note.created_at[:19]}Z  {note.size:>8} bytes  {cause}{mark}{name}"
        print_line(line)


def _run_in_batches(route: str, word: str, vault: str) -> Callable[[ServiceClient], Awaitable[Response[IndexReport]]]:
    """Return the function that calls a route batch by batch until all notes are done, with a progress bar."""

    async def work(api: ServiceClient) -> Response[IndexReport]:
        done, of_tasks, differences = 0, 0, list[JsonObject]()
        after: str | None = ""
        with progress_bar(word) as update:
            while after is not None:
                batch = (await api.post(f"/memory/{route}", IndexBatch, {"after": after, "vault": vault})).value
                done, after = done + batch.done, batch.next
                of_tasks += batch.done if batch.what == "tasks" else 0
                differences += batch.differences
                # The total is an estimate; the actual number of notes may be higher.
                update(done, max(done, batch.total))
        document: JsonObject = {"notes": done, "task_notes": of_tasks}
        document |= {"differences": differences} if route == "verify" else {}
        return Response(document, IndexReport)

    return work


def _show_differences(report: IndexReport) -> None:
    differences = report.differences
    for difference in differences[:MAX_DIFFERENCES_SHOWN]:
        print_line(f"{difference.path} {_PROBLEM_TEXTS[difference.problem]}")
    if len(differences) > MAX_DIFFERENCES_SHOWN:
        console.print(f"and {len(differences) - MAX_DIFFERENCES_SHOWN} more")
    left_out = sum(difference.problem in _LEFT_OUT for difference in differences)
    if left_out:
        console.print(f"Left out until they are renamed, saved as UTF-8 or made smaller: {left_out}.")
    if len(differences) > left_out:
        different = len(differences) - left_out
        console.print(f"{different} of {report.notes} notes differ. Run `stentor reindex` to repair the index.")
    else:
        console.print(f"{report.notes - left_out} notes are consistent{_describe_parts(report)}.")


def _describe_parts(report: IndexReport) -> str:
    """Return how many of the notes are those of tasks, so that the number can be compared with the Memory page."""
    if not report.task_notes:
        return ""
    own = report.notes - report.task_notes
    return f": {report.task_notes} task notes, and {own} others, which the Memory page lists"
