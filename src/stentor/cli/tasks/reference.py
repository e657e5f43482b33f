"""How the commands of `stentor task` find the task that the user refers to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from stentor.cli.client import ServiceClient, quote_segment
from stentor.cli.responses import Response
from stentor.cli.tasks.view import TaskList

T = TypeVar("T")
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="Its id, or the beginning or end of the id.")]


def on_task(
    ref: str, call: Callable[[ServiceClient, str], Awaitable[Response[T]]]
) -> Callable[[ServiceClient], Awaitable[Response[T]]]:
    """Return the call with the id of the task that the user refers to."""
    return lambda api: api.with_id(TaskList, ref, lambda task_id: call(api, task_id))


def task_path(task_id: str) -> str:
    """Return the path of a task in the API."""
    return f"/tasks/{quote_segment(task_id)}"
