"""`stentor reindex`, `stentor verify` and `stentor history`: rebuild or check the search index, list note versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stentor.cli.client import ServiceClient
from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_FAILED, EXIT_USAGE, CommandFailed, console, error_console, strip_controls

MAX_DIFFERENCES_SHOWN = 50
_PROBLEM_TEXTS = {
    "missing": "is not in the index",
    "stale": "has another version in the index",
    "gone": "is only in the index",
    "unwritten": "is missing: the task has no note",
    "altered": "does not match its task",
}


VaultName = Annotated[str, typer.Option("--vault", help="Name of a vault in SERVICE_VAULTS.")]


def reindex(
    vault: VaultName = "default", data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Rebuild the search index from the files of the vault, and the notes of tasks. Search keeps working meanwhile."""
    work = _run_in_batches("reindex", "Indexing", vault)
    run_command(ServiceTarget(data_dir, url, key), work, _show_indexed, as_json=as_json, access="memory")


def verify(
    vault: VaultName = "default", data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Compare the search index and the tasks with the files of the vault; the exit code is 1 if they differ."""
    work = _run_in_batches("verify", "Comparing", vault)
    result = run_command(ServiceTarget(data_dir, url, key), work, _show_differences, as_json=as_json, access="memory")
    if result["differences"]:
        raise typer.Exit(EXIT_FAILED)


def history(
    path: Annotated[str, typer.Argument(help="Path of the note in the vault, such as Projects/plan.md.")],
    vault: VaultName = "default",
    restore: Annotated[str | None, typer.Option(help="Restore this version; a unique prefix is enough.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List the stored versions of a note, newest first, even if it was deleted; or restore one."""
    target = ServiceTarget(data_dir, url, key)
    if restore is None:
        run_command(
            target, lambda api: _list_versions(api, path, vault), _show_versions, as_json=as_json, access="memory"
        )
    else:
        run_command(
            target, lambda api: _restore(api, path, restore, vault), _show_restored, as_json=as_json, access="memory"
        )


async def _list_versions(api: ServiceClient, path: str, vault: str) -> dict[str, Any]:
    page: dict[str, Any] = await api.get("/memory/versions", path=path, vault=vault)
    return page


async def _restore(api: ServiceClient, path: str, prefix: str, vault: str) -> dict[str, Any]:
    versions = (await _list_versions(api, path, vault))["versions"]
    matches = [version["version"] for version in versions if version["version"].startswith(prefix.lower())]
    if len(matches) != 1:
        problem = "More than one version" if matches else "No version"
        raise CommandFailed(
            f"{problem} of {path} begins with {prefix}. List them with `stentor history {path}`.", EXIT_USAGE
        )
    document = (await api.get(f"/memory/versions/{matches[0]}", path=path, vault=vault))["document"]
    body = {"operation": "write", "vault": vault, "document": document}
    return {"version": matches[0], **await api.post("/memory/write", body)}


def _show_versions(page: dict[str, Any]) -> None:
    for version in page["versions"]:
        mark = "  (current)" if version["current"] else ""
        # A change that did not go through the service is detected in the file.
        origin = "written" if version["origin"] == "bus" else "detected"
        line = f"{version['version'][:12]}  {version['created_at'][:19]}  {version['size']:>8} bytes  {origin}{mark}"
        console.print(strip_controls(line), markup=False, highlight=False, soft_wrap=True)


def _show_restored(answer: dict[str, Any]) -> None:
    console.print(f"Restored version {answer['version'][:12]}; the previous content is stored as a version as well.")


def _run_in_batches(route: str, word: str, vault: str) -> Callable[[ServiceClient], Awaitable[dict[str, Any]]]:
    """Return the function that calls a route batch by batch until all notes are done, with a progress bar."""

    async def work(api: ServiceClient) -> dict[str, Any]:

        columns = TextColumn(word), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        done, differences = 0, list[Any]()
        after: str | None = ""
        with Progress(*columns, console=error_console, transient=True) as progress:
            bar = progress.add_task(word, total=None)
            while after is not None:
                answer = await api.post(f"/memory/{route}", {"after": after, "vault": vault})
                done, after = done + answer["done"], answer["next"]
                differences += answer.get("differences", [])
                progress.update(bar, completed=done, total=max(done, answer["total"]))
        return {"notes": done, "differences": differences} if route == "verify" else {"notes": done}

    return work


def _show_indexed(answer: dict[str, Any]) -> None:
    console.print(f"Indexed {answer['notes']} notes.")


def _show_differences(answer: dict[str, Any]) -> None:
    differences = answer["differences"]
    for difference in differences[:MAX_DIFFERENCES_SHOWN]:
        console.print(
            strip_controls(f"{difference['path']} {_PROBLEM_TEXTS[difference['problem']]}"),
            markup=False,
            soft_wrap=True,
        )
    if len(differences) > MAX_DIFFERENCES_SHOWN:
        console.print(f"and {len(differences) - MAX_DIFFERENCES_SHOWN} more")
    if differences:
        console.print(
            f"{len(differences)} of {answer['notes']} notes differ. Run `stentor reindex` to repair the index."
        )
    else:
        console.print(f"{answer['notes']} notes are consistent.")
