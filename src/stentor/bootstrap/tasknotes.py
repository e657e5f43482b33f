"""Wires the task notes: the mirror of tasks in the vault, and the inbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from stentor.bootstrap.memory import Memory
from stentor.core.clock import SECOND
from stentor.core.db import Database
from stentor.core.db.leader import LeaderElection
from stentor.core.live import Hub
from stentor.core.settings import Settings
from stentor.domains.memory.index.indexer import IndexMaintenance
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasknotes.inbox import TaskInbox
from stentor.domains.tasknotes.mirror import TaskNoteMirror, VaultMaintenance
from stentor.domains.tasks.submission import SubmissionService


@dataclass
class TaskNotes:
    """The wired parts, those that are switched on. `steps` go over the vault for reindex and verify."""

    steps: IndexMaintenance
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
        if self._background and self.mirror is not None:
            await self.mirror.stop()


def open_task_notes(
    settings: Settings, db: Database, hub: Hub, memory: Memory, submission: SubmissionService, snapshot: AgentCache
) -> TaskNotes:
    """All of it belongs to the vault's tenant."""
    tenant, vault = settings.vault_tenant, memory.vault

    def agent_name(agent_id: str) -> str | None:
        agent = snapshot.get(tenant, agent_id)
        return agent.name if agent else None

    inbox = None
    if settings.task_inbox:
        allowed = settings.inbox_capabilities
        inbox = TaskInbox(db, hub, vault, submission, tenant, settings.inbox_quiet, agent_name, allowed)
        memory.watcher.on_change = inbox.notify_changed
    if not settings.task_notes or isinstance(vault, PluginVault):  # the mirror writes files, not requests
        return TaskNotes(memory.indexer, memory.leader, None, inbox)
    mirror = TaskNoteMirror(db, hub, vault.root, tenant, settings.lease * SECOND, shared=db.driver.shared)
    return TaskNotes(VaultMaintenance(memory.indexer, mirror, db, tenant), memory.leader, mirror, inbox)
