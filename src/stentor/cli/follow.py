"""Following a task to its end over its event stream; a broken connection is resumed where it broke."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx

from stentor.cli.api import Api, Refused, segment
from stentor.cli.output import FAILED, CommandFailed, notice

TRIES = 10
"""Connections in a row that bring nothing before the service counts as gone; about half a minute."""
MAX_PAUSE = 5.0
ENDED = ("completed", "failed", "aborted", "cancelled")


class Event(NamedTuple):
    kind: str
    data: dict[str, Any]
    id: str | None


async def follow(api: Api, task_id: str, on_token: Callable[[str], None] | None = None) -> dict[str, Any]:
    """The task's record once it has ended; its events go to standard error meanwhile."""
    path = f"/tasks/{segment(task_id)}"
    record = await api.get(path)
    if api.in_process:
        await _require_progress(api, record)
    async for event in events(api, f"{path}/stream"):
        if event.kind == "token" and on_token is not None:
            on_token(str(event.data.get("text", "")))
        elif event.kind in ("activity", "routing"):
            _tell(event)
    record = await api.get(path)
    if record["status"] not in ENDED:
        raise CommandFailed(f"The stream of task {task_id} ended, but the task is {record['status']}.", FAILED)
    return dict(record)


async def events(api: Api, path: str) -> AsyncIterator[Event]:
    """All events up to the terminal one, none twice. Raises CommandFailed when the service is gone for good."""
    last: str | None = None
    idle, pause = 0, 0.1
    while True:
        try:
            async with api.stream(path, last) as answer:
                async for event in parse(answer.aiter_bytes()):
                    idle, pause = 0, 0.1
                    last = event.id or last
                    yield event
                    if event.kind == "complete" or (event.kind == "error" and "status" in event.data):
                        return
            error = None
        except httpx.TransportError as broken:
            error = broken
        except Refused as refused:
            if refused.status < 500:
                raise
            error = None
        idle += 1
        if idle >= TRIES:
            raise api.unreachable(error or httpx.ConnectError("the stream ends at once"))
        notice("The connection broke; going on where it did.", "yellow")
        await asyncio.sleep(pause)
        pause = min(MAX_PAUSE, pause * 2)


async def parse(chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """The events of a text/event-stream; comments are left out.

    Lines end at a line feed alone: other separators of Unicode may stand inside the JSON.
    """
    waiting = b""
    async for chunk in chunks:
        *blocks, waiting = (waiting + chunk).split(b"\n\n")
        for block in blocks:
            if event := _event(block):
                yield event


def _event(block: bytes) -> Event | None:
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        fields[name] = value.removeprefix(b" ")
    if b"data" not in fields:
        return None
    kind, id_ = fields.get(b"event", b"message").decode(), fields.get(b"id")
    return Event(kind, json.loads(fields[b"data"]), id_.decode() if id_ else None)


async def _require_progress(api: Api, record: dict[str, Any]) -> None:
    """In this process nobody can claim or approve. Raises CommandFailed for a task that waits for that."""
    task_id, agent_id = record["task_id"], record["assigned_agent"]
    if record["status"] == "pending_approval":
        raise CommandFailed(f"Task {task_id} waits for an approval, and no service runs: start `stentor serve`.")
    if record["status"] not in ("queued", "executing") or agent_id is None:
        return
    try:
        agent = await api.get(f"/registry/agents/{segment(agent_id)}")
    except Refused:
        return  # a key that may not read the registry; the task may still end
    if agent["runtime"]["kind"] == "worker":
        raise CommandFailed(
            f"Task {task_id} waits for the worker {agent['name']}, and workers need a running service: "
            "start `stentor serve`."
        )


def _tell(event: Event) -> None:
    data = event.data
    if event.kind == "routing":
        text = f"routed to {data.get('agent_name')}"
    else:
        text = f"{data.get('event_type')}: {data.get('message')}"
    notice(text, "dim")
