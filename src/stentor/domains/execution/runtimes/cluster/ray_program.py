"""The program with the connection to one Ray cluster: reads commands from standard input, writes events as JSON lines.

Imports nothing of Stentor, so that it can run with the Python and the Ray of the cluster. It ends when its input ends,
and Ray then stops the tasks that it has started.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

MAX_RESULT_BYTES = 10 * 1024 * 1024
MAX_TEXT = 65_536
"""Characters of a token, and of the reason of a failure: an event is one line, and a line has a limit."""
JOB_FAILED = "CLUSTER_JOB_FAILED"
Event = dict[str, Any]


def run_function(entrypoint: str, payload: str) -> Iterator[str]:
    """Call the function on a node of the cluster; yield events as JSON.

    Text only: what the agent's code returns or raises is never unpickled in the program with the connection.
    """
    yield encode_event("started", "")
    try:
        module, _, name = entrypoint.partition(":")
        value = getattr(importlib.import_module(module), name)(json.loads(payload))
        if inspect.isgenerator(value):
            try:
                while True:
                    text = str(next(value))
                    for start in range(0, len(text), MAX_TEXT):
                        yield encode_event("token", text[start : start + MAX_TEXT])
            except StopIteration as end:
                value = end.value
        result = json.dumps(value, allow_nan=False)
        if len(result) > MAX_RESULT_BYTES:
            raise ValueError(f"the result has more than {MAX_RESULT_BYTES} bytes")
        last = encode_event("result", result)
    except Exception as error:  # noqa: BLE001 - whatever the agent's code raises is its failure
        last = encode_event("failed", describe_error(error), JOB_FAILED)
    yield last


def describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()[:MAX_TEXT]


def encode_event(kind: str, text: str, code: str = "") -> str:
    # An unpaired surrogate is not valid Unicode: no reader of the event could decode it.
    return json.dumps({"kind": kind, "text": text.encode("utf-8", "replace").decode(), "code": code})


def collect_events(entrypoint: str, payload: str) -> list[str]:
    """Return all events at the end: Ray's client, for addresses that begin with ray://, has no generators."""
    return list(run_function(entrypoint, payload))


class RayProgram:
    """Starts and cancels Ray tasks. `ray` is the connected module, `is_client` says that it is Ray's client."""

    def __init__(self, ray: Any, events: TextIO, *, is_client: bool) -> None:
        self._ray, self._events, self._is_client = ray, events, is_client
        # Ray must not retry: Stentor decides about attempts, and records each one.
        options = {"max_retries": 0} if is_client else {"max_retries": 0, "num_returns": "streaming"}
        self._function = ray.remote(**options)(collect_events if is_client else run_function)
        self._references: dict[str, Any] = {}

    async def serve(self, commands: TextIO) -> None:
        """Execute commands until the input ends."""
        loop = asyncio.get_running_loop()
        self.write_event({"kind": "connected"})
        jobs: set[asyncio.Task[None]] = set()
        while line := await loop.run_in_executor(None, commands.readline):
            command = json.loads(line)
            if "cancel" in command:
                self._cancel(command["cancel"])
            else:
                jobs.add(job := asyncio.create_task(self._run(command)))
                job.add_done_callback(jobs.discard)

    def write_event(self, event: Event) -> None:
        self._events.write(json.dumps(event) + "\n")
        self._events.flush()

    def _cancel(self, job_id: str) -> None:
        if (reference := self._references.pop(job_id, None)) is not None:
            # With force the process on the node ends; otherwise only Python code would be interrupted.
            with suppress(Exception):
                self._ray.cancel(reference, force=True)

    async def _run(self, command: Event) -> None:
        job_id = command["job_id"]
        try:
            function = self._function.options(
                num_cpus=command["num_cpus"], num_gpus=command["num_gpus"], name=f"stentor:{command['entrypoint']}"
            )
            reference = function.remote(command["entrypoint"], json.dumps(command["payload"]))
            self._references[job_id] = reference
            if self._is_client:
                # Ray's client does not report the start, so the time in Ray's queue counts as run time.
                self.write_event({"kind": "started", "job_id": job_id})
                for text in await reference:
                    self.write_event({**json.loads(text), "job_id": job_id})
            else:
                async for part in reference:
                    self.write_event({**json.loads(await part), "job_id": job_id})
        except Exception as error:  # noqa: BLE001 - Ray may raise anything; the service decides what it means
            self.write_event({**describe_failure(self._ray, error), "job_id": job_id})
        finally:
            self._references.pop(job_id, None)


def describe_failure(ray: Any, error: Exception) -> Event:
    """Return the last event for an error of Ray. Only an exit of the agent's own code counts against the agent."""
    text = describe_error(error)
    if isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.WorkerCrashedError):
        return {"kind": "failed", "code": JOB_FAILED, "text": text}
    return {"kind": "lost", "code": "CLUSTER_LOST", "text": text}


def main(address: str) -> None:
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Output of Ray and its libraries must not mix with the events.
    os.dup2(2, 1)
    try:
        import ray

        ray.init(address=address, namespace="stentor", log_to_driver=False, configure_logging=False)
        program = RayProgram(ray, events, is_client=address.startswith("ray://"))
    except Exception as error:  # noqa: BLE001 - the service reports why there is no connection
        events.write(json.dumps({"kind": "unavailable", "text": describe_error(error)}) + "\n")
        events.flush()
        return
    asyncio.run(program.serve(sys.stdin))
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
