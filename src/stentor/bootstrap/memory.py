"""Wires the memory: the vault, its index, the bus, and what keeps them together."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.db.driver import Driver
from stentor.core.db.leader import VAULT_LOCK_ID, LeaderElection
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.core.runlog import RunLog
from stentor.core.settings import Settings
from stentor.domains.activity.service import ReportLookup, no_reports
from stentor.domains.memory.embedding.embedder import Embedder
from stentor.domains.memory.embedding.local import LocalEmbedder, is_package_installed
from stentor.domains.memory.embedding.remote import RemoteEmbedder
from stentor.domains.memory.embedding_worker import EmbeddingWorker
from stentor.domains.memory.health import MemoryHealth
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.indexer import Indexer, IndexMaintenance
from stentor.domains.memory.index.sqlite import open_index
from stentor.domains.memory.index.watcher import VaultWatcher
from stentor.domains.memory.search import SearchService
from stentor.domains.memory.service import MemoryService, VersionHistory
from stentor.domains.memory.vaults import DEFAULT_VAULT, VaultParts, VaultRegistry
from stentor.domains.notes import plugin_client
from stentor.domains.notes.folder_vault import FolderVault
from stentor.domains.notes.plugin_client import PluginClient
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.domains.reports.model import VaultReport
from stentor.domains.reports.service import ReportService
from stentor.domains.tasknotes.model import is_mirrored
from stentor.domains.tasks.service import require_task

RECOVER_SECONDS = 10.0
LEFT_OPEN = 30 * SECOND
"""Age from which a write that another process decided is taken to be nobody's: one takes much less than a second."""
log = logging.getLogger(__name__)


@dataclass
class NamedVault:
    """The parts of a vault beside the default one. The model that makes vectors is shared by all."""

    index: SearchIndex
    indexer: Indexer
    meanings: EmbeddingWorker
    bus: MemoryService
    search: SearchService
    history: VersionHistory
    health: MemoryHealth
    watcher: VaultWatcher

    @property
    def parts(self) -> VaultParts:
        return _parts(self, self.indexer)


@dataclass
class Memory:
    """The wired parts. `start` and `stop` run on the event loop that serves."""

    vault: FolderVault | PluginVault
    index: SearchIndex
    indexer: Indexer
    meanings: EmbeddingWorker
    bus: MemoryService
    search: SearchService
    history: VersionHistory
    health: MemoryHealth
    watcher: VaultWatcher
    leader: LeaderElection
    others: Mapping[str, NamedVault] = field(default_factory=dict)
    _background: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def _vaults(self) -> list[Memory | NamedVault]:
        return [self, *self.others.values()]

    async def start(self) -> None:
        """Carry out what was left open, then follow the vault, as one process at a time does."""
        if not self.index.is_shared:
            await self._recover(None)
        work = self.leader.run_while_leader(self._lead)
        made = (one.meanings.run() for one in self._vaults)
        self._background += [asyncio.create_task(work), *map(asyncio.create_task, made)]

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for one in self._vaults:
                tasks.create_task(one.watcher.run())
            if self.index.is_shared:
                tasks.create_task(self._recover_for_others())

    async def _recover_for_others(self) -> None:
        while True:
            try:
                await self._recover(LEFT_OPEN)
            except StoreUnavailable:
                log.debug("the database says in the log that it is out")
            await asyncio.sleep(RECOVER_SECONDS)

    async def _recover(self, age: int | None) -> None:
        for one in self._vaults:
            if found := await one.bus.journal.recover(age):
                log.info("%d writes of an earlier process were carried out", found)

    def named(self, steps: IndexMaintenance) -> VaultRegistry:
        """All vaults by their names. `steps` of the default vault may know the tasks' notes too."""
        return VaultRegistry(
            {DEFAULT_VAULT: _parts(self, steps)} | {name: one.parts for name, one in self.others.items()}
        )

    async def stop(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.leader.close()
        for one in self._vaults:
            await one.bus.journal.close()
        await self.meanings.close()
        if isinstance(self.vault, PluginVault):
            await self.vault.close()
        for one in self._vaults:
            await asyncio.to_thread(one.index.close)


def _parts(one: Memory | NamedVault, steps: IndexMaintenance) -> VaultParts:
    return VaultParts(one.bus, one.search, one.history, steps, one.health, one.meanings, one.index)


def vault_folder(settings: Settings) -> Path:
    return settings.vault_dir or settings.data_dir / "vault"


def open_memory(settings: Settings, db: Database, clock: Clock, runlog: RunLog) -> Memory:
    """Open the vaults and their indexes, made when there are none. Raises StartRefused."""
    vault = _vault(settings)
    index = _index(settings, db.driver)
    indexer = Indexer(vault, index, clock, is_excluded=is_mirrored)
    model = embedder(settings)
    meanings = EmbeddingWorker(index, model, clock, _floor(settings))
    indexer.on_indexed = meanings.enqueue
    bus = MemoryService(vault, db, indexer, runlog, clock, _head_of_task)
    bus.estimate_vectors_ready_at = meanings.estimate_ready_at
    return Memory(
        vault=vault,
        index=index,
        indexer=indexer,
        meanings=meanings,
        bus=bus,
        search=SearchService(db, index, bus, meanings),
        history=VersionHistory(vault, db, bus),
        health=MemoryHealth(vault, index, indexer, meanings, bus.cache),
        watcher=VaultWatcher(
            _followed(vault), indexer, reconcile_seconds=settings.vault_reconcile, poll=settings.vault_poll
        ),
        leader=LeaderElection(db.driver, VAULT_LOCK_ID, "the vault"),
        others={
            name: _named(settings, db, clock, runlog, model, name, folder)
            for name, folder in _other_folders(settings, _followed(vault))
        },
    )


def _named(
    settings: Settings, db: Database, clock: Clock, runlog: RunLog, model: Embedder | None, name: str, folder: Path
) -> NamedVault:
    vault = FolderVault(_made(folder))
    index = _index(settings, db.driver, name)
    indexer = Indexer(vault, index, clock)
    meanings = EmbeddingWorker(index, model, clock, _floor(settings))
    indexer.on_indexed = meanings.enqueue
    bus = MemoryService(vault, db, indexer, runlog, clock, _head_of_task, name)
    bus.estimate_vectors_ready_at = meanings.estimate_ready_at
    return NamedVault(
        index=index,
        indexer=indexer,
        meanings=meanings,
        bus=bus,
        search=SearchService(db, index, bus, meanings),
        history=VersionHistory(vault, db, bus),
        health=MemoryHealth(vault, index, indexer, meanings, bus.cache),
        watcher=VaultWatcher(folder, indexer, reconcile_seconds=settings.vault_reconcile, poll=settings.vault_poll),
    )


def _other_folders(settings: Settings, default: Path | None) -> Iterator[tuple[str, Path]]:
    """Raises StartRefused for a folder that holds another vault, or lies in one: its notes would be in both."""
    known = {} if default is None else {DEFAULT_VAULT: default.resolve()}
    for vault in settings.vaults:
        name, _, folder = vault.partition("=")
        path = Path(folder).resolve()
        for other, taken in known.items():
            if path.is_relative_to(taken) or taken.is_relative_to(path):
                raise StartRefused(f"SERVICE_VAULTS: the folders of the vaults {name!r} and {other!r} overlap.")
        known[name] = path
        yield name, path


def _index(settings: Settings, driver: Driver, name: str = "") -> SearchIndex:
    """In PostgreSQL when the state is there, so that all processes share it; else in a file of its own."""
    if not driver.shared:
        folder = settings.data_dir / "index"
        return open_index(folder / "vaults" / name if name else folder)
    module = importlib.import_module("stentor.domains.memory.index.postgres.schema")
    index: SearchIndex = module.open_index(driver, name)
    if index.warning:
        log.warning("vectors are searched in the memory of this process: %s", index.warning)
    return index


def _vault(settings: Settings) -> FolderVault | PluginVault:
    if settings.plugin_url:
        return PluginVault(PluginClient(plugin_client.parse_base_url(settings.plugin_url), settings.plugin_key))
    return FolderVault(_made(vault_folder(settings)), is_unlisted=is_mirrored)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartRefused(f"The vault's folder {folder} cannot be made: {error.strerror}.") from None
    return folder


def _followed(vault: FolderVault | PluginVault) -> Path | None:
    return vault.root if isinstance(vault, FolderVault) else None


def embedder(settings: Settings) -> Embedder | None:
    """The service that is named, else the model on this machine, if there is one."""
    if settings.embedding_url:
        return RemoteEmbedder(settings.embedding_url, settings.embedding_model, settings.embedding_key)
    if settings.embedding_model == "none":
        return None
    folder = Path(settings.embedding_model) if settings.embedding_model else None
    if folder is None and not is_package_installed():
        return None
    return LocalEmbedder(settings.data_dir / "index" / "models", folder)


PACKAGED_FLOOR = 0.2
"""Of the packaged model. Measured on this repository's docs: of words that none of them is about, the best note is at
0.1 to 0.24 (one of 18 at 0.3); of questions that one answers, that note is at 0.28 to 0.69."""
NO_FLOOR = -1.0


def _floor(settings: Settings) -> float:
    """Other models have other scales, so that nothing is known of what is noise in them."""
    if settings.embedding_floor is not None:
        return settings.embedding_floor
    return NO_FLOOR if settings.embedding_url or settings.embedding_model else PACKAGED_FLOOR


def reports_of(memory: Memory | None, tenant: str) -> ReportLookup:
    """The reports in the vault, which belong to tasks of the vault's tenant alone."""
    if memory is None:
        return no_reports
    reports = ReportService(memory.vault)

    async def of_task(asking: str, task_id: str) -> list[VaultReport]:
        return await reports.list_for_task(task_id) if asking == tenant else []

    return of_task


def _head_of_task(tx: Tx, tenant: str, task_id: str) -> str:
    """The event that a use of the memory for a task hangs under."""
    return require_task(tx, tenant, task_id).provenance_id
