"""Wires the task notes: the mirror of tasks in the vault, and the inbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.memory import Memory
from stentor.bootstrap.parts.tasks import TaskServices
from stentor.core.clock import SECOND
from stentor.core.db.locks.leader import LeaderElection
from stentor.domains.memory.index.protocols import IndexMaintenance
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasknotes.inbox import TaskInbox
from stentor.domains.tasknotes.mirror import TaskNoteMirror, VaultMaintenance


@dataclass
class TaskNotes:
    """`mirror` and `inbox` are None where they are switched off; `maintenance` serves reindex and verify."""

    maintenance: IndexMaintenance
    leader: LeaderElection
    mirror: TaskNoteMirror | None
    inbox: TaskInbox | None
    _background: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        if self.mirror is not None:
            await self.mirror.start()
            self._background.append(asyncio.create_task(self.mirror.run()))
        if self.inbox is not None:
            self._background.append(asyncio.create_task(self.leader.run_while_leader(self.inbox.run)))

    async def stop(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        # Not for a mirror whose start failed: it has nothing to finish.
        if self._background and self.mirror is not None:
            await self.mirror.stop()


def open_task_notes(infra: Infrastructure, memory: Memory, tasks: TaskServices, registry: AgentCache) -> TaskNotes:
    """Open what is switched on. All of it belongs to the vault's tenant."""
    settings, db, hub, vault = infra.settings, infra.db, infra.hub, memory.default
    tenant = settings.memory.tenant

    def agent_name(agent_id: str) -> str | None:
        agent = registry.get(tenant, agent_id)
        return agent.name if agent else None

    inbox = None
    if settings.task_notes.inbox:
        inbox = TaskInbox(
            db,
            hub,
            vault.vault,
            tasks.submission,
            tenant,
            settings.task_notes.inbox_quiet_seconds,
            agent_name,
            settings.task_notes.inbox_capabilities,
        )
        # People write the notes. A configured key of this name, which is registered later, replaces it.
        infra.roles.register([inbox.principal])
        vault.watcher.on_change = inbox.notify_changed
    # The mirror writes files, so it needs the folder itself.
    if not settings.task_notes.enabled or isinstance(vault.vault, PluginVault):
        return TaskNotes(vault.indexer, memory.leader, None, inbox)
    mirror = TaskNoteMirror(
        db, hub, vault.vault.root, tenant, settings.tasks.lease_seconds * SECOND, shared=not infra.is_single_process
    )
    maintenance = VaultMaintenance(vault.indexer, mirror, db, tenant)
    return TaskNotes(maintenance, memory.leader, mirror, inbox)
