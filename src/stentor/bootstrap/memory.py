"""Wires the memory: the vault, its index, the bus, and what keeps them together."""

from __future__ import annotations

import asyncio
import importlib
import logging
from dataclasses import dataclass, field
from pathlib import Path

from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.db.driver import Driver
from stentor.core.db.leader import VAULT, Leader
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.core.runlog import RunLog
from stentor.core.settings import Settings
from stentor.domains.activity.service import ReportsOf, no_reports
from stentor.domains.memory.embedding.files import installed
from stentor.domains.memory.embedding.local import LocalEmbedder
from stentor.domains.memory.embedding.model import Embedder
from stentor.domains.memory.embedding.remote import RemoteEmbedder
from stentor.domains.memory.health import MemoryHealth
from stentor.domains.memory.history import History
from stentor.domains.memory.index.index import Index
from stentor.domains.memory.index.sqlite.schema import open_index
from stentor.domains.memory.indexer import Indexer
from stentor.domains.memory.meanings import Meanings
from stentor.domains.memory.search import Search
from stentor.domains.memory.service import Bus
from stentor.domains.memory.watcher import Watcher
from stentor.domains.notes import plugin
from stentor.domains.notes.folder import FolderVault
from stentor.domains.notes.plugin import Plugin
from stentor.domains.notes.pluginvault import PluginVault
from stentor.domains.reports.model import Report
from stentor.domains.reports.service import Reports
from stentor.domains.tasknotes.model import mirrored
from stentor.domains.tasks.service import require

RECOVER_SECONDS = 10.0
LEFT_OPEN = 30 * SECOND
"""Age from which a write that another process decided is taken to be nobody's: one takes much less than a second."""
log = logging.getLogger(__name__)


@dataclass
class Memory:
    """The wired parts. `start` and `stop` run on the event loop that serves."""

    vault: FolderVault | PluginVault
    index: Index
    indexer: Indexer
    meanings: Meanings
    bus: Bus
    search: Search
    history: History
    health: MemoryHealth
    watcher: Watcher
    leader: Leader
    _background: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Carry out what was left open, then follow the vault, as one process at a time does."""
        if not self.index.shared:
            await self._recover(None)
        work = self.leader.run(self._lead)
        self._background += [asyncio.create_task(work), asyncio.create_task(self.meanings.run())]

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watcher.run())
            if self.index.shared:
                tasks.create_task(self._recover_for_others())

    async def _recover_for_others(self) -> None:
        while True:
            try:
                await self._recover(LEFT_OPEN)
            except StoreUnavailable:
                log.debug("the database says in the log that it is out")
            await asyncio.sleep(RECOVER_SECONDS)

    async def _recover(self, age: int | None) -> None:
        if found := await self.bus.intents.recover(age):
            log.info("%d writes of an earlier process were carried out", found)

    async def stop(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.leader.close()
        await self.bus.intents.close()
        await self.meanings.close()
        if isinstance(self.vault, PluginVault):
            await self.vault.close()
        await asyncio.to_thread(self.index.close)


def vault_folder(settings: Settings) -> Path:
    return settings.vault_dir or settings.data_dir / "vault"


def open_memory(settings: Settings, db: Database, clock: Clock, runlog: RunLog) -> Memory:
    """Open the vault and its index, made when there is none. Raises StartRefused."""
    vault = _vault(settings)
    index = _index(settings, db.driver)
    indexer = Indexer(vault, index, clock, skips=mirrored)
    meanings = Meanings(index, embedder(settings), clock)
    indexer.on_put = meanings.put
    bus = Bus(vault, db, indexer, runlog, clock, _head_of_task)
    bus.ready_at = meanings.ready_at
    return Memory(
        vault=vault,
        index=index,
        indexer=indexer,
        meanings=meanings,
        bus=bus,
        search=Search(db, index, bus, meanings),
        history=History(vault, db, bus),
        health=MemoryHealth(vault, index, indexer, meanings, bus.cache),
        watcher=Watcher(_followed(vault), indexer, every=settings.vault_reconcile, poll=settings.vault_poll),
        leader=Leader(db.driver, VAULT, "the vault"),
    )


def _index(settings: Settings, driver: Driver) -> Index:
    """In PostgreSQL when the state is there, so that all processes share it; else in a file of its own."""
    if not driver.shared:
        return open_index(settings.data_dir / "index")
    module = importlib.import_module("stentor.domains.memory.index.postgres.schema")
    index: Index = module.open_index(driver)
    if index.note:
        log.warning("vectors are searched in the memory of this process: %s", index.note)
    return index


def _vault(settings: Settings) -> FolderVault | PluginVault:
    if settings.plugin_url:
        return PluginVault(Plugin(plugin.base(settings.plugin_url), settings.plugin_key))
    folder = vault_folder(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartRefused(f"The vault's folder {folder} cannot be made: {error.strerror}.") from None
    return FolderVault(folder, unlisted=mirrored)


def _followed(vault: FolderVault | PluginVault) -> Path | None:
    return vault.root if isinstance(vault, FolderVault) else None


def embedder(settings: Settings) -> Embedder | None:
    """The service that is named, else the model on this machine, if there is one."""
    if settings.embedding_url:
        return RemoteEmbedder(settings.embedding_url, settings.embedding_model, settings.embedding_key)
    if settings.embedding_model == "none":
        return None
    folder = Path(settings.embedding_model) if settings.embedding_model else None
    if folder is None and not installed():
        return None
    return LocalEmbedder(settings.data_dir / "index" / "models", folder)


def reports_of(memory: Memory | None, tenant: str) -> ReportsOf:
    """The reports in the vault, which belong to tasks of the vault's tenant alone."""
    if memory is None:
        return no_reports
    reports = Reports(memory.vault)

    async def of_task(asking: str, task_id: str) -> list[Report]:
        return await reports.of_task(task_id) if asking == tenant else []

    return of_task


def _head_of_task(tx: Tx, tenant: str, task_id: str) -> str:
    """The event that a use of the memory for a task hangs under."""
    return require(tx, tenant, task_id).provenance_id
