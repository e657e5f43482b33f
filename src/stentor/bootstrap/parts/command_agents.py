"""Wires command agents: the process sandbox, the tool broker with its tools, and the runtime `command`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.agents import AgentServices
from stentor.bootstrap.parts.llm import LlmParts
from stentor.bootstrap.parts.memory import Memory
from stentor.core.errors import SandboxUnavailable, StartRefused
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.settings import Settings
from stentor.domains.execution.runtimes.command import CommandDriver, DisabledDriver
from stentor.domains.execution.sandbox_tools import LlmChat, MemorySearch, MemoryWrite
from stentor.domains.memory.governed.key_access import SearchRights
from stentor.domains.monitoring.service import Check, HealthComponent, fixed_check
from stentor.domains.registry.model import Runtime
from stentor.domains.sandbox import bubblewrap
from stentor.domains.sandbox.broker import command_tools
from stentor.domains.sandbox.broker.file_tools import ListFiles, ReadFile, WriteFile
from stentor.domains.sandbox.broker.http_tool import HttpRequest
from stentor.domains.sandbox.broker.model import Tool
from stentor.domains.sandbox.broker.service import LIST_TOOLS, ToolBroker, ToolDispatcher
from stentor.domains.sandbox.process_sandbox import ProcessSandbox

DISABLED = "Command agents, which run programs on this machine, are disabled: set SERVICE_COMMAND_AGENTS=true."
log = logging.getLogger(__name__)


@dataclass
class CommandAgents:
    """`command` is None while command agents are switched off."""

    sandbox: ProcessSandbox
    command: CommandDriver | None
    outbound: OutboundHttp
    tools: ToolDispatcher
    """The tools of all agents in this service: of programs, and of models."""

    @property
    def driver(self) -> CommandDriver | DisabledDriver:
        return self.command or DisabledDriver(DISABLED)

    def check_runtime(self, runtime: Runtime) -> None:
        """Check the runtime of a registration. Raises InvalidRequest, SandboxUnavailable."""
        if runtime.endpoint is not None:
            # At registration too, not only at each call: an agent with a forbidden address should never exist.
            self.outbound.check_url(runtime.endpoint)
        if runtime.kind != "command":
            return
        if self.command is None:
            raise SandboxUnavailable(DISABLED)
        self.command.check_runtime(runtime)

    def health(self) -> dict[str, Check]:
        """Return the check of the component `cage`; none while command agents are switched off."""
        if self.command is None:
            return {}
        if not self.sandbox.is_enabled:
            return {"cage": fixed_check("disabled", "NO SANDBOX: programs of agents have all rights of the service")}

        async def check() -> HealthComponent:
            if self.sandbox.problem is None:
                return HealthComponent("available", "programs run in a sandbox")
            # Without the reason: it names folders of the host, and health is public.
            detail = "no sandbox, so command agents are refused; `stentor doctor` shows the reason"
            return HealthComponent("disabled", detail)

        return {"cage": check}


def process_sandbox(settings: Settings) -> ProcessSandbox:
    """Return the sandbox of the settings, not opened yet. Raises StartRefused."""
    try:
        roots = bubblewrap.parse_root_folders(settings.sandbox.roots)
    except ValueError as error:
        raise StartRefused(f"SERVICE_CAGE_ROOTS {error}.") from None
    return ProcessSandbox(
        settings.sandbox.folder or settings.storage.data_dir / "cage", roots, enabled=settings.sandbox.enabled
    )


def open_command_agents(
    infra: Infrastructure, agents: AgentServices, memory_tools: Sequence[Tool], llm: LlmParts
) -> CommandAgents:
    """Open the sandbox if command agents are switched on. Raises StartRefused for an invalid setting."""
    settings, outbound = infra.settings, infra.outbound
    sandbox = process_sandbox(settings)
    registry = agents.registry.agents
    dispatcher = ToolDispatcher(agents.sandbox, _tools(infra, sandbox, memory_tools, llm), registry.get)
    if not settings.sandbox.command_agents:
        return CommandAgents(sandbox, None, outbound, dispatcher)
    sandbox.open()
    if not sandbox.is_enabled:
        log.warning("sandbox: SERVICE_CAGE=off, command agents run with NO SANDBOX and all rights of this user")
    elif sandbox.problem is not None:
        log.error("sandbox: unavailable, command agents are refused reason=%s", sandbox.problem)
    broker = ToolBroker(dispatcher, sandbox.give_to_sandbox_user)
    # A run ends as soon as its agent is suspended or quarantined.
    registry.listeners.append(broker.handle_agent_change)
    driver = CommandDriver(sandbox, broker, infra.db, infra.runlog, infra.redactor.redact)
    return CommandAgents(sandbox, driver, outbound, dispatcher)


def memory_tools(memory: Memory, agents: AgentServices, rights: SearchRights, tenant: str) -> list[Tool]:
    """Return the tools on the default vault, which belongs to the tenant."""
    vault = memory.default
    search = MemorySearch(vault.search, tenant, agents.registry.agents.get, rights.of_agent)
    return [search, MemoryWrite(vault.service, tenant)]


def _tools(
    infra: Infrastructure, sandbox: ProcessSandbox, memory_tools: Sequence[Tool], llm: LlmParts
) -> dict[str, Tool]:
    def give_to_sandbox_user(descriptor: int) -> None:
        # A service that runs as root runs the programs as `nobody`: what a tool writes for them must belong to that
        # user.
        if bubblewrap.is_root() and sandbox.is_enabled:
            os.fchown(descriptor, bubblewrap.NOBODY_UID, bubblewrap.NOBODY_UID)

    tools: list[Tool] = [kind(sandbox.roots, give_to_sandbox_user) for kind in (ReadFile, WriteFile, ListFiles)]
    tools += [HttpRequest(infra.outbound), LlmChat(llm.gateway), *memory_tools]
    by_name = {tool.name: tool for tool in tools}
    commands = command_tools.load_command_tools(infra.settings.sandbox.tools, sandbox)
    if taken := commands.keys() & {*by_name, LIST_TOOLS}:
        raise StartRefused(
            f"SERVICE_CAGE_TOOLS: {min(taken)!r} is already the name of a built-in tool; choose another."
        )
    return {**by_name, **commands}
