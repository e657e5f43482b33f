"""Wires the sandbox: the cage, the broker with its tools, and the runtime `command`."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from stentor.bootstrap.llm import Llm
from stentor.bootstrap.memory import Memory
from stentor.core.db import Database
from stentor.core.errors import SandboxUnavailable, StartRefused
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.runlog import RunLog
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.execution.runtimes.command import CommandDriver, DisabledDriver
from stentor.domains.execution.sandbox_tools import LlmChat, MemorySearch, MemoryWrite
from stentor.domains.monitoring.service import Check, HealthComponent, fixed_check
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Runtime
from stentor.domains.sandbox import bubblewrap
from stentor.domains.sandbox.broker import command_tools
from stentor.domains.sandbox.broker.file_tools import ListFiles, ReadFile, WriteFile
from stentor.domains.sandbox.broker.http_tool import HttpRequest
from stentor.domains.sandbox.broker.model import Tool
from stentor.domains.sandbox.broker.service import LIST_TOOLS, ToolBroker, ToolDispatcher
from stentor.domains.sandbox.process_sandbox import ProcessSandbox
from stentor.domains.sandbox.service import SandboxService

OFF = "Command agents are switched off here: they run programs on this host, and SERVICE_COMMAND_AGENTS allows it."
log = logging.getLogger(__name__)


@dataclass
class Commands:
    """The wired parts; `command` is None while command agents are switched off."""

    cage: ProcessSandbox
    command: CommandDriver | None
    outbound: OutboundHttp

    @property
    def driver(self) -> CommandDriver | DisabledDriver:
        return self.command or DisabledDriver(OFF)

    def check_runtime(self, runtime: Runtime) -> None:
        """What registering this runtime raises: InvalidRequest, CageUnavailable, or nothing."""
        if runtime.endpoint is not None:
            self.outbound.check_url(runtime.endpoint)
        if runtime.kind != "command":
            return
        if self.command is None:
            raise SandboxUnavailable(OFF)
        self.command.check_runtime(runtime)

    def health(self) -> dict[str, Check]:
        """The component `cage`, where programs may be run at all. Without a cage the rest of the service is well."""
        if self.command is None:
            return {}
        if not self.cage.is_enabled:
            return {
                "cage": fixed_check("disabled", "WITHOUT A CAGE: programs of agents have all rights of the service")
            }

        async def check() -> HealthComponent:
            if self.cage.problem is None:
                return HealthComponent("available", "programs run caged")
            # The reason names folders of the host, and this route is public.
            return HealthComponent("disabled", "no cage, so command agents are refused; `stentor doctor` says why")

        return {"cage": check}


def cage_of(settings: Settings) -> ProcessSandbox:
    """Not opened yet. Raises StartRefused."""
    try:
        roots = bubblewrap.parse_root_folders(settings.cage_roots)
    except ValueError as error:
        raise StartRefused(f"SERVICE_CAGE_ROOTS {error}.") from None
    return ProcessSandbox(settings.cage_dir or settings.data_dir / "cage", roots, enabled=settings.cage)


def open_cage(
    settings: Settings,
    db: Database,
    runlog: RunLog,
    sandbox: SandboxService,
    snapshot: AgentCache,
    outbound: OutboundHttp,
    memory: Memory | None,
    llm: Llm,
    redactor: Redactor | None,
) -> Commands:
    """Try the cage out, when programs may be run at all. Raises StartRefused for a setting that cannot be read."""
    cage = cage_of(settings)
    if not settings.command_agents:
        return Commands(cage, None, outbound)
    cage.open()
    if not cage.is_enabled:
        log.warning("SERVICE_CAGE=off: the programs of command agents run WITHOUT A CAGE, with all rights of this user")
    elif cage.problem is not None:
        log.error("command agents will be refused: %s", cage.problem)
    tools = ToolDispatcher(sandbox, _tools(settings, cage, outbound, memory, llm), snapshot.get)
    clean = (redactor or Redactor()).redact
    broker = ToolBroker(tools, cage.give_to_sandbox_user)
    snapshot.listeners.append(broker.handle_agent_change)
    return Commands(cage, CommandDriver(cage, broker, db, runlog, clean), outbound)


def _tools(
    settings: Settings, cage: ProcessSandbox, outbound: OutboundHttp, memory: Memory | None, llm: Llm
) -> dict[str, Tool]:
    def own(descriptor: int) -> None:
        if bubblewrap.is_root() and cage.is_enabled:
            os.fchown(descriptor, bubblewrap.NOBODY_UID, bubblewrap.NOBODY_UID)

    found: list[Tool] = [kind(cage.roots, own) for kind in (ReadFile, WriteFile, ListFiles)]
    found += [HttpRequest(outbound), LlmChat(llm.gateway)]
    if memory is not None:
        found += [MemorySearch(memory.search, settings.vault_tenant), MemoryWrite(memory.bus, settings.vault_tenant)]
    known = {tool.name: tool for tool in found}
    programs_ = command_tools.load_command_tools(settings.cage_tools, cage)
    if taken := programs_.keys() & {*known, LIST_TOOLS}:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {min(taken)!r} is the name of a tool that there is already.")
    return {**known, **programs_}
