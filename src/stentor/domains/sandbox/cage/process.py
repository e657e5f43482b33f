"""A caged program while it runs: what goes in, what comes out up to a limit, and its end, all of it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

CHUNK = 65_536
KEPT_ERRORS = 16_384
"""Bytes at the end of the error output that are kept."""
GRACE_SECONDS = 2.0
log = logging.getLogger(__name__)


class OutputTooLarge(Exception):
    """The program wrote more than it may."""


class Caged:
    """`process` is the outermost program; in a cage its end is the end of everything within."""

    def __init__(self, process: asyncio.subprocess.Process, most: int, *, alone: bool) -> None:
        self._process = process
        self._left = most
        self._alone = alone
        self._errors = b""
        self._side: list[asyncio.Task[None]] = [asyncio.create_task(self._collect())]
        self._grace = GRACE_SECONDS

    def feed(self, data: bytes) -> None:
        """Send this on standard input and close it. A program that does not read it is its own affair."""
        self._side.append(asyncio.create_task(self._write(data)))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Standard output as it comes. Raises OutputTooLarge."""
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(CHUNK):
            self._count(chunk)
            yield chunk
        if self._left < 0:
            raise OutputTooLarge

    async def code(self) -> int:
        """The exit code once the program has ended; above 128 for a signal."""
        code = await self._process.wait()
        with suppress(TimeoutError):  # a process left behind may hold the pipe until it is gone
            async with asyncio.timeout(GRACE_SECONDS):
                await asyncio.gather(*self._side, return_exceptions=True)
        return code if code >= 0 else 128 - code

    @property
    def errors(self) -> str:
        """The end of what the program wrote on its error output."""
        return self._errors.decode("utf-8", "replace")

    async def end(self) -> None:
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
        while await self._process.stdout.read(CHUNK):
            pass

    def _terminate(self) -> None:
        """The agent's own process is the grandchild: the outermost program would not pass the signal on."""
        targets = [self._process.pid] if self._alone else inner(self._process.pid)
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
        while chunk := await self._process.stderr.read(CHUNK):
            self._errors = (self._errors + chunk)[-KEPT_ERRORS:]
            self._left -= len(chunk)
            if self._left < 0:
                self._grace = 0.0
                self._kill()


def inner(pid: int) -> list[int]:
    """The processes that the cage's own init started; none when the system does not tell."""
    return [grandchild for child in _children(pid) for grandchild in _children(child)]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@asynccontextmanager
async def started(
    line: Sequence[str],
    most: int,
    *,
    descriptors: Sequence[int] = (),
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    alone: bool = False,
) -> AsyncIterator[Caged]:
    """A program that has begun; at the end of the block it is over. `most` bytes of output; `alone`: without a cage.

    Raises OSError when it cannot be started.
    """
    # In the thread of the event loop: a cage dies with the thread that started it.
    process = await asyncio.create_subprocess_exec(
        *line,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=descriptors,
        env=dict(environ or {}),
        cwd=folder,
        start_new_session=True,
    )
    caged = Caged(process, most, alone=alone)
    try:
        yield caged
    finally:
        await asyncio.shield(asyncio.create_task(caged.end()))
