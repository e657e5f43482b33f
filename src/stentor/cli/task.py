"""`stentor task ...`: submit tasks, see them, follow them."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stentor.cli import decision_view, display, explaining, task_view
from stentor.cli.command import perform
from stentor.cli.options import AsJson, DataDir, GradeComment, GradeValue, Key, Target, Url
from stentor.cli.output import FAILED
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest

if TYPE_CHECKING:
    from stentor.cli.api import Api

app = typer.Typer(help="Submit tasks, see them, follow them.", no_args_is_help=True)

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]
Priority = Literal["high", "normal", "low"]
Prefer = Literal["quality", "balanced", "fast", "cheap"]
Status = Literal["queued", "pending_approval", "executing", "completed", "failed", "aborted", "cancelled"]


@app.command()
def submit(
    type_: Annotated[str, typer.Option("--type", help="What kind of work it is.")],
    capability: Annotated[list[str], typer.Option(help="What the agent must be able to do; repeatable.")] = [],  # noqa: B006
    text: Annotated[str | None, typer.Option("--input", help="The input as text.")] = None,
    input_json: Annotated[str | None, typer.Option(help="The input as JSON.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with the input as text; - is standard input.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="Order in the queue.")] = None,
    prefer: Annotated[Prefer | None, typer.Option(help="What counts in the choice of the agent.")] = None,
    timeout: Annotated[int | None, typer.Option(help="Seconds that the work may take.")] = None,
    queue_timeout: Annotated[int | None, typer.Option(help="Seconds that it may wait in the queue.")] = None,
    task_id: Annotated[str | None, typer.Option("--id", help="An id of your own.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end and print its result.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Submit a task; with --wait the exit code is 0 only when it is completed."""
    body: dict[str, Any] = {"type": type_, "input": _input(text, input_json, file)}
    body["required_capabilities"] = list(capability)
    metadata = _given({"priority": priority, "prefer": prefer})
    times = {"timeout_seconds": timeout, "queue_timeout_seconds": queue_timeout}
    body |= _given({"id": task_id, **times, "metadata": metadata or None})

    async def work(api: Api) -> dict[str, Any]:
        submitted: dict[str, Any] = await api.post("/tasks", body)
        if wait:
            task_view.show_notice(submitted)
        return await _followed(api, submitted["task_id"]) if wait else submitted

    show = task_view.show_result if wait else task_view.show_submitted
    done = perform(Target(data_dir, url, key), work, show, as_json=as_json, access="create")
    if wait:
        _exit_by(done)


@app.command()
def show(
    task_id: TaskId,
    activity: Annotated[bool, typer.Option("--activity", help="Its trail and why it was routed so.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show one task."""
    shown = task_view.show_trail if activity else task_view.show_task
    suffix, params = ("/activity", {"limit": 500}) if activity else ("", {})
    perform(Target(data_dir, url, key), _get(task_id, suffix, **params), shown, as_json=as_json)


@app.command()
def explain(
    task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Say why its agent was chosen, and compute the decision again; the exit code is 1 when it differs."""

    async def work(api: Api) -> dict[str, Any]:
        return explaining.explained(await api.get(_path(task_id) + "/activity", limit=500))

    found = perform(Target(data_dir, url, key), work, decision_view.show_explained, as_json=as_json)
    if found["recomputation"] and found["recomputation"]["differences"]:
        raise typer.Exit(FAILED)


@app.command()
def grade(
    task_id: TaskId,
    value: GradeValue,
    comment: GradeComment = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say what a completed task was worth; routing learns from it."""
    body = _given({"grade": value, "comment": comment})

    async def work(api: Api) -> dict[str, Any]:
        return dict(await api.post(_path(task_id) + "/grade", body))

    perform(Target(data_dir, url, key), work, task_view.show_grade, as_json=as_json, access="change")


@app.command()
def watch(task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Follow a task to its end; what its agent says is printed as it comes."""
    tokens = task_view.Tokens(sys.stderr if as_json else sys.stdout)

    async def work(api: Api) -> dict[str, Any]:
        return await _followed(api, task_id, tokens.print)

    def ended(record: dict[str, Any]) -> None:
        task_view.show_result(record, said=tokens.end())

    done = perform(Target(data_dir, url, key), work, ended, as_json=as_json, access="change")
    _exit_by(done)


@app.command()
def cancel(
    task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Cancel a task that has not ended."""

    def cancelled(answer: dict[str, Any]) -> None:
        display.say(f"Task {answer['task_id']} is cancelled.")

    perform(Target(data_dir, url, key), _post(task_id, "/cancel"), cancelled, as_json=as_json, access="change")


@app.command()
def retry(task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Make a new attempt of a failed or aborted task."""
    work = _post(task_id, "/retry")
    perform(Target(data_dir, url, key), work, task_view.show_submitted, as_json=as_json, access="change")


@app.command("list")
def list_tasks(
    status: Annotated[Status | None, typer.Option(help="Only tasks in this state.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="ID", help="Only tasks of this agent.")] = None,
    created_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="ISO 8601; without a zone it is local time.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Tasks at most.")] = 50,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first."""
    params = {"status": status, "agent_id": agent, "created_after": _moment(created_after), "limit": limit}

    async def work(api: Api) -> dict[str, Any]:
        return dict(await api.get("/tasks", **params))

    perform(Target(data_dir, url, key), work, task_view.show_list, as_json=as_json)


def _get(task_id: str, suffix: str, **params: Any) -> Callable[[Api], Awaitable[Any]]:
    async def work(api: Api) -> Any:
        return await api.get(_path(task_id) + suffix, **params)

    return work


def _post(task_id: str, suffix: str) -> Callable[[Api], Awaitable[Any]]:
    async def work(api: Api) -> Any:
        return await api.post(_path(task_id) + suffix)

    return work


def _path(task_id: str) -> str:
    # Comes with the HTTP client: not for `stentor --help`.
    from stentor.cli.api import segment

    return f"/tasks/{segment(task_id)}"


async def _followed(api: Api, task_id: str, on_token: Callable[[str], None] | None = None) -> dict[str, Any]:
    # Comes with the HTTP client: not for `stentor --help`.
    from stentor.cli.follow import follow

    return await follow(api, task_id, on_token)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _input(text: str | None, as_json: str | None, file: Path | None) -> Any:
    """The task's input from the one option that gives it. Raises BadParameter."""
    if [text, as_json, file].count(None) != 2:
        raise typer.BadParameter("Give the input with one of --input, --input-json and --file.")
    if text is not None:
        return text
    if as_json is not None:
        try:
            return jsontext.decode(as_json.encode())
        except (InvalidRequest, UnicodeEncodeError) as error:
            raise typer.BadParameter(f"--input-json: {error}") from None
    assert file is not None
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return content.decode()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not text in UTF-8.") from None


def _moment(text: str | None) -> str | None:
    """With a zone, as the service wants it. Raises BadParameter."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no time like 2026-11-20T21:45.") from None


def _exit_by(record: dict[str, Any]) -> None:
    if record["status"] != "completed":
        raise typer.Exit(FAILED)
