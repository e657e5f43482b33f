"""A Ray cluster behind the port `Cluster`, through a program of its own that holds the connection.

A connection inside the service would cost it memory and threads, replace its signal handlers, and end the whole process
when Ray gives up on its cluster (docs/decisions/0070-ray.md). The program starts with the first job, and again after it
ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.domains.execution.runtimes.cluster import ClusterJob, ClusterUnavailable, JobEvent
from stentor.domains.registry.model import RayOptions

CONNECT_SECONDS = 60.0
"""How long the import of Ray and the connection may take."""
CLOSE_SECONDS = 10.0
MAX_LINE_BYTES = 24 * 1024 * 1024
"""More than twice the largest result of `ray_program.py`, whose quotes and backslashes are escaped again in a line."""
PASSED_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
"""Variables that the program inherits, besides those of Ray itself; the service's own hold secrets."""
LOST = JobEvent("lost", "The connection to the cluster was lost.", code="CLUSTER_LOST")
_PROGRAM = Path(__file__).with_name("ray_program.py")
log = logging.getLogger(__name__)


class ProgramEvent(msgspec.Struct, frozen=True):
    """A line of the program: `connected` or `unavailable`, or an event of a job."""

    kind: str
    job_id: str = ""
    text: str = ""
    code: str = ""


class RayConnection:
    """One run of the program. `is_lost` is set when it has ended or is about to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.is_lost = False
        self._queues: dict[str, asyncio.Queue[JobEvent]] = {}
        self._reader: asyncio.Task[None] | None = None

    async def wait_connected(self) -> None:
        """Wait for the program's first line. Raises ClusterUnavailable."""
        event = await self._read_event()
        if event is None or event.kind != "connected":
            raise ClusterUnavailable(event.text if event else "the program with the connection ended.")
        self._reader = asyncio.create_task(self._read())

    async def submit(self, job: ClusterJob) -> None:
        queue = self._queues[job.job_id] = asyncio.Queue()
        if self.is_lost:
            # `_lose` told only the jobs that it found in `_queues`.
            queue.put_nowait(LOST)
        assert isinstance(job.options, RayOptions)
        await self._send({"job_id": job.job_id, "payload": job.payload, **msgspec.to_builtins(job.options)})

    async def watch(self, job_id: str) -> AsyncIterator[JobEvent]:
        """Yield the events of a job up to its last one."""
        queue = self._queues[job_id]
        while True:
            event = await queue.get()
            yield event
            if event.is_last:
                return

    async def cancel(self, job_id: str) -> None:
        if self._queues.pop(job_id, None) is not None:
            await self._send({"cancel": job_id})

    async def close(self) -> None:
        """End the program: politely, so that Ray stops its tasks at once, and by force if that takes too long."""
        self._lose()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def _send(self, command: JsonObject) -> None:
        # If the program has ended, the command is lost; the reader reports that.
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(jsontext.encode(command) + b"\n")
            await self._process.stdin.drain()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while (event := await self._read_event()) is not None:
                if (queue := self._queues.get(event.job_id)) is not None:
                    queue.put_nowait(msgspec.convert(event, JobEvent, from_attributes=True))
        except ValueError:
            log.exception("ray: the program wrote something other than events")
            self._lose()
            # If its output were no longer read, it would wait for room in the pipe forever, and keep the connection to
            # the cluster.
            with suppress(ProcessLookupError):
                self._process.kill()
            while await self._process.stdout.read(MAX_LINE_BYTES):
                pass
        finally:
            self._lose()

    def _lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        for queue in self._queues.values():
            queue.put_nowait(LOST)

    async def _read_event(self) -> ProgramEvent | None:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return msgspec.json.decode(line, type=ProgramEvent) if line else None


class RayCluster:
    """The port to the cluster at `address`, over `python`, an interpreter that has Ray."""

    def __init__(self, address: str, python: Path) -> None:
        self._address, self._python = address, python
        self._connection: RayConnection | None = None
        self._starting: asyncio.Task[RayConnection] | None = None
        self._connecting = asyncio.Lock()
        self._jobs: dict[str, RayConnection] = {}

    async def connect(self) -> None:
        await self._connected()

    async def submit(self, job: ClusterJob) -> None:
        connection = self._jobs[job.job_id] = await self._connected()
        await connection.submit(job)

    def watch(self, job_id: str) -> AsyncIterator[JobEvent]:
        return self._jobs[job_id].watch(job_id)

    def describe_wait(self, job: ClusterJob) -> str:
        assert isinstance(job.options, RayOptions)
        return (
            f"the cluster has no node with {job.options.num_cpus:g} CPUs and {job.options.num_gpus:g} GPUs to spare, "
            "or was not connected yet"
        )

    async def cancel(self, job_id: str) -> None:
        if (connection := self._jobs.pop(job_id, None)) is not None:
            await connection.cancel(job_id)

    async def close(self) -> None:
        async with self._connecting:
            if self._starting is not None:
                self._starting.cancel()
                await asyncio.gather(self._starting, return_exceptions=True)
            if self._connection is not None:
                await self._connection.close()
            self._connection = self._starting = None

    async def _connected(self) -> RayConnection:
        async with self._connecting:
            if self._connection is None or self._connection.is_lost:
                self._starting = self._starting or asyncio.create_task(self._start())
                try:
                    # Shielded: a connection may take longer than a task may wait, and the next task continues it.
                    self._connection = await asyncio.shield(self._starting)
                finally:
                    if self._starting.done():
                        self._starting = None
            return self._connection

    async def _start(self) -> RayConnection:
        try:
            process = await asyncio.create_subprocess_exec(
                # -I: neither the service's folder nor variables of Python change what is imported.
                *(str(self._python), "-I", str(_PROGRAM), self._address),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=MAX_LINE_BYTES,
                env=program_environment(os.environ),
                start_new_session=True,  # a Ctrl-C in the terminal is for the service, which lets jobs end
            )
        except OSError as error:
            raise ClusterUnavailable(f"{self._python} cannot be started: {error.strerror}.") from None
        connection = RayConnection(process)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.wait_connected()
        except BaseException as error:
            process.kill()
            await connection.close()
            if isinstance(error, TimeoutError | ValueError):
                raise ClusterUnavailable(f"no connection to {self._address} within {CONNECT_SECONDS:g} s.") from None
            raise
        log.info("ray: connected address=%s pid=%d", self._address, process.pid)
        return connection


def program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the program: Ray's own settings and what every program needs, no secrets."""
    return {name: text for name, text in environ.items() if name in PASSED_VARIABLES or name.startswith("RAY_")}
