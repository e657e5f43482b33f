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
from stentor.domains.monitoring.service import Check, Component, fixed
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Runtime
from stentor.domains.sandbox.broker import programs
from stentor.domains.sandbox.broker.files import ListFiles, ReadFile, WriteFile
from stentor.domains.sandbox.broker.model import Tool
from stentor.domains.sandbox.broker.server import Broker
from stentor.domains.sandbox.broker.service import LIST, Tools
from stentor.domains.sandbox.broker.web import HttpRequest
from stentor.domains.sandbox.cage import plan
from stentor.domains.sandbox.cage.cage import Cage
from stentor.domains.sandbox.service import Sandbox

OFF = "Command agents are switched off here: they run programs on this host, and SERVICE_COMMAND_AGENTS allows it."
log = logging.getLogger(__name__)


@dataclass
class Commands:
    """The wired parts; `command` is None while command agents are switched off."""

    cage: Cage
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
        if not self.cage.on:
            return {"cage": fixed("disabled", "WITHOUT A CAGE: programs of agents have all rights of the service")}

        async def check() -> Component:
            if self.cage.problem is None:
                return Component("available", "programs run caged")
            # The reason names folders of the host, and this route is public.
            return Component("disabled", "no cage, so command agents are refused; `stentor doctor` says why")

        return {"cage": check}


def cage_of(settings: Settings) -> Cage:
    """Not opened yet. Raises StartRefused."""
    try:
        roots = plan.root_folders(settings.cage_roots)
    except ValueError as error:
        raise StartRefused(f"SERVICE_CAGE_ROOTS {error}.") from None
    return Cage(settings.cage_dir or settings.data_dir / "cage", roots, on=settings.cage)


def open_cage(
    settings: Settings,
    db: Database,
    runlog: RunLog,
    sandbox: Sandbox,
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
    if not cage.on:
        log.warning("SERVICE_CAGE=off: the programs of command agents run WITHOUT A CAGE, with all rights of this user")
    elif cage.problem is not None:
        log.error("command agents will be refused: %s", cage.problem)
    tools = Tools(sandbox, _tools(settings, cage, outbound, memory, llm), snapshot.get)
    clean = (redactor or Redactor()).redact
    broker = Broker(tools, cage.own)
    snapshot.listeners.append(broker.changed)
    return Commands(cage, CommandDriver(cage, broker, db, runlog, clean), outbound)


def _tools(settings: Settings, cage: Cage, outbound: OutboundHttp, memory: Memory | None, llm: Llm) -> dict[str, Tool]:
    def own(descriptor: int) -> None:
        if plan.is_root() and cage.on:
            os.fchown(descriptor, plan.NOBODY, plan.NOBODY)

    found: list[Tool] = [kind(cage.roots, own) for kind in (ReadFile, WriteFile, ListFiles)]
    found += [HttpRequest(outbound), LlmChat(llm.gateway)]
    if memory is not None:
        found += [MemorySearch(memory.search, settings.vault_tenant), MemoryWrite(memory.bus, settings.vault_tenant)]
    known = {tool.name: tool for tool in found}
    programs_ = programs.load(settings.cage_tools, cage)
    if taken := programs_.keys() & {*known, LIST}:
        raise StartRefused(f"SERVICE_CAGE_TOOLS: {min(taken)!r} is the name of a tool that there is already.")
    return {**known, **programs_}
