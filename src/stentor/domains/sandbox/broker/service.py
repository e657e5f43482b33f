"""One call: judged and recorded first, then done. What is not granted is not done, and no answer means no.

The socket of one run: JSON lines, a bounded number of connections, bounded lines, and an end with the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.errors import Forbidden, InvalidRequest, NotFound, RateLimited, StentorError, Timeout
from stentor.domains.registry.model import Agent
from stentor.domains.registry.model import AllowedTool as Allowed
from stentor.domains.sandbox.broker.model import SandboxRun, Tool, ToolRequest, convert_struct
from stentor.domains.sandbox.model import Access
from stentor.domains.sandbox.service import SandboxService

MAX_CALLS = 10_000
"""Of one run, garbage included."""
MAX_CONCURRENT_CALLS = 8
LIST_TOOLS = "tools"
log = logging.getLogger(__name__)


class ToolDenied(Forbidden):
    """The agent may not do this; it is recorded as a violation."""

    code = "TOOL_DENIED"


class ToolDispatcher:
    """`agent_of` gives an agent as it stands now, by tenant and id."""

    def __init__(
        self, sandbox: SandboxService, tools: Mapping[str, Tool], agent_of: Callable[[str, str], Agent | None]
    ) -> None:
        self._sandbox = sandbox
        self._tools = dict(tools)
        self._agent_of = agent_of
        sandbox.complete_access = self._completed

    def _completed(self, access: Access) -> Access:
        tool = self._tools.get(access.tool)
        return tool.complete_access(access) if tool else access

    async def respond(self, run: SandboxRun, line: bytes) -> bytes:
        """The line for a line: `{id, ok, result}`, or `{id, ok, error: {code, message}}`; never raises."""
        call_id: int | str | None = None
        try:
            run.call_count += 1
            if run.call_count > MAX_CALLS:
                raise RateLimited(f"A run may make {MAX_CALLS} calls.")
            call: ToolRequest = convert_struct(jsontext.decode(line), ToolRequest, "call")
            call_id = call.id
            return jsontext.encode({"id": call_id, "ok": True, "result": await self.call(run, call)}) + b"\n"
        except StentorError as error:
            return _error_line(call_id, error.code, error.message)
        except Exception:
            # Whatever a tool throws, its caller reads an error and the socket lives on.
            log.exception("a tool broke in task %s", run.task_id)
            return _error_line(call_id, "INTERNAL_ERROR", "The tool broke.")

    async def call(self, run: SandboxRun, call: ToolRequest) -> Any:
        """Raises StentorError: TOOL_DENIED for what the agent may not do."""
        if call.tool == LIST_TOOLS:
            return self._listed(run)
        tool = self._tools.get(call.tool)
        if tool is None and self._allowed(run, call.tool):
            raise NotFound(f"This service has no tool {call.tool!r}.")
        access = tool.to_access(call) if tool else _unknown(call)
        verdict = await self._sandbox.authorize(
            run.tenant, run.agent_id, access, task_id=run.task_id, parent=run.parent_event_id, guard=run.guard
        )
        if verdict.agent.status != "active":
            run.revoked.set()
        if verdict.denial is not None:
            raise ToolDenied(f"{verdict.denial.details} ({verdict.denial.type})")
        if tool is None:  # it came onto the allowlist this moment
            raise NotFound(f"This service has no tool {call.tool!r}.")
        try:
            async with asyncio.timeout(tool.timeout_seconds):
                return await tool.execute(run, call)
        except TimeoutError:
            raise Timeout(f"The tool {tool.name!r} took longer than {tool.timeout_seconds:g} s.") from None

    def _allowed(self, run: SandboxRun, name: str) -> bool:
        agent = self._agent_of(run.tenant, run.agent_id)
        return agent is not None and any(tool.name == name for tool in agent.sandbox_whitelist.tools)

    def _listed(self, run: SandboxRun) -> dict[str, Any]:
        """The tools that the agent may use, with the schemas of their arguments. Touches nothing."""
        agent = self._agent_of(run.tenant, run.agent_id)
        if agent is None or agent.status != "active":
            raise ToolDenied("The agent is not active.")
        allowed = {tool.name: tool for tool in agent.sandbox_whitelist.tools}
        return {
            "tools": [
                _describe_tool(self._tools[name], allowed[name]) for name in sorted(allowed) if name in self._tools
            ]
        }


def _unknown(call: ToolRequest) -> Access:
    """A tool that is on no allowlist is denied and recorded, whether there is one of the name or not."""
    if not 0 < len(call.tool) <= 255 or len(call.operation or "") > 255:
        raise InvalidRequest("'tool' and 'operation' are texts of 1 to 255 characters.")
    return Access(call.tool, call.operation or "run")


def _describe_tool(tool: Tool, allowed: Allowed) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "operations": [one for one in tool.operations if one in allowed.operations],
        "paths": list(allowed.paths),
        "parameters": tool.parameters,
    }


def _error_line(call_id: int | str | None, code: str, message: str) -> bytes:
    return msgspec.json.encode({"id": call_id, "ok": False, "error": {"code": code, "message": message}}) + b"\n"


MAX_LINE_BYTES = 2 << 20
"""Bytes of one request."""
MAX_CONNECTIONS = 16
WRITE_TIMEOUT_SECONDS = 10.0
"""How long a client may take to read an answer."""
log = logging.getLogger(__name__)


class RunServer:
    """Serves one run; `close` ends every connection and every call."""

    def __init__(self, tools: ToolDispatcher, run: SandboxRun) -> None:
        self._tools = tools
        self._run = run
        self._open: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_CONNECTIONS:
            writer.write(_error_line(None, "RATE_LIMITED", f"A run may have {MAX_CONNECTIONS} connections."))
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
                message = f"A line may have {MAX_LINE_BYTES} bytes."
                await self._send(writer, _error_line(None, "PAYLOAD_TOO_LARGE", message))
                return
            async with self._turns:
                answer = await self._tools.respond(self._run, line)
            await self._send(writer, answer)

    async def _send(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        """A client that does not read is cut off."""
        writer.write(answer)
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            await writer.drain()

    async def close(self) -> None:
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ToolBroker:
    """`own` gives a socket to the caged user."""

    def __init__(self, tools: ToolDispatcher, own: Callable[[Path, int], None]) -> None:
        self._tools = tools
        self._own = own
        self._runs: set[SandboxRun] = set()

    def handle_agent_change(self, agent: Agent) -> None:
        """End all runs of an agent that is no longer active, whoever found it out and whatever they do now."""
        if agent.status != "active":
            for run in self._runs:
                if run.agent_id == agent.agent_id:
                    run.revoked.set()

    @asynccontextmanager
    async def serve(self, run: SandboxRun, socket: Path) -> AsyncIterator[None]:
        """The run's socket, while the block runs. Raises OSError when it cannot be made."""
        server = RunServer(self._tools, run)
        listening = await asyncio.start_unix_server(server.handle_connection, str(socket), limit=MAX_LINE_BYTES)
        try:
            self._own(socket, 0o600)
            self._runs.add(run)
            yield
        finally:
            self._runs.discard(run)
            listening.close()
            await server.close()
