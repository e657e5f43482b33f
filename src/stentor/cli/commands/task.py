"""`stentor task ...`: submit tasks, see them, follow them.

Tasks for people: records, lists, trails, results.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer
from rich.text import Text
from rich.tree import Tree

from stentor.cli import decisions, output
from stentor.cli.command import AsJson, DataDir, GradeComment, GradeValue, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_FAILED, console, print_notice, strip_controls
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest

if TYPE_CHECKING:
    from stentor.cli.client import ServiceClient


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

    async def work(api: ServiceClient) -> dict[str, Any]:
        submitted: dict[str, Any] = await api.post("/tasks", body)
        if wait:
            show_notice(submitted)
        return await _followed(api, submitted["task_id"]) if wait else submitted

    show = show_result if wait else show_submitted
    done = run_command(ServiceTarget(data_dir, url, key), work, show, as_json=as_json, access="create")
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
    shown = show_trail if activity else show_task
    suffix, params = ("/activity", {"limit": 500}) if activity else ("", {})
    run_command(ServiceTarget(data_dir, url, key), _get(task_id, suffix, **params), shown, as_json=as_json)


@app.command()
def explain(
    task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Say why its agent was chosen, and compute the decision again; the exit code is 1 when it differs."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return decisions.explain_task(await api.get(_path(task_id) + "/activity", limit=500))

    found = run_command(ServiceTarget(data_dir, url, key), work, decisions.show_explanation, as_json=as_json)
    if found["recomputation"] and found["recomputation"]["differences"]:
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
    """Say what a completed task was worth; routing learns from it."""
    body = _given({"grade": value, "comment": comment})

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(_path(task_id) + "/grade", body))

    run_command(ServiceTarget(data_dir, url, key), work, show_grade, as_json=as_json, access="change")


@app.command()
def watch(task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Follow a task to its end; what its agent says is printed as it comes."""
    tokens = TokenPrinter(sys.stderr if as_json else sys.stdout)

    async def work(api: ServiceClient) -> dict[str, Any]:
        return await _followed(api, task_id, tokens.print)

    def ended(record: dict[str, Any]) -> None:
        show_result(record, is_printed=tokens.end())

    done = run_command(ServiceTarget(data_dir, url, key), work, ended, as_json=as_json, access="change")
    _exit_by(done)


@app.command()
def cancel(
    task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Cancel a task that has not ended."""

    def cancelled(answer: dict[str, Any]) -> None:
        output.print_line(f"Task {answer['task_id']} is cancelled.")

    run_command(
        ServiceTarget(data_dir, url, key), _post(task_id, "/cancel"), cancelled, as_json=as_json, access="change"
    )


@app.command()
def retry(task_id: TaskId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Make a new attempt of a failed or aborted task."""
    work = _post(task_id, "/retry")
    run_command(ServiceTarget(data_dir, url, key), work, show_submitted, as_json=as_json, access="change")


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
    # Comes with the HTTP client: not for `stentor --help`.
    from stentor.cli.client import quote_segment

    return f"/tasks/{quote_segment(task_id)}"


async def _followed(api: ServiceClient, task_id: str, on_token: Callable[[str], None] | None = None) -> dict[str, Any]:
    # Comes with the HTTP client: not for `stentor --help`.
    from stentor.cli.task_stream import follow_task

    return await follow_task(api, task_id, on_token)


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
        raise typer.Exit(EXIT_FAILED)


class TokenPrinter:
    """Prints the pieces of an answer as they come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._said = False

    def print(self, text: str) -> None:
        self._said = True
        self._stream.write(strip_controls(text))
        self._stream.flush()

    def end(self) -> bool:
        """Ends the line; answers whether anything was said."""
        if self._said:
            self._stream.write("\n")
        return self._said


def show_submitted(answer: dict[str, Any]) -> None:
    output.print_line(f"Task {answer['task_id']} is {answer['status']}.")
    show_notice(answer)


def show_notice(answer: dict[str, Any]) -> None:
    """What the service wants known of a task that waits, on standard error."""
    if answer.get("notice"):
        print_notice(f"Notice: {answer['notice']}.", "yellow")


def show_grade(answer: dict[str, Any]) -> None:
    learned = "what was learned from it is corrected" if answer["learned"] else "nothing was learned from it"
    output.print_line(f"Task {answer['task_id']} is graded {answer['grade']:g}; {learned}.")


def show_result(record: dict[str, Any], *, is_printed: bool = False) -> None:
    """The result on standard output, unless it was said already; how it ended on standard error."""
    if record["status"] == "completed":
        if not is_printed:
            output.print_value(record["result"])
        return
    error = record["error"]
    reason = f" {error.get('code', '')}: {error.get('message', '')}" if isinstance(error, dict) else ""
    print_notice(f"Task {record['task_id']} is {record['status']}.{reason}", "red")


def show_task(record: dict[str, Any]) -> None:
    console.print(output.render_record({name: value for name, value in record.items() if value not in (None, [], {})}))


def show_list(page: dict[str, Any]) -> None:
    rows = [
        (t["task_id"], t["type"], t["status"], t["assigned_agent"], output.format_age(t["created_at"]))
        for t in page["tasks"]
    ]
    console.print(output.render_table(("id", "type", "status", "agent", "created"), rows))
    if page["total"] > len(rows):
        console.print(f"{len(rows)} of {page['total']}; --limit shows more.", style="dim")


def show_trail(trail: dict[str, Any]) -> None:
    """The task, the decision with the terms of its formula, and the events below those that led to them."""
    if trail["task"]:
        show_task(trail["task"])
    if trail["routing"]:
        decisions.show_decision(trail["routing"])
    tree = Tree("What happened")
    nodes: dict[str | None, Tree] = {}
    for event in trail["events"]:
        parent = nodes.get(event["parent_provenance_id"], tree)
        nodes[event["provenance_id"]] = parent.add(_line(event))
    console.print(tree)


def _line(event: dict[str, Any]) -> Text:
    clock = event["timestamp"][11:-4]
    return Text.assemble((event["event_type"], "cyan"), (f" {clock} ", "dim"), strip_controls(event["message"]))
