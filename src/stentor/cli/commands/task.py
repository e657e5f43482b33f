"""`stentor task ...`: submit tasks, list them, follow them to their end, explain their routing, grade them.

Following a task over its event stream is in `task_stream`, printing of routing decisions in `decisions`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer
from rich.text import Text
from rich.tree import Tree

from stentor.cli import decisions, output
from stentor.cli.client import ServiceClient, quote_segment
from stentor.cli.command import AsJson, DataDir, GradeComment, GradeValue, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_FAILED, console, print_notice, strip_controls
from stentor.cli.task_stream import follow_task
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest

app = typer.Typer(help="Submit, list, follow and grade tasks.", no_args_is_help=True)

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]
Priority = Literal["high", "normal", "low"]
Prefer = Literal["quality", "balanced", "fast", "cheap"]
Status = Literal["queued", "pending_approval", "executing", "completed", "failed", "aborted", "cancelled"]


@app.command()
def submit(
    type_: Annotated[str, typer.Option("--type", help="Type of the task.")],
    capability: Annotated[list[str], typer.Option(help="A capability that the agent must have; repeatable.")] = [],  # noqa: B006
    text: Annotated[str | None, typer.Option("--input", help="The input as text.")] = None,
    input_json: Annotated[str | None, typer.Option(help="The input as JSON.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with the input as text; - for standard input.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="Priority in the queue.")] = None,
    prefer: Annotated[Prefer | None, typer.Option(help="What to optimize when choosing the agent.")] = None,
    timeout: Annotated[int | None, typer.Option(help="Maximum run time in seconds.")] = None,
    queue_timeout: Annotated[int | None, typer.Option(help="Maximum time in the queue in seconds.")] = None,
    task_id: Annotated[str | None, typer.Option("--id", help="Your own id for the task.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the task to end and print its result.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Submit a task; with --wait the exit code is 0 only if it completes."""
    body: dict[str, Any] = {"type": type_, "input": _read_input(text, input_json, file)}
    body["required_capabilities"] = list(capability)
    metadata = _without_none({"priority": priority, "prefer": prefer})
    timeouts = {"timeout_seconds": timeout, "queue_timeout_seconds": queue_timeout}
    body |= _without_none({"id": task_id, **timeouts, "metadata": metadata or None})

    async def work(api: ServiceClient) -> dict[str, Any]:
        submitted: dict[str, Any] = await api.post("/tasks", body)
        if wait:
            show_notice(submitted)
        return await _follow(api, submitted["task_id"]) if wait else submitted

    show = show_result if wait else show_submitted
    record = run_command(ServiceTarget(data_dir, url, key), work, show, as_json=as_json, access="create")
    if wait:
        _exit_with_status(record)


@app.command()
def show(
    task_id: TaskId,
    activity: Annotated[bool, typer.Option("--activity", help="Include its events and routing decision.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show one task."""
    show_response = show_trail if activity else show_task
    suffix, params = ("/activity", {"limit": 500}) if activity else ("", {})
    run_command(ServiceTarget(data_dir, url, key), _get(task_id, suffix, **params), show_response, as_json=as_json)


@app.command()
def explain(
    task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Explain why the agent was chosen, and recompute the decision; the exit code is 1 if it differs."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return decisions.explain_task(await api.get(_path(task_id) + "/activity", limit=500))

    explanation = run_command(ServiceTarget(data_dir, url, key), work, decisions.show_explanation, as_json=as_json)
    if explanation["recomputation"] and explanation["recomputation"]["differences"]:
        raise typer.Exit(EXIT_FAILED)


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
    """Rate a completed task; routing learns from the grade."""
    body = _without_none({"grade": value, "comment": comment})

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(_path(task_id) + "/grade", body))

    run_command(ServiceTarget(data_dir, url, key), work, show_grade, as_json=as_json, access="change")


@app.command()
def watch(task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Follow a task to its end; the output of its agent is printed as it arrives."""
    # With --json, standard output is reserved for the document.
    tokens = TokenPrinter(sys.stderr if as_json else sys.stdout)

    async def work(api: ServiceClient) -> dict[str, Any]:
        return await _follow(api, task_id, tokens.print)

    def show_ended(record: dict[str, Any]) -> None:
        show_result(record, is_printed=tokens.end())

    record = run_command(ServiceTarget(data_dir, url, key), work, show_ended, as_json=as_json, access="change")
    _exit_with_status(record)


@app.command()
def cancel(
    task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Cancel a task that has not ended."""

    def show_cancelled(response: dict[str, Any]) -> None:
        output.print_line(f"Task {response['task_id']} is cancelled.")

    run_command(
        ServiceTarget(data_dir, url, key), _post(task_id, "/cancel"), show_cancelled, as_json=as_json, access="change"
    )


@app.command()
def retry(task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Retry a failed or aborted task."""
    work = _post(task_id, "/retry")
    run_command(ServiceTarget(data_dir, url, key), work, show_submitted, as_json=as_json, access="change")


@app.command("list")
def list_tasks(
    status: Annotated[Status | None, typer.Option(help="Only tasks with this status.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="ID", help="Only tasks of this agent.")] = None,
    created_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="ISO 8601; local time if it has no time zone.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of tasks.")] = 50,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first."""
    params = {"status": status, "agent_id": agent, "created_after": _parse_time(created_after), "limit": limit}

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.get("/tasks", **params))

    run_command(ServiceTarget(data_dir, url, key), work, show_list, as_json=as_json)


def _get(task_id: str, suffix: str, **params: Any) -> Callable[[ServiceClient], Awaitable[Any]]:
    async def work(api: ServiceClient) -> Any:
        return await api.get(_path(task_id) + suffix, **params)

    return work


def _post(task_id: str, suffix: str) -> Callable[[ServiceClient], Awaitable[Any]]:
    async def work(api: ServiceClient) -> Any:
        return await api.post(_path(task_id) + suffix)

    return work


def _path(task_id: str) -> str:
    return f"/tasks/{quote_segment(task_id)}"


async def _follow(api: ServiceClient, task_id: str, on_token: Callable[[str], None] | None = None) -> dict[str, Any]:
    return await follow_task(api, task_id, on_token)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _read_input(text: str | None, as_json: str | None, file: Path | None) -> Any:
    """Return the task's input from the one option that specifies it. Raises BadParameter."""
    if [text, as_json, file].count(None) != 2:
        raise typer.BadParameter("Pass the input with exactly one of --input, --input-json and --file.")
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
        raise typer.BadParameter(f"{file} is not valid UTF-8 text.") from None


def _parse_time(text: str | None) -> str | None:
    """Return the time with a time zone, which the service requires. Raises BadParameter."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not an ISO 8601 time, such as 2026-11-20T21:45.") from None


def _exit_with_status(record: dict[str, Any]) -> None:
    if record["status"] != "completed":
        raise typer.Exit(EXIT_FAILED)


class TokenPrinter:
    """Prints streamed tokens as they arrive."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._has_printed = False

    def print(self, text: str) -> None:
        self._has_printed = True
        self._stream.write(strip_controls(text))
        self._stream.flush()

    def end(self) -> bool:
        """End the line; return whether anything was printed."""
        if self._has_printed:
            self._stream.write("\n")
        return self._has_printed


def show_submitted(response: dict[str, Any]) -> None:
    """Print id and status of a submitted task."""
    output.print_line(f"Task {response['task_id']} is {response['status']}.")
    show_notice(response)


def show_notice(response: dict[str, Any]) -> None:
    """Print to standard error why the task may have to wait, if the service reports a reason."""
    if response.get("notice"):
        print_notice(f"Notice: {response['notice']}.", "yellow")


def show_grade(response: dict[str, Any]) -> None:
    """Print the grade, and whether routing learned from it."""
    effect = "learning was updated" if response["learned"] else "learning is not affected"
    output.print_line(f"Graded task {response['task_id']} {response['grade']:g}; {effect}.")


def show_result(record: dict[str, Any], *, is_printed: bool = False) -> None:
    """Print the result to standard output unless it was streamed; the error of a failed task to standard error."""
    if record["status"] == "completed":
        if not is_printed:
            output.print_value(record["result"])
        return
    error = record["error"]
    reason = f" {error.get('code', '')}: {error.get('message', '')}" if isinstance(error, dict) else ""
    print_notice(f"Task {record['task_id']} is {record['status']}.{reason}", "red")


def show_task(record: dict[str, Any]) -> None:
    """Print a task without its empty fields."""
    console.print(output.render_record({name: value for name, value in record.items() if value not in (None, [], {})}))


def show_list(page: dict[str, Any]) -> None:
    """Print a page of tasks."""
    rows = [
        (t["task_id"], t["type"], t["status"], t["assigned_agent"], output.format_age(t["created_at"]))
        for t in page["tasks"]
    ]
    console.print(output.render_table(("id", "type", "status", "agent", "created"), rows))
    if page["total"] > len(rows):
        console.print(f"Showing {len(rows)} of {page['total']}; use --limit for more.", style="dim")


def show_trail(trail: dict[str, Any]) -> None:
    """Print the task, its routing decision, and its events as a tree of causes."""
    if trail["task"]:
        show_task(trail["task"])
    if trail["routing"]:
        decisions.show_decision(trail["routing"])
    tree = Tree("Events")
    nodes: dict[str | None, Tree] = {}
    for event in trail["events"]:
        parent = nodes.get(event["parent_provenance_id"], tree)
        nodes[event["provenance_id"]] = parent.add(_format_event(event))
    console.print(tree)


def _format_event(event: dict[str, Any]) -> Text:
    time = event["timestamp"][11:-4]
    return Text.assemble((event["event_type"], "cyan"), (f" {time} ", "dim"), strip_controls(event["message"]))
