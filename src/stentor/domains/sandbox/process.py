"""A running program: its input, its output up to a limit, and its end together with everything it started.

For the command line see `bubblewrap`, for folders and the start in a sandbox `process_sandbox`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

CHUNK_BYTES = 65_536
MAX_STDERR_BYTES = 16_384
"""Size of the end of standard error that is kept."""
GRACE_SECONDS = 2.0
"""Time between SIGTERM and SIGKILL."""


class OutputTooLarge(Exception):
    """The program wrote more than it may."""


class SandboxedProcess:
    """`process` is the outermost program; in a sandbox everything inside ends with it."""

    def __init__(self, process: asyncio.subprocess.Process, max_output_bytes: int, *, unsandboxed: bool) -> None:
        self._process = process
        self._output_bytes_left = max_output_bytes
        self._unsandboxed = unsandboxed
        self._stderr_tail = b""
        self._pipe_tasks: list[asyncio.Task[None]] = [asyncio.create_task(self._collect_stderr())]
        self._grace_seconds = GRACE_SECONDS

    def write_stdin(self, data: bytes) -> None:
        """Write to standard input in the background and close it. A program that does not read it is not an error."""
        self._pipe_tasks.append(asyncio.create_task(self._write(data)))

    async def read_stdout(self) -> AsyncIterator[bytes]:
        """Yield standard output in chunks. Raises OutputTooLarge, also when standard error exceeded the limit."""
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(CHUNK_BYTES):
            self._output_bytes_left -= len(chunk)
            if self._output_bytes_left < 0:
                self._grace_seconds = 0.0
                raise OutputTooLarge
            yield chunk
        if self._output_bytes_left < 0:
            raise OutputTooLarge

    async def wait_exit_code(self) -> int:
        """Wait for the end of the program and return its exit code, which is above 128 for a signal."""
        code = await self._process.wait()
        with suppress(TimeoutError):  # a child that the program left behind may keep the pipes open
            async with asyncio.timeout(GRACE_SECONDS):
                await asyncio.gather(*self._pipe_tasks, return_exceptions=True)
        # As a shell reports a signal; asyncio gives its negative number.
        return code if code >= 0 else 128 - code

    @property
    def stderr_tail(self) -> str:
        """The end of standard error as text."""
        return self._stderr_tail.decode("utf-8", "replace")

    async def stop(self) -> None:
        """Send SIGTERM to the program, then SIGKILL to everything, and wait for the end."""
        # Read and discard remaining output: a program that blocks on a full pipe could not handle SIGTERM.
        self._pipe_tasks.append(asyncio.create_task(self._drain_stdout()))
        try:
            if self._process.returncode is None and self._grace_seconds:
                self._terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._grace_seconds):
                        await self._process.wait()
        finally:
            self._kill()
            await self._process.wait()
            await asyncio.wait(self._pipe_tasks, timeout=GRACE_SECONDS)
            for task in self._pipe_tasks:
                task.cancel()
            await asyncio.gather(*self._pipe_tasks, return_exceptions=True)

    async def _drain_stdout(self) -> None:
        assert self._process.stdout is not None
        while await self._process.stdout.read(CHUNK_BYTES):
            pass

    def _terminate(self) -> None:
        # In a sandbox the agent's own process is a grandchild: bubblewrap would not forward the signal.
        targets = [self._process.pid] if self._unsandboxed else list_inner_pids(self._process.pid)
        for pid in targets:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._unsandboxed:
                # The group, even if the program itself has ended: it may have left children behind.
                os.killpg(self._process.pid, signal.SIGKILL)
            elif self._process.returncode is None:
                self._process.kill()

    async def _write(self, data: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(ConnectionError, BrokenPipeError):
            stdin.write(data)
            await stdin.drain()
        stdin.close()

    async def _collect_stderr(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(CHUNK_BYTES):
            self._stderr_tail = (self._stderr_tail + chunk)[-MAX_STDERR_BYTES:]
            self._output_bytes_left -= len(chunk)
            if self._output_bytes_left < 0:
                # Nobody awaits this task, so end the program; read_stdout raises OutputTooLarge at its end.
                self._grace_seconds = 0.0
                self._kill()


def list_inner_pids(pid: int) -> list[int]:
    """Return the processes that the sandbox's init started; an empty list where the kernel does not list children."""
    return [grandchild for child in _children(pid) for grandchild in _children(child)]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@asynccontextmanager
async def start_process(
    command: Sequence[str],
    max_output_bytes: int,
    *,
    descriptors: Sequence[int] = (),
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    unsandboxed: bool = False,
) -> AsyncIterator[SandboxedProcess]:
    """Start a program and stop it at the end of the block. `max_output_bytes` limits both outputs together.

    Raises OSError when it cannot be started.
    """
    # In the thread of the event loop: --die-with-parent ends a sandbox together with the thread that started it.
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=descriptors,
        env=dict(environ or {}),
        cwd=folder,
        start_new_session=True,
    )
    sandboxed = SandboxedProcess(process, max_output_bytes, unsandboxed=unsandboxed)
    try:
        yield sandboxed
    finally:
        # Shielded: a cancelled task must not leave the program running.
        await asyncio.shield(asyncio.create_task(sandboxed.stop()))
