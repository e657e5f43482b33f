"""`stentor task ...`: submit tasks, list them, follow them to their end, explain their routing, grade them.

The work is in `cli.tasks`.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stentor.cli.agents import AgentList
from stentor.cli.client.client import RequestFailed, ServiceClient, omit_none
from stentor.cli.client.responses import Response, StoredTask, TaskActivity
from stentor.cli.command import Capabilities, GradeComment, GradeValue, ServiceTarget, with_service
from stentor.cli.commands.tasks import task_replay, task_steps
from stentor.cli.input_files import read_input
from stentor.cli.output import print_notice
from stentor.cli.tasks import decisions
from stentor.cli.tasks import view as task_view
from stentor.cli.tasks.decisions import Explanation
from stentor.cli.tasks.stream import TokenPrinter, add_notice, follow_task
from stentor.cli.tasks.view import SubmittedTask, TaskGrade, TaskId, TaskList, is_completed, on_task, task_path
from stentor.core.jsontext import JsonObject

app = typer.Typer(help="Submit, list, follow and grade tasks.", no_args_is_help=True)
app.add_typer(task_steps.app)
app.add_typer(task_replay.app)

Priority = Literal["high", "normal", "low"]
Prefer = Literal["quality", "balanced", "fast", "cheap"]
Status = Literal["queued", "pending_approval", "executing", "waiting", "completed", "failed", "aborted", "cancelled"]


@app.command()
@with_service
def submit(
    service: ServiceTarget,
    type_: Annotated[str, typer.Option("--type", help="Type of the task.")],
    capability: Capabilities = [],  # noqa: B006
    text: Annotated[str | None, typer.Option("--input", help="The input as text.")] = None,
    input_json: Annotated[str | None, typer.Option(help="The input as JSON.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with the input as text; - for standard input.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="Only this agent: its name or id.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="Priority in the queue.")] = None,
    prefer: Annotated[Prefer | None, typer.Option(help="What to optimize when choosing the agent.")] = None,
    timeout: Annotated[int | None, typer.Option(help="Maximum run time in seconds.")] = None,
    queue_timeout: Annotated[int | None, typer.Option(help="Maximum time in the queue in seconds.")] = None,
    start_at: Annotated[
        str | None, typer.Option(help="Start no earlier than this time: ISO 8601, or +30m, +2h, +1d.")
    ] = None,
    after: Annotated[list[str], typer.Option(help="Start only after this task has completed; repeatable.")] = [],  # noqa: B006
    limit: Annotated[
        str | None,
        typer.Option(
            help="KEY=MAX: at most MAX tasks with this key run at a time; "
            "KEY=MAX/SECONDS: at most MAX start within SECONDS."
        ),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Abort it and its subtasks at this time: ISO 8601, or +30m, +2h, +1d.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="US dollars that its model calls and those of its subtasks may cost.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title in lists; default: derived from the input.")] = None,
    session: Annotated[str | None, typer.Option(help="Continue the conversation of this session.")] = None,
    task_id: Annotated[str | None, typer.Option("--id", help="Your own id for the task.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the task to end and print its result.")] = False,
) -> None:
    """Submit a task; with --wait the exit code is 0 only if it completes."""
    optional = {
        "id": task_id,
        "title": title,
        "session": session,
        "timeout_seconds": timeout,
        "queue_timeout_seconds": queue_timeout,
        "start_at": _parse_moment(start_at),
        "deadline": _parse_moment(deadline),
        "max_cost_usd": max_cost,
        "limit": None if limit is None else _parse_limit(limit),
        "metadata": omit_none({"priority": priority, "prefer": prefer}) or None,
    }
    body = {
        "type": type_,
        "input": read_input(text, input_json, file),
        "required_capabilities": list(capability),
        **omit_none(optional),
    }
    status_before: str | None = None

    async def send(api: ServiceClient) -> Response[SubmittedTask]:
        nonlocal status_before
        # Checked first, because a repeated submission gets the response of the first one.
        status_before = None if task_id is None else await _find_status(api, task_id)
        # Other commands accept the beginning of an id, so this one does too.
        found = [await api.find_id(TaskList, ref) for ref in after]
        preferred = None if agent is None else await api.find_id(AgentList, agent, must_exist=True)
        chosen = omit_none({"after": found or None, "agent_preference": preferred})
        return await api.post("/tasks", SubmittedTask, body | chosen)

    async def submit_and_follow(api: ServiceClient) -> Response[StoredTask]:
        submitted = (await send(api)).value
        before = f"was submitted before; it is {status_before}" if status_before else f"is {submitted.status}"
        print_notice(f"Task {submitted.task_id} {before}.", "dim")
        try:
            task_view.show_notice(await add_notice(api, submitted))
            return await follow_task(api, submitted.task_id)
        except asyncio.CancelledError:  # Ctrl-C
            print_notice(f"Follow the task later: stentor task watch {shlex.quote(submitted.task_id)}", "yellow")
            raise

    async def submit_only(api: ServiceClient) -> Response[SubmittedTask]:
        response = await send(api)
        if service.as_json or status_before:
            return response
        task = await add_notice(api, response.value)
        return Response({**response.document, "notice": task.notice, "notice_code": task.notice_code}, SubmittedTask)

    if wait:
        service.call(submit_and_follow, task_view.show_result, access="create", is_success=is_completed)
    else:
        service.call(
            submit_only,
            lambda task: task_view.show_known(task, status_before) if status_before else task_view.show_submitted(task),
            access="create",
        )


async def _find_status(api: ServiceClient, task_id: str) -> str | None:
    """Return the status of a task, None if it does not exist: a second submission gets the first response again."""
    try:
        return (await api.get(task_path(task_id), StoredTask)).value.status
    except RequestFailed:
        return None


@app.command()
@with_service
def show(
    service: ServiceTarget,
    task_id: TaskId,
    activity: Annotated[
        bool, typer.Option("--activity", help="Include all of its events and its routing decision.")
    ] = False,
) -> None:
    """Show one task."""
    if activity:
        service.call(on_task(task_id, _get_whole_activity), task_view.show_activity)
    else:
        service.call(on_task(task_id, lambda api, found: api.get(task_path(found), JsonObject)), task_view.show_task)


@app.command()
@with_service
def explain(service: ServiceTarget, task_id: TaskId) -> None:
    """Explain why the agent was chosen, and recompute the decision; the exit code is 1 if it differs."""

    async def work(api: ServiceClient) -> Response[Explanation]:
        activity = await on_task(task_id, _get_activity)(api)
        return Response(decisions.explain_task(activity.value), Explanation)

    service.call(work, decisions.show_explanation, is_success=Explanation.is_reproduced)


@app.command()
@with_service
def grade(service: ServiceTarget, task_id: TaskId, value: GradeValue, comment: GradeComment = None) -> None:
    """Rate a completed task; routing learns from the grade."""
    body = omit_none({"grade": value, "comment": comment})
    service.call(
        on_task(task_id, lambda api, found: api.post(f"{task_path(found)}/grade", TaskGrade, body)),
        task_view.show_grade,
        access="change",
    )


@app.command()
@with_service
def watch(service: ServiceTarget, task_id: TaskId) -> None:
    """Follow a task to its end; the output of its agent is printed as it arrives."""
    # With --json, standard output is reserved for the document.
    tokens = TokenPrinter(sys.stderr if service.as_json else sys.stdout)

    service.call(
        on_task(task_id, lambda api, found: follow_task(api, found, tokens.print, task_view.show_notice)),
        lambda record: task_view.show_result(record, is_printed=tokens.end()),
        access="change",
        is_success=is_completed,
    )


@app.command()
@with_service
def cancel(service: ServiceTarget, task_id: TaskId) -> None:
    """Cancel a task that has not ended."""
    _change(service, task_id, "cancel")


@app.command()
@with_service
def approve(service: ServiceTarget, task_id: TaskId) -> None:
    """Approve a task that waits for approval."""
    _change(service, task_id, "approve")


@app.command()
@with_service
def reject(
    service: ServiceTarget,
    task_id: TaskId,
    reason: Annotated[str | None, typer.Option(help="Why; the submitter sees it.")] = None,
) -> None:
    """Reject a task that waits for approval; it is aborted."""
    _change(service, task_id, "reject", omit_none({"reason": reason}))


@app.command()
@with_service
def retry(service: ServiceTarget, task_id: TaskId) -> None:
    """Retry a failed or aborted task."""
    _change(service, task_id, "retry")


@app.command()
@with_service
def rerun(
    service: ServiceTarget,
    task_id: TaskId,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="The agent to run it: its name or id.")] = None,
    text: Annotated[str | None, typer.Option("--input", help="Another input, as text.")] = None,
    input_json: Annotated[str | None, typer.Option(help="Another input, as JSON.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with another input as text; - for standard input.")] = None,
    from_step: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Continue from this step, which runs again, even an effect; see `stentor task steps`."
        ),
    ] = None,
) -> None:
    """Submit a task again as a new task, with the same or another input, or continuing from one of its steps."""
    has_input = [text, input_json, file].count(None) < 3
    changed = {"input": read_input(text, input_json, file)} if has_input else {}

    async def submit(api: ServiceClient, found: str) -> Response[SubmittedTask]:
        preferred = None if agent is None else await api.find_id(AgentList, agent, must_exist=True)
        body = omit_none({"agent_preference": preferred, "from_step": from_step}) | changed
        return await api.post(f"{task_path(found)}/rerun", SubmittedTask, body)

    service.call(on_task(task_id, submit), task_view.show_submitted, access="change")


@app.command("list")
@with_service
def list_tasks(
    service: ServiceTarget,
    status: Annotated[Status | None, typer.Option(help="Only tasks with this status.")] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="AGENT", help="Only tasks of this agent: its name or id.")
    ] = None,
    task_type: Annotated[str | None, typer.Option("--type", help="Only tasks of this type.")] = None,
    by: Annotated[str | None, typer.Option(metavar="KEY", help="Only tasks that this key submitted.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only tasks of this session.")] = None,
    text: Annotated[
        str | None, typer.Option(help='Only tasks that contain all of these words, "a phrase" or begin*.')
    ] = None,
    created_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="ISO 8601; local time if it has no time zone.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of tasks.")] = 50,
) -> None:
    """List tasks, newest first."""
    params: dict[str, Any] = {"status": status, "type": task_type, "submitted_by": by, "session": session, "text": text}
    params |= {"created_after": _parse_time(created_after), "limit": limit}

    async def work(api: ServiceClient) -> Response[TaskList]:
        agent_id = agent and await api.find_id(AgentList, agent, must_exist=True)
        return await api.get("/tasks", TaskList, agent_id=agent_id, **params)

    service.call(work, task_view.show_list)


async def _get_activity(api: ServiceClient, task_id: str, cursor: str | None = None) -> Response[TaskActivity]:
    return await api.get(f"{task_path(task_id)}/activity", TaskActivity, limit=500, cursor=cursor)


async def _get_whole_activity(api: ServiceClient, task_id: str) -> Response[TaskActivity]:
    """Return the activity with all events, and the task as `show` has it: with what it waits for."""
    document = (await _get_activity(api, task_id)).document
    while document["next_cursor"] is not None:
        page = (await _get_activity(api, task_id, document["next_cursor"])).document
        document |= {"events": document["events"] + page["events"], "next_cursor": page["next_cursor"]}
    if document["task"] is not None:
        document |= {"task": (await api.get(task_path(task_id), JsonObject)).document}
    return Response(document, TaskActivity)


def _change(service: ServiceTarget, task_id: str, verb: str, body: Any = None) -> None:
    """Post a verb that changes the status of a task, and print the new one."""
    service.call(
        on_task(task_id, lambda api, found: api.post(f"{task_path(found)}/{verb}", SubmittedTask, body)),
        task_view.show_submitted,
        access="change",
    )


def _parse_limit(text: str) -> dict[str, str | int]:
    found = re.fullmatch(r"(.+)=(\d{1,9})(?:/(\d{1,9}))?", text, re.DOTALL)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not KEY=MAX or KEY=MAX/SECONDS, as in customer-42=2 or crm=10/60.")
    limit: dict[str, str | int] = {"key": found[1], "max": int(found[2])}
    return limit | {"per_seconds": int(found[3])} if found[3] else limit


def _parse_moment(text: str | None) -> str | None:
    """Return the time, which may be given as the time from now: `+30m`. Raises BadParameter."""
    delay = re.fullmatch(r"\+(\d{1,9})([smhd])", text or "")
    if delay is None:
        return _parse_time(text)
    seconds = int(delay[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[delay[2]]
    try:
        return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        raise typer.BadParameter(f"{text} is too far ahead.") from None


def _parse_time(text: str | None) -> str | None:
    """Return the time with a time zone, which the service requires. Raises BadParameter."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not an ISO 8601 time, such as 2026-11-20T21:45.") from None
