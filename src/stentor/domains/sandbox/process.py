"""A caged program while it runs: what goes in, what comes out up to a limit, and its end, all of it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

CHUNK_BYTES = 65_536
MAX_STDERR_BYTES = 16_384
"""Bytes at the end of the error output that are kept."""
GRACE_SECONDS = 2.0
log = logging.getLogger(__name__)


class OutputTooLarge(Exception):
    """The program wrote more than it may."""


class SandboxedProcess:
    """`process` is the outermost program; in a cage its end is the end of everything within."""

    def __init__(self, process: asyncio.subprocess.Process, max_output_bytes: int, *, unsandboxed: bool) -> None:
        self._process = process
        self._left = max_output_bytes
        self._alone = unsandboxed
        self._errors = b""
        self._side: list[asyncio.Task[None]] = [asyncio.create_task(self._collect())]
        self._grace = GRACE_SECONDS

    def write_stdin(self, data: bytes) -> None:
        """Send this on standard input and close it. A program that does not read it is its own affair."""
        self._side.append(asyncio.create_task(self._write(data)))

    async def read_stdout(self) -> AsyncIterator[bytes]:
        """Standard output as it comes. Raises OutputTooLarge."""
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(CHUNK_BYTES):
            self._count(chunk)
            yield chunk
        if self._left < 0:
            raise OutputTooLarge

    async def wait_exit_code(self) -> int:
        """The exit code once the program has ended; above 128 for a signal."""
        code = await self._process.wait()
        with suppress(TimeoutError):  # a process left behind may hold the pipe until it is gone
            async with asyncio.timeout(GRACE_SECONDS):
                await asyncio.gather(*self._side, return_exceptions=True)
        return code if code >= 0 else 128 - code

    @property
    def stderr_tail(self) -> str:
        """The end of what the program wrote on its error output."""
        return self._errors.decode("utf-8", "replace")

    async def stop(self) -> None:
        """SIGTERM to the program, SIGKILL to the whole cage; returns when nothing of it is left to wait for."""
        # What is still written is read and dropped: a full pipe would hold the program, and its end.
        self._side.append(asyncio.create_task(self._drain()))
        try:
            if self._process.returncode is None and self._grace:
                self._terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._grace):
                        await self._process.wait()
        finally:
            self._kill()
            await self._process.wait()
            await asyncio.wait(self._side, timeout=GRACE_SECONDS)
            for task in self._side:
                task.cancel()
            await asyncio.gather(*self._side, return_exceptions=True)

    async def _drain(self) -> None:
        assert self._process.stdout is not None
        while await self._process.stdout.read(CHUNK_BYTES):
            pass

    def _terminate(self) -> None:
        """The agent's own process is the grandchild: the outermost program would not pass the signal on."""
        targets = [self._process.pid] if self._alone else list_inner_pids(self._process.pid)
        for pid in targets:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._alone:
                os.killpg(self._process.pid, signal.SIGKILL)
            elif self._process.returncode is None:
                self._process.kill()

    def _count(self, chunk: bytes) -> None:
        self._left -= len(chunk)
        if self._left < 0:
            self._grace = 0.0
            raise OutputTooLarge

    async def _write(self, data: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(ConnectionError, BrokenPipeError):
            stdin.write(data)
            await stdin.drain()
        stdin.close()

    async def _collect(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(CHUNK_BYTES):
            self._errors = (self._errors + chunk)[-MAX_STDERR_BYTES:]
            self._left -= len(chunk)
            if self._left < 0:
                self._grace = 0.0
                self._kill()


def list_inner_pids(pid: int) -> list[int]:
    """The processes that the cage's own init started; none when the system does not tell."""
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
    """A program that has begun; at the end of the block it is over. `most` bytes of output; `alone`: without a cage.

    Raises OSError when it cannot be started.
    """
    # In the thread of the event loop: a cage dies with the thread that started it.
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
    caged = SandboxedProcess(process, max_output_bytes, unsandboxed=unsandboxed)
    try:
        yield caged
    finally:
        await asyncio.shield(asyncio.create_task(caged.stop()))
