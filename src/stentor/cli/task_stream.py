"""Following a task to its end over its event stream; a broken connection is resumed where it broke."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx

from stentor.cli.client import RequestFailed, ServiceClient, quote_segment
from stentor.cli.output import EXIT_FAILED, CommandFailed, print_notice

MAX_EMPTY_CONNECTIONS = 10
"""Connections in a row that bring nothing before the service counts as gone; about half a minute."""
MAX_BACKOFF_SECONDS = 5.0
TERMINAL_STATUSES = ("completed", "failed", "aborted", "cancelled")


class StreamEvent(NamedTuple):
    kind: str
    data: dict[str, Any]
    id: str | None


async def follow_task(
    api: ServiceClient, task_id: str, on_token: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """The task's record once it has ended; its events go to standard error meanwhile."""
    path = f"/tasks/{quote_segment(task_id)}"
    record = await api.get(path)
    if api.is_in_process:
        await _require_progress(api, record)
    async for event in read_events(api, f"{path}/stream"):
        if event.kind == "token" and on_token is not None:
            on_token(str(event.data.get("text", "")))
        elif event.kind in ("activity", "routing"):
            _tell(event)
    record = await api.get(path)
    if record["status"] not in TERMINAL_STATUSES:
        raise CommandFailed(f"The stream of task {task_id} ended, but the task is {record['status']}.", EXIT_FAILED)
    return dict(record)


async def read_events(api: ServiceClient, path: str) -> AsyncIterator[StreamEvent]:
    """All events up to the terminal one, none twice. Raises CommandFailed when the service is gone for good."""
    last: str | None = None
    idle, pause = 0, 0.1
    while True:
        try:
            async with api.stream(path, last) as answer:
                async for event in parse_events(answer.aiter_bytes()):
                    idle, pause = 0, 0.1
                    last = event.id or last
                    yield event
                    if event.kind == "complete" or (event.kind == "error" and "status" in event.data):
                        return
            error = None
        except httpx.TransportError as broken:
            error = broken
        except RequestFailed as refused:
            if refused.status < 500:
                raise
            error = None
        idle += 1
        if idle >= MAX_EMPTY_CONNECTIONS:
            raise api.unreachable_error(error or httpx.ConnectError("the stream ends at once"))
        print_notice("The connection broke; going on where it did.", "yellow")
        await asyncio.sleep(pause)
        pause = min(MAX_BACKOFF_SECONDS, pause * 2)


async def parse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[StreamEvent]:
    """The events of a text/event-stream; comments are left out.

    Lines end at a line feed alone: other separators of Unicode may stand inside the JSON.
    """
    waiting = b""
    async for chunk in chunks:
        *blocks, waiting = (waiting + chunk).split(b"\n\n")
        for block in blocks:
            if event := _event(block):
                yield event


def _event(block: bytes) -> StreamEvent | None:
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        fields[name] = value.removeprefix(b" ")
    if b"data" not in fields:
        return None
    kind, id_ = fields.get(b"event", b"message").decode(), fields.get(b"id")
    return StreamEvent(kind, json.loads(fields[b"data"]), id_.decode() if id_ else None)


async def _require_progress(api: ServiceClient, record: dict[str, Any]) -> None:
    """In this process nobody can claim or approve. Raises CommandFailed for a task that waits for that."""
    task_id, agent_id = record["task_id"], record["assigned_agent"]
    if record["status"] == "pending_approval":
        raise CommandFailed(f"Task {task_id} waits for an approval, and no service runs: start `stentor serve`.")
    if record["status"] not in ("queued", "executing") or agent_id is None:
        return
    try:
        agent = await api.get(f"/registry/agents/{quote_segment(agent_id)}")
    except RequestFailed:
        return  # a key that may not read the registry; the task may still end
    if agent["runtime"]["kind"] == "worker":
        raise CommandFailed(
            f"Task {task_id} waits for the worker {agent['name']}, and workers need a running service: "
            "start `stentor serve`."
        )


def _tell(event: StreamEvent) -> None:
    data = event.data
    if event.kind == "routing":
        text = f"routed to {data.get('agent_name')}"
    else:
        text = f"{data.get('event_type')}: {data.get('message')}"
    print_notice(text, "dim")
