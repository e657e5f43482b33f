"""Follow a task to its end over its event stream; a broken connection is resumed with Last-Event-ID.

A parser for the service's own streams, not for any text/event-stream: it does not handle CR line ends or data fields of
several lines.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple, TextIO

import httpx
import msgspec

from stentor.cli.client.client import RequestFailed, ServiceClient, quote_segment
from stentor.cli.client.responses import AgentRecord, Response, StoredTask
from stentor.cli.output import EXIT_FAILED, EXIT_UNREACHABLE, CommandFailed, print_notice, strip_controls
from stentor.cli.tasks.steps import StepRow
from stentor.cli.tasks.view import SubmittedTask
from stentor.core.jsontext import JsonObject

MAX_EMPTY_CONNECTIONS = 10
"""Consecutive connections without an event after which the service counts as gone; about half a minute."""
MAX_BACKOFF_SECONDS = 5.0
TERMINAL_STATUSES = ("completed", "failed", "aborted", "cancelled")


class StreamEvent(NamedTuple):
    """One server-sent event with its decoded data."""

    kind: str
    data: JsonObject
    id: str | None


async def follow_task(
    api: ServiceClient,
    task_id: str,
    on_token: Callable[[str], None] | None = None,
    on_start: Callable[[StoredTask], None] | None = None,
) -> Response[StoredTask]:
    """Return the task's record once it has ended; print its events to standard error in the meantime.

    `on_start` gets the record as it is before.
    """
    path = f"/tasks/{quote_segment(task_id)}"
    before = await api.get(path, StoredTask)
    if api.is_in_process and (obstacle := await _find_obstacle(api, before.value)):
        raise CommandFailed(obstacle)
    if on_start is not None:
        on_start(before.value)
    resume = f"stentor task watch {shlex.quote(task_id)}"
    try:
        async for event in read_events(api, f"{path}/stream"):
            if event.kind == "token" and on_token is not None:
                on_token(str(event.data.get("text", "")))
            elif event.kind in ("activity", "routing"):
                _print_event(event)
                # Failing to read the task or a step is no reason to stop watching.
                with suppress(CommandFailed):
                    await _print_commands(api, task_id, event)
        # Read the task again: the last event says that it ended, but not with which result.
        ended = await api.get(path, StoredTask)
    except CommandFailed as failure:
        if failure.code == EXIT_UNREACHABLE:
            print_notice(f"The task is stored, and continues when the service runs again: {resume}", "yellow")
        raise
    if ended.value.status not in TERMINAL_STATUSES:
        raise CommandFailed(
            f"The stream of task {task_id} ended, but the task is still {ended.value.status}. Continue with: {resume}",
            EXIT_FAILED,
        )
    return ended


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


async def read_events(api: ServiceClient, path: str) -> AsyncIterator[StreamEvent]:
    """Yield all events up to the terminal one, each once. Raises CommandFailed when the service is gone."""
    last_id: str | None = None
    empty_connections, pause = 0, 0.1
    while True:
        try:
            async with api.stream(path, last_id) as response:
                async for event in parse_events(response.aiter_bytes()):
                    empty_connections, pause = 0, 0.1
                    last_id = event.id or last_id
                    yield event
                    # Errors without a status concern the stream, and a new connection follows.
                    if event.kind == "complete" or (event.kind == "error" and "status" in event.data):
                        return
            transport_error = None
        except httpx.TransportError as error:
            transport_error = error
        except RequestFailed as error:
            # A restarting service answers 503 for a moment; a refusal is final.
            if error.status < 500:
                raise
            transport_error = None
        empty_connections += 1
        if empty_connections >= MAX_EMPTY_CONNECTIONS:
            raise api.unreachable_error(transport_error or httpx.ConnectError("the stream ends at once"))
        if empty_connections == 1:
            print_notice("Connection lost; resuming the stream.", "yellow")
        await asyncio.sleep(pause)
        pause = min(MAX_BACKOFF_SECONDS, pause * 2)


async def parse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[StreamEvent]:
    """Yield the events of a text/event-stream, without its comments."""
    # Split at line feeds only: the JSON may contain other Unicode line separators, at which splitlines() would split.
    rest = b""
    async for chunk in chunks:
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            if event := _parse_event(block):
                yield event


def _parse_event(block: bytes) -> StreamEvent | None:
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        fields[name] = value.removeprefix(b" ")
    if b"data" not in fields:
        return None
    kind, id_ = fields.get(b"event", b"message").decode(), fields.get(b"id")
    return StreamEvent(kind, json.loads(fields[b"data"]), id_.decode() if id_ else None)


async def add_notice(api: ServiceClient, task: SubmittedTask) -> SubmittedTask:
    """Return a queued task with why it waits, if the response to its submission does not say it.

    That response says nothing of a limit, nor of workers without a service.
    """
    if task.notice or task.status != "queued":
        return task
    try:
        stored = (await api.get(f"/tasks/{quote_segment(task.task_id)}", StoredTask)).value
    except RequestFailed:
        return task  # the key may not read; the task is submitted all the same
    if api.is_in_process:
        return msgspec.structs.replace(task, notice=await _find_obstacle(api, stored))
    return msgspec.structs.replace(task, notice=stored.notice, notice_code=stored.notice_code)


async def _find_obstacle(api: ServiceClient, task: StoredTask) -> str | None:
    """Return why a task cannot go on in this process: it waits for an approval or a worker. None if it can."""
    if task.status == "pending_approval":
        return f"Task {task.task_id} is waiting for approval, which needs a running service: start `stentor serve`."
    if task.status not in ("queued", "executing") or task.assigned_agent is None:
        return None
    try:
        agent = (await api.get(f"/registry/agents/{quote_segment(task.assigned_agent)}", AgentRecord)).value
    except RequestFailed:
        return None  # the key may not read the registry; the task may still end
    if agent.runtime.kind != "worker":
        return None
    return (
        f"Task {task.task_id} is waiting for the worker {agent.name}, and workers need a running service: "
        "start `stentor serve`."
    )


def _print_event(event: StreamEvent) -> None:
    data = event.data
    if event.kind == "routing":
        text = f"Routed to {data.get('agent_name')}."
    else:
        text = data.get("message") or str(data.get("event_type")).replace("_", " ").capitalize() + "."
    print_notice(text, "dim")


async def _print_commands(api: ServiceClient, task_id: str, event: StreamEvent) -> None:
    """Print the commands with which a person lets the task go on, if it still waits as this event says."""
    path, kind = f"/tasks/{quote_segment(task_id)}", event.data.get("event_type")
    commands: list[str] = []
    if kind == "approval_requested" and (await api.get(path, StoredTask)).value.status == "pending_approval":
        commands = [f"stentor task {verb} {shlex.quote(task_id)}" for verb in ("approve", "reject")]
    elif kind == "task_waiting":
        for key in event.data["metadata"].get("keys", ()):
            step = (await api.get(f"{path}/steps/{quote_segment(key)}", StepRow)).value
            commands += [_wait_command(task_id, step)] if step.state == "started" else []
    for command in filter(None, commands):
        print_notice(f"In another shell: {command}", "yellow")


def _wait_command(task_id: str, step: StepRow) -> str:
    """Return the command that ends a wait; an empty text for one that no person ends."""
    task, key = shlex.quote(task_id), shlex.quote(step.key)
    if step.kind == "question":
        return f"stentor task answer {task} ANSWER --step {key}"
    return f"stentor task signal {task} {shlex.quote(str(step.waits_for))}" if step.kind == "signal" else ""
