"""A stand-in for the package `ray` that runs tasks in threads, and an interpreter that has it.

A task that needs a GPU never starts. `cancel` writes the file `cancelled` beside the interpreter.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[5]


class NodeLost(Exception):
    """Stands for the errors of Ray that are not the agent's."""


def write_interpreter(folder: Path) -> Path:
    """Write an executable that runs a program as Python would, with the stand-in; return it."""
    path = folder / "python-with-ray"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.domains.execution.runtimes.cluster.stand_in import run_program\nrun_program()\n"
    )
    path.chmod(0o700)
    return path


def run_program() -> None:
    """Run the program that the arguments name, `-I PROGRAM ADDRESS`."""
    own, _, program, address = sys.argv
    sys.modules["ray"] = _module(Path(own).with_name("cancelled"), address)
    sys.argv = [program, address]
    runpy.run_path(program, run_name="__main__")


def _module(cancelled: Path, address: str) -> ModuleType:
    def init(**_options: Any) -> None:
        if "down" in address:
            raise ConnectionError(f"no cluster at {address}")
        if "slow" in address:
            with cancelled.with_name("starts").open("a") as starts:
                starts.write("start\n")
            cancelled.with_name("pipe").read_text()  # waits for a writer

    module: Any = ModuleType("ray")
    module.init, module.shutdown = init, lambda: None
    module.cancel = lambda _reference, force: cancelled.write_text(f"force={force}")
    module.remote = lambda **options: lambda function: RemoteFunction(function, options)
    module.exceptions = SimpleNamespace(RayTaskError=SystemExit, WorkerCrashedError=SystemError)
    return module  # type: ignore[no-any-return]


class RemoteFunction:
    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function, self._options = function, options

    def options(self, **options: Any) -> RemoteFunction:
        return RemoteFunction(self._function, self._options | options)

    def remote(self, entrypoint: str, payload: str) -> Any:
        if entrypoint.endswith(":lost"):
            raise NodeLost("the node was lost")
        parts: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def work() -> None:
            for part in self._function(entrypoint, payload):
                loop.call_soon_threadsafe(parts.put_nowait, part)
            loop.call_soon_threadsafe(parts.put_nowait, None)

        if not self._options["num_gpus"]:
            threading.Thread(target=work, daemon=True).start()
        return _stream(parts) if self._options.get("num_returns") == "streaming" else _whole(parts)


async def _stream(parts: asyncio.Queue[Any]) -> AsyncIterator[Awaitable[str]]:
    while (part := await parts.get()) is not None:
        yield asyncio.sleep(0, part)


async def _whole(parts: asyncio.Queue[Any]) -> list[str]:
    return [await part async for part in _stream(parts)]
