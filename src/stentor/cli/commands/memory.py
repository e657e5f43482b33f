"""`stentor reindex` and `stentor verify`: index and task notes made anew, or held against vault and tasks; and
`stentor history`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stentor.cli.command import AsJson, DataDir, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_FAILED, EXIT_USAGE, CommandFailed, console, error_console, strip_controls

if TYPE_CHECKING:
    from stentor.cli.client import ServiceClient

MAX_DIFFERENCES_SHOWN = 50
_WORDS = {
    "missing": "is not in the index",
    "stale": "is another in the index",
    "gone": "is in the index alone",
    "unwritten": "is missing: its task has no note",
    "altered": "is not as its task",
}


VaultName = Annotated[str, typer.Option("--vault", help="A vault of SERVICE_VAULTS.")]


def reindex(
    vault: VaultName = "default", data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Make the search index anew from the vault's files, and the tasks' notes. Searches go on meanwhile."""
    work = _steps("reindex", "Indexing", vault)
    run_command(ServiceTarget(data_dir, url, key), work, _indexed, as_json=as_json, access="memory")


def verify(
    vault: VaultName = "default", data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Compare the search index and the tasks with the vault's files; ends with 1 when they differ."""
    work = _steps("verify", "Comparing", vault)
    found = run_command(ServiceTarget(data_dir, url, key), work, _differences, as_json=as_json, access="memory")
    if found["differences"]:
        raise typer.Exit(EXIT_FAILED)


def history(
    path: Annotated[str, typer.Argument(help="The note's path in the vault, such as Projects/plan.md.")],
    vault: VaultName = "default",
    restore: Annotated[str | None, typer.Option(help="Go back to this version; the first signs of it suffice.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """The versions of a note that are kept, newest first, also of one that was deleted; or go back to one."""
    target = ServiceTarget(data_dir, url, key)
    if restore is None:
        run_command(target, lambda api: _versions(api, path, vault), _told, as_json=as_json, access="memory")
    else:
        run_command(target, lambda api: _restored(api, path, restore, vault), _back, as_json=as_json, access="memory")


async def _versions(api: ServiceClient, path: str, vault: str) -> dict[str, Any]:
    found: dict[str, Any] = await api.get("/memory/versions", path=path, vault=vault)
    return found


async def _restored(api: ServiceClient, path: str, wanted: str, vault: str) -> dict[str, Any]:
    known = (await _versions(api, path, vault))["versions"]
    found = [one["version"] for one in known if one["version"].startswith(wanted.lower())]
    if len(found) != 1:
        many = "more than one version begins" if found else "no version begins"
        raise CommandFailed(f"Of {path}, {many} with {wanted}; `stentor history {path}` names them.", EXIT_USAGE)
    document = (await api.get(f"/memory/versions/{found[0]}", path=path, vault=vault))["document"]
    body = {"operation": "write", "vault": vault, "document": document}
    return {"version": found[0], **await api.post("/memory/write", body)}


def _told(answer: dict[str, Any]) -> None:
    for one in answer["versions"]:
        mark = "  (as it is now)" if one["current"] else ""
        whose = "written" if one["origin"] == "bus" else "found"
        line = f"{one['version'][:12]}  {one['created_at'][:19]}  {one['size']:>8} bytes  {whose}{mark}"
        console.print(strip_controls(line), markup=False, highlight=False, soft_wrap=True)


def _back(answer: dict[str, Any]) -> None:
    console.print(f"It is again as in {answer['version'][:12]}; what it was before is kept as a version, too.")


def _steps(route: str, word: str, vault: str) -> Callable[[ServiceClient], Awaitable[dict[str, Any]]]:
    """A few hundred notes a call, with a bar on standard error."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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


def _indexed(answer: dict[str, Any]) -> None:
    console.print(f"{answer['notes']} notes are done.")


def _differences(answer: dict[str, Any]) -> None:
    found = answer["differences"]
    for difference in found[:MAX_DIFFERENCES_SHOWN]:
        console.print(
            strip_controls(f"{difference['path']} {_WORDS[difference['problem']]}"), markup=False, soft_wrap=True
        )
    if len(found) > MAX_DIFFERENCES_SHOWN:
        console.print(f"and {len(found) - MAX_DIFFERENCES_SHOWN} more")
    if found:
        console.print(f"{len(found)} of {answer['notes']} notes differ; `stentor reindex` mends it.")
    else:
        console.print(f"{answer['notes']} notes are as they should be.")
