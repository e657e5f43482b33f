"""The functions that the agents of these tests run."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def double(task: dict[str, Any]) -> dict[str, Any]:
    return {"result": task["input"] * 2, "performance": 0.5}


def talk(task: dict[str, Any]) -> Iterator[str]:
    Path(task["input"]).read_text()  # waits for the writer of a pipe
    yield "Thinking. "
    yield "\ud800"
    return {"result": task["metadata"]}


def shout(task: dict[str, Any]) -> Iterator[str]:
    yield "\0" * 3_000_000  # each is six bytes in JSON: more than a line may have
    yield ""
    return {"result": "done"}


def fail(task: dict[str, Any]) -> None:
    raise ValueError(f"no {task['input']}")


def answer_with(task: dict[str, Any]) -> Any:
    if task["input"] == "long":
        return {"result": '"' * 5_000_000}
    return {"text": "no result", "number": {"result": float("nan")}, "half": {"result": "\ud800"}}[task["input"]]


def fail_at_length(task: dict[str, Any]) -> None:
    raise ValueError("\0" * 5_000_000)


def babble(task: dict[str, Any]) -> None:
    """Write something else than events to wherever the program writes, and go on."""
    for number in range(3, 32):
        with suppress(OSError):
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.write(number, b"no event\n")
    threading.Event().wait()


def environment(_task: dict[str, Any]) -> dict[str, Any]:
    return {"result": sorted(os.environ)}


def hang(task: dict[str, Any]) -> None:
    Path(task["input"]).write_text(str(os.getpid()))
    threading.Event().wait()


def leave(task: dict[str, Any]) -> None:
    """End the program with the connection, as Ray does when it gives up on its cluster."""
    os._exit(1)
