"""The functions that the agents of these tests run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def double(task: dict[str, Any]) -> dict[str, Any]:
    return {"result": task["input"] * 2, "performance": 0.5}


def talk(task: dict[str, Any]) -> Iterator[str]:
    Path(task["input"]).read_text()  # waits for the writer of a pipe
    yield "Thinking. "
    yield "\ud800"
    return {"result": task["metadata"]}


def fail(task: dict[str, Any]) -> None:
    raise ValueError(f"no {task['input']}")


def answer_with(task: dict[str, Any]) -> Any:
    return {"text": "no result", "number": {"result": float("nan")}, "half": {"result": "\ud800"}}[task["input"]]


def environment(_task: dict[str, Any]) -> dict[str, Any]:
    return {"result": sorted(os.environ)}


def hang(task: dict[str, Any]) -> None:
    Path(task["input"]).write_text(str(os.getpid()))
    threading.Event().wait()


def leave(task: dict[str, Any]) -> None:
    """End the program with the connection, as Ray does when it gives up on its cluster."""
    os._exit(1)
