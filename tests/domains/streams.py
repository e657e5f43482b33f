"""Reading a task's event stream in the tests."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.conftest import World
from tests.patience import soon

STALE = SimpleNamespace(event_id="")
"""A message that every reader has seen already: it is taken, and nothing is said."""


class Frame(NamedTuple):
    event: str
    data: dict[str, Any]
    id: str | None


def parse(text: str) -> list[Frame]:
    """The frames of a text/event-stream; comments are left out."""
    frames = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            frames.append(Frame(fields["event"], json.loads(fields["data"]), fields.get("id")))
    return frames


async def watched(world: World) -> None:
    """Wait until somebody reads a stream live, and every reader has read what was there before."""
    while not (known := world.kernel.infra.hub._watchers):
        await asyncio.sleep(0.001)
    for reader in [one for readers in known.values() for one in readers]:
        reader.put(STALE)
        while not reader.is_empty:
            await asyncio.sleep(0.001)


async def watch(world: World, task_id: str, after: str | None = None) -> list[Frame]:
    """The whole stream; returns when the task has ended."""
    headers = {"Last-Event-ID": after} if after is not None else {}
    answer = await world.admin.get(f"/api/v1/tasks/{task_id}/stream", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parse(answer.text)


async def at_rest(world: World) -> None:
    """Wait until nothing runs here: a task's row says that it ended before its runtime is gone."""
    await soon(lambda: not world.kernel.tasks.dispatcher.count_running())
