"""The socket of one run: JSON lines, a bounded number of connections, bounded lines, and an end with the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from stentor.domains.registry.model import Agent
from stentor.domains.sandbox.broker.model import Run
from stentor.domains.sandbox.broker.service import AT_ONCE, Tools, _error

MAX_LINE = 2 << 20
"""Bytes of one request."""
CONNECTIONS = 16
SLOW_SECONDS = 10.0
"""How long a client may take to read an answer."""
log = logging.getLogger(__name__)


class Server:
    """Serves one run; `close` ends every connection and every call."""

    def __init__(self, tools: Tools, run: Run) -> None:
        self._tools = tools
        self._run = run
        self._open: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS:
            writer.write(_error(None, "RATE_LIMITED", f"A run may have {CONNECTIONS} connections."))
            writer.close()
            return
        self._open.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            log.debug("a connection of task %s ended early", self._run.task_id)
        finally:
            self._open.discard(task)
            writer.close()
            with suppress(ConnectionError):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                message = f"A line may have {MAX_LINE} bytes."
                await self._send(writer, _error(None, "PAYLOAD_TOO_LARGE", message))
                return
            async with self._turns:
                answer = await self._tools.answer(self._run, line)
            await self._send(writer, answer)

    async def _send(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        """A client that does not read is cut off."""
        writer.write(answer)
        async with asyncio.timeout(SLOW_SECONDS):
            await writer.drain()

    async def close(self) -> None:
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Broker:
    """`own` gives a socket to the caged user."""

    def __init__(self, tools: Tools, own: Callable[[Path, int], None]) -> None:
        self._tools = tools
        self._own = own
        self._runs: set[Run] = set()

    def changed(self, agent: Agent) -> None:
        """End all runs of an agent that is no longer active, whoever found it out and whatever they do now."""
        if agent.status != "active":
            for run in self._runs:
                if run.agent_id == agent.agent_id:
                    run.refused.set()

    @asynccontextmanager
    async def serving(self, run: Run, socket: Path) -> AsyncIterator[None]:
        """The run's socket, while the block runs. Raises OSError when it cannot be made."""
        server = Server(self._tools, run)
        listening = await asyncio.start_unix_server(server.connected, str(socket), limit=MAX_LINE)
        try:
            self._own(socket, 0o600)
            self._runs.add(run)
            yield
        finally:
            self._runs.discard(run)
            listening.close()
            await server.close()
