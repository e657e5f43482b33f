"""One call: judged and recorded first, then done. What is not granted is not done, and no answer means no."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.errors import Forbidden, InvalidRequest, NotFound, RateLimited, StentorError, Timeout
from stentor.domains.registry.model import Agent
from stentor.domains.registry.model import AllowedTool as Allowed
from stentor.domains.sandbox.broker.model import Call, Run, Tool, converted
from stentor.domains.sandbox.model import Access
from stentor.domains.sandbox.service import Sandbox

MAX_CALLS = 10_000
"""Of one run, garbage included."""
AT_ONCE = 8
LIST = "tools"
log = logging.getLogger(__name__)


class Denied(Forbidden):
    """The agent may not do this; it is recorded as a violation."""

    code = "TOOL_DENIED"


class Tools:
    """`agent_of` gives an agent as it stands now, by tenant and id."""

    def __init__(
        self, sandbox: Sandbox, tools: Mapping[str, Tool], agent_of: Callable[[str, str], Agent | None]
    ) -> None:
        self._sandbox = sandbox
        self._tools = dict(tools)
        self._agent_of = agent_of
        sandbox.complete = self._completed

    def _completed(self, access: Access) -> Access:
        tool = self._tools.get(access.tool)
        return tool.completed(access) if tool else access

    async def answer(self, run: Run, line: bytes) -> bytes:
        """The line for a line: `{id, ok, result}`, or `{id, ok, error: {code, message}}`; never raises."""
        call_id: int | str | None = None
        try:
            run.calls += 1
            if run.calls > MAX_CALLS:
                raise RateLimited(f"A run may make {MAX_CALLS} calls.")
            call: Call = converted(jsontext.decode(line), Call, "call")
            call_id = call.id
            return jsontext.encode({"id": call_id, "ok": True, "result": await self.call(run, call)}) + b"\n"
        except StentorError as error:
            return _error(call_id, error.code, error.message)
        except Exception:
            # Whatever a tool throws, its caller reads an error and the socket lives on.
            log.exception("a tool broke in task %s", run.task_id)
            return _error(call_id, "INTERNAL_ERROR", "The tool broke.")

    async def call(self, run: Run, call: Call) -> Any:
        """Raises StentorError: TOOL_DENIED for what the agent may not do."""
        if call.tool == LIST:
            return self._listed(run)
        tool = self._tools.get(call.tool)
        if tool is None and self._allowed(run, call.tool):
            raise NotFound(f"This service has no tool {call.tool!r}.")
        access = tool.access(call) if tool else _unknown(call)
        verdict = await self._sandbox.authorize(
            run.tenant, run.agent_id, access, task_id=run.task_id, parent=run.parent, guard=run.guard
        )
        if verdict.agent.status != "active":
            run.refused.set()
        if verdict.refusal is not None:
            raise Denied(f"{verdict.refusal.details} ({verdict.refusal.type})")
        if tool is None:  # it came onto the allowlist this moment
            raise NotFound(f"This service has no tool {call.tool!r}.")
        try:
            async with asyncio.timeout(tool.seconds):
                return await tool.act(run, call)
        except TimeoutError:
            raise Timeout(f"The tool {tool.name!r} took longer than {tool.seconds:g} s.") from None

    def _allowed(self, run: Run, name: str) -> bool:
        agent = self._agent_of(run.tenant, run.agent_id)
        return agent is not None and any(tool.name == name for tool in agent.sandbox_whitelist.tools)

    def _listed(self, run: Run) -> dict[str, Any]:
        """The tools that the agent may use, with the schemas of their arguments. Touches nothing."""
        agent = self._agent_of(run.tenant, run.agent_id)
        if agent is None or agent.status != "active":
            raise Denied("The agent is not active.")
        allowed = {tool.name: tool for tool in agent.sandbox_whitelist.tools}
        return {"tools": [_shown(self._tools[name], allowed[name]) for name in sorted(allowed) if name in self._tools]}


def _unknown(call: Call) -> Access:
    """A tool that is on no allowlist is denied and recorded, whether there is one of the name or not."""
    if not 0 < len(call.tool) <= 255 or len(call.operation or "") > 255:
        raise InvalidRequest("'tool' and 'operation' are texts of 1 to 255 characters.")
    return Access(call.tool, call.operation or "run")


def _shown(tool: Tool, allowed: Allowed) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "operations": [one for one in tool.operations if one in allowed.operations],
        "paths": list(allowed.paths),
        "parameters": tool.parameters,
    }


def _error(call_id: int | str | None, code: str, message: str) -> bytes:
    return msgspec.json.encode({"id": call_id, "ok": False, "error": {"code": code, "message": message}}) + b"\n"
