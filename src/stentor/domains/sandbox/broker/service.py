"""Serve the tool calls of runs: each call is first checked and recorded, then executed. Fails closed.

Each run has its own Unix socket with JSON lines. Connections, concurrent calls, calls and bytes of a line are limited,
and everything ends with the run.
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
from stentor.core.errors import Forbidden, InvalidRequest, NotFound, RateLimited, StentorError, Timeout, drop_tracebacks
from stentor.core.jsontext import JsonObject
from stentor.domains.registry.model import Agent, AllowedTool
from stentor.domains.sandbox.broker.model import SandboxRun, Tool, ToolRequest, convert_struct
from stentor.domains.sandbox.model import Access
from stentor.domains.sandbox.service import SandboxService

MAX_CALLS = 10_000
"""Limit of the calls of one run, malformed requests included."""
MAX_REFUSED_CALLS = 100
"""Calls beyond MAX_CALLS that are answered with the reason, before the connections are closed."""
MAX_CONCURRENT_CALLS = 8
MAX_LINE_BYTES = 2 << 20
INLINE_LINE_BYTES = 64 * 1024
"""Lines below this size are decoded inline: that is faster than a thread."""
MAX_CONNECTIONS = 16
WRITE_TIMEOUT_SECONDS = 10.0
"""How long a client may take to read a response."""
LIST_TOOLS = "tools"
log = logging.getLogger(__name__)


class ToolDenied(Forbidden):
    """The agent may not do this; it is recorded as a violation."""

    code = "TOOL_DENIED"


class ToolDispatcher:
    """Checks and executes calls. `find_agent` returns the current state of an agent by tenant and id."""

    def __init__(
        self, sandbox: SandboxService, tools: Mapping[str, Tool], find_agent: Callable[[str, str], Agent | None]
    ) -> None:
        self._sandbox = sandbox
        self._tools = dict(tools)
        self._find_agent = find_agent
        sandbox.complete_access = self._complete_access

    async def respond(self, run: SandboxRun, line: bytes) -> bytes:
        """Return the response line, `{id, ok, result}` or `{id, ok, error: {code, message}}`. Never raises."""
        call_id: int | str | None = None
        try:
            # Before anything can fail: malformed calls count too.
            run.call_count += 1
            if run.call_count > MAX_CALLS:
                raise RateLimited(f"A run may make {MAX_CALLS} calls.")
            call: ToolRequest = convert_struct(await _decode(run, line), ToolRequest, "call")
            call_id = call.id
            return jsontext.encode({"id": call_id, "ok": True, "result": await self.call(run, call)}) + b"\n"
        except StentorError as error:
            drop_tracebacks(error)
            return _error_line(call_id, error.code, error.message)
        except Exception:
            # One failed tool must not close the socket of the run.
            log.exception("sandbox: tool failed unexpectedly task_id=%s", run.task_id)
            return _error_line(call_id, "INTERNAL_ERROR", "The tool failed unexpectedly.")

    async def call(self, run: SandboxRun, call: ToolRequest) -> Any:
        """Check and execute a call. Raises StentorError; ToolDenied for what the agent may not do."""
        if call.tool == LIST_TOOLS:
            return {"tools": self.list_tools(run)}
        tool = self._tools.get(call.tool)
        # A tool on the allow-list that this service lacks is a mistake of the operator, not a violation of the agent.
        if tool is None and self._is_on_allowlist(run, call.tool):
            raise NotFound(f"This service has no tool {call.tool!r}.")
        access = tool.to_access(call) if tool else _access_to_unknown(call)
        if any("\0" in part for part in (access.tool, access.operation, access.path or "", access.host or "")):
            raise InvalidRequest("The name and the arguments of a tool must not contain the character NUL.")
        decision = await self._sandbox.authorize(
            run.tenant, run.agent_id, access, task_id=run.task_id, parent=run.parent_event_id, guard=run.guard
        )
        if decision.agent.status != "active":
            run.revoked.set()
        if decision.denial is not None:
            raise ToolDenied(f"{decision.denial.details} ({decision.denial.type})")
        if tool is None:  # it was added to the allow-list after the check above
            raise NotFound(f"This service has no tool {call.tool!r}.")
        try:
            async with asyncio.timeout(tool.timeout_seconds):
                return await tool.execute(run, call)
        except TimeoutError:
            raise Timeout(f"The tool {tool.name!r} took longer than {tool.timeout_seconds:g} s.") from None

    def _complete_access(self, access: Access) -> Access:
        tool = self._tools.get(access.tool)
        return tool.complete_access(access) if tool else access

    def _is_on_allowlist(self, run: SandboxRun, name: str) -> bool:
        agent = self._find_agent(run.tenant, run.agent_id)
        return agent is not None and any(tool.name == name for tool in agent.sandbox_whitelist.tools)

    def is_repeatable(self, call: ToolRequest) -> bool:
        """Return whether a call may be made again; one of a tool that does not exist is only denied again."""
        tool = self._tools.get(call.tool)
        return tool is None or tool.is_repeatable(call)

    def with_key(self, call: ToolRequest, key: str) -> ToolRequest:
        """Return the call with an idempotency key, if its tool has a place for one."""
        tool = self._tools.get(call.tool)
        return call if tool is None else tool.with_key(call, key)

    def list_tools(self, run: SandboxRun) -> list[JsonObject]:
        """Return the tools that the agent may use. Not recorded, because it accesses nothing."""
        agent = self._find_agent(run.tenant, run.agent_id)
        if agent is None or agent.status != "active":
            raise ToolDenied("The agent is not active.")
        return self.describe_tools(agent, has_folder=run.work_folder is not None)

    def describe_tools(self, agent: Agent, *, has_folder: bool) -> list[JsonObject]:
        """Return the tools on an agent's allow-list, whatever its status. Some need a work folder."""
        allowed = {tool.name: tool for tool in agent.sandbox_whitelist.tools}
        found = [(self._tools[name], allowed[name]) for name in sorted(allowed) if name in self._tools]
        return [_describe_tool(tool, entry) for tool, entry in found if has_folder or not tool.needs_work_folder]


async def _decode(run: SandboxRun, line: bytes) -> Any:
    """Return the value of a line. Raises InvalidRequest."""
    if len(line) < INLINE_LINE_BYTES:
        return jsontext.decode(line)
    loop = asyncio.get_running_loop()
    # Decoding a line full of numbers or arrays blocks everybody else, even from a thread: so each run decodes one line
    # at a time, and then leaves as much time to others.
    async with run.decoding:
        started = loop.time()
        try:
            return await asyncio.to_thread(jsontext.decode, line)
        finally:
            await asyncio.sleep(loop.time() - started)


def _access_to_unknown(call: ToolRequest) -> Access:
    """Return the access of a tool that does not exist, so that it is denied and recorded. Raises InvalidRequest."""
    if not 0 < len(call.tool) <= 255 or len(call.operation or "") > 255:
        raise InvalidRequest("'tool' and 'operation' must be strings of 1 to 255 characters.")
    return Access(call.tool, call.operation or "run")


def _describe_tool(tool: Tool, allowed: AllowedTool) -> JsonObject:
    return {
        "name": tool.name,
        "description": tool.description,
        "operations": [operation for operation in tool.operations if operation in allowed.operations],
        "paths": list(allowed.paths),
        "parameters": tool.parameters,
    }


def _error_line(call_id: int | str | None, code: str, message: str) -> bytes:
    return msgspec.json.encode({"id": call_id, "ok": False, "error": {"code": code, "message": message}}) + b"\n"


class RunServer:
    """Serves the connections of one run."""

    def __init__(self, tools: ToolDispatcher, run: SandboxRun) -> None:
        self._tools = tools
        self._run = run
        self._connections: set[asyncio.Task[None]] = set()
        self._call_slots = asyncio.Semaphore(MAX_CONCURRENT_CALLS)

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to the calls of a connection until it ends."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS or self._is_refused:
            message = f"A run may have {MAX_CONNECTIONS} connections and make {MAX_CALLS} calls."
            writer.write(_error_line(None, "RATE_LIMITED", message))
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            log.debug("sandbox: connection ended early task_id=%s", self._run.task_id)
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError):
                writer.transport.abort()

    @property
    def _is_refused(self) -> bool:
        return self._run.call_count > MAX_CALLS + MAX_REFUSED_CALLS

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
            # Shared by the connections of the run, so that opening more does not mean more calls at once.
            async with self._call_slots:
                response = await self._tools.respond(self._run, line)
            await self._send(writer, response)
            if self._is_refused:
                return
            # Nothing above may have waited: a program that sends many lines at once must not stop everybody else.
            await asyncio.sleep(0)

    async def _send(self, writer: asyncio.StreamWriter, response: bytes) -> None:
        """Write a response. Raises TimeoutError for a client that does not read it."""
        if writer.transport.is_closing():
            raise ConnectionAbortedError  # uvloop raises RuntimeError, and logs each as a fault
        writer.write(response)
        async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
            await writer.drain()

    async def close(self) -> None:
        """Cancel all connections and calls, and wait for their end."""
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ToolBroker:
    """Opens a socket for each run. `give_to_sandbox_user` sets its owner and mode."""

    def __init__(self, tools: ToolDispatcher, give_to_sandbox_user: Callable[[Path, int], None]) -> None:
        self._tools = tools
        self._give_to_sandbox_user = give_to_sandbox_user
        self._runs: set[SandboxRun] = set()

    def handle_agent_change(self, agent: Agent) -> None:
        """End all runs of an agent that is no longer active, whatever changed it and whether or not it calls tools."""
        if agent.status != "active":
            for run in self._runs:
                if run.agent_id == agent.agent_id:
                    run.revoked.set()

    @asynccontextmanager
    async def serve(self, run: SandboxRun, socket: Path) -> AsyncIterator[None]:
        """Serve the run's socket inside the block. Raises OSError when the socket cannot be created."""
        server = RunServer(self._tools, run)
        listener = await asyncio.start_unix_server(server.handle_connection, str(socket), limit=MAX_LINE_BYTES)
        try:
            self._give_to_sandbox_user(socket, 0o600)
            self._runs.add(run)
            yield
        finally:
            self._runs.discard(run)
            listener.close()
            await server.close()
