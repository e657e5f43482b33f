"""Wires the memory: each vault with its search index, the service that writes to it, and what keeps them in step."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from stentor.auth.authority.context import NAMED_VAULT_PREFIX
from stentor.bootstrap.infrastructure import Infrastructure
from stentor.core.clock import SECOND
from stentor.core.db import Tx
from stentor.core.db.driver import Driver
from stentor.core.db.locks.leader import VAULT_LOCK_ID, LeaderElection
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.core.settings import Settings
from stentor.domains.activity.service import ReportLookup, no_reports
from stentor.domains.memory.embedding.embedder import Embedder
from stentor.domains.memory.embedding.embedding_worker import EmbeddingWorker
from stentor.domains.memory.embedding.local import LocalEmbedder, is_package_installed
from stentor.domains.memory.embedding.remote import RemoteEmbedder
from stentor.domains.memory.health import MemoryHealth
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.indexer import Indexer
from stentor.domains.memory.index.protocols import IndexMaintenance
from stentor.domains.memory.index.sqlite.sqlite import open_index
from stentor.domains.memory.index.watcher import VaultWatcher
from stentor.domains.memory.search import SearchService
from stentor.domains.memory.service import MemoryService
from stentor.domains.memory.validity.guard import MarkGuard
from stentor.domains.memory.validity.service import InvalidationService
from stentor.domains.memory.vaults import DEFAULT_VAULT, VaultParts, VaultRegistry
from stentor.domains.memory.versions.disk_edits import DiskEdits
from stentor.domains.memory.versions.history import VersionHistory
from stentor.domains.notes import plugin_client
from stentor.domains.notes.plugin_client import PluginClient
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.domains.reports.service import ReportService, VaultReport
from stentor.domains.tasknotes.model import is_in_inbox, is_mirrored
from stentor.domains.tasks.access import require_task
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import MAX_NOTE_BYTES

RECOVER_SECONDS = 10.0
ABANDONED_US = 30 * SECOND
"""Age from which an open write of another process counts as abandoned; a write takes much less than a second."""
PACKAGED_MODEL_MIN_SIMILARITY = 0.2
"""Least similarity of a match with the packaged model.

Measured on this repository's docs: for words that none of them is about, the best note has 0.1 to 0.24 (one of 18 has
0.3); for questions that one answers, 0.28 to 0.69. Of the 1,851 answers of five sets it leaves out 1.4 %, of those that
would be among the first ten two.
"""
log = logging.getLogger(__name__)


@dataclass
class OpenVault:
    """The services of one vault. The embedding model is shared by all vaults."""

    vault: FolderVault | PluginVault
    index: SearchIndex
    indexer: Indexer
    embeddings: EmbeddingWorker
    service: MemoryService
    search: SearchService
    history: VersionHistory
    health: MemoryHealth
    watcher: VaultWatcher
    is_elsewhere: bool
    """Whether the folder was given by the operator, and is not the one in the data folder."""

    async def create_folder(self) -> None:
        """Create a folder that does not exist, unless its notes are known. Raises StartRefused.

        A folder with known notes is on a drive that is not mounted, or was renamed: an empty one in its place would
        remove all of them from the index, and hide what is written meanwhile once the drive is mounted.
        """
        folder = _watched_folder(self.vault)
        if folder is None or folder.is_dir():
            return
        if folder.exists():
            raise StartRefused(f"The vault's folder {folder} (SERVICE_VAULT_DIR) is a file.")
        if self.is_elsewhere and not await self.index.is_empty():
            log.error(
                "memory: the vault's folder is missing, and not created because the index has its notes folder=%s",
                folder,
            )
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartRefused(f"The vault's folder {folder} cannot be created: {error.strerror}.") from None

    def parts(self, maintenance: IndexMaintenance | None = None) -> VaultParts:
        """Return what operations use. `maintenance` replaces the indexer for reindex and verify."""
        return VaultParts(
            self.service,
            self.search,
            self.history,
            maintenance or self.indexer,
            self.health,
            self.embeddings,
            self.index,
        )


@dataclass
class Memory:
    """The default vault and the others by name. One process at a time, the leader, follows changes in their folders."""

    default: OpenVault
    others: Mapping[str, OpenVault]
    leader: LeaderElection
    invalidations: InvalidationService
    _background: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def vaults(self) -> list[OpenVault]:
        return [self.default, *self.others.values()]

    def registry(self, maintenance: IndexMaintenance | None = None) -> VaultRegistry:
        """Return all vaults by name. `maintenance` of the default vault may include the notes of tasks."""
        others = {name: vault.parts() for name, vault in self.others.items()}
        return VaultRegistry({DEFAULT_VAULT: self.default.parts(maintenance)} | others)

    async def start(self) -> None:
        """Finish the writes that an earlier process left open, then follow the vaults."""
        for vault in self.vaults:
            await vault.create_folder()
        # Only this process uses the vault, so every open write was left by a crash.
        if not self.default.index.is_shared:
            await self._recover(None)
        jobs = [self.leader.run_while_leader(self._lead), *(vault.embeddings.run() for vault in self.vaults)]
        self._background += map(asyncio.create_task, jobs)

    async def stop(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.leader.close()
        for vault in self.vaults:
            await vault.service.journal.close()
        await self.default.embeddings.close()
        if isinstance(self.default.vault, PluginVault):
            await self.default.vault.close()
        for vault in self.vaults:
            await asyncio.to_thread(vault.index.close)

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            for vault in self.vaults:
                group.create_task(vault.watcher.run())
            # With other processes alive, a young open write may be in progress: only the leader ends those that are
            # old.
            if self.default.index.is_shared:
                group.create_task(self._recover_abandoned())

    async def _recover_abandoned(self) -> None:
        while True:
            try:
                await self._recover(ABANDONED_US)
                # A process may have died between its row and the index.
                await self.invalidations.sync()
            except StoreUnavailable:
                log.debug("memory: recovery postponed, the database is unavailable")
            await asyncio.sleep(RECOVER_SECONDS)

    async def _recover(self, min_age_us: int | None) -> None:
        for vault in self.vaults:
            if count := await vault.service.journal.recover(min_age_us):
                log.info("memory: finished writes of an earlier process writes=%d", count)


def open_memory(infra: Infrastructure) -> Memory:
    """Open the vaults and their indexes; create indexes that are missing. Raises StartRefused."""
    settings = infra.settings
    embedder = open_embedder(settings)
    vault = _open_default_vault(settings)
    others = {
        name: _open(infra, FolderVault(folder, max_read_bytes=MAX_NOTE_BYTES), embedder, name)
        for name, folder in _other_folders(settings, _watched_folder(vault))
    }
    default = _open(infra, vault, embedder)
    opened = {DEFAULT_VAULT: default, **others}
    invalidations = InvalidationService(
        infra.db,
        {name: one.service for name, one in opened.items()},
        {name: one.index for name, one in opened.items()},
        infra.clock,
    )
    for name, one in opened.items():
        one.indexer.before_reconcile = partial(invalidations.sync_vault, name)
    leader = LeaderElection(infra.db.driver, VAULT_LOCK_ID, "the vault")
    return Memory(default, others, leader, invalidations)


def _open(
    infra: Infrastructure, vault: FolderVault | PluginVault, embedder: Embedder | None, name: str = ""
) -> OpenVault:
    """Open a vault; the default one has no name."""
    settings, db, clock = infra.settings, infra.db, infra.clock
    index = _open_index(settings, db.driver, name)
    index.record_prefix = f"{NAMED_VAULT_PREFIX}{name}/" if name else ""
    # Only the default vault has notes of tasks, which are not indexed: the rows are the truth.
    indexer = Indexer(vault, index, clock) if name else Indexer(vault, index, clock, is_excluded=is_mirrored)
    # Measured with the packaged model only, like its least similarity.
    has_noise_level = not _is_other_model(settings)
    embeddings = EmbeddingWorker(index, embedder, clock, _min_similarity(settings), has_noise_level=has_noise_level)
    indexer.on_indexed = embeddings.enqueue
    guard = MarkGuard(index, clock, is_in_inbox)
    service = MemoryService(vault, db, indexer, infra.runlog, clock, _head_event, guard, name)
    indexer.on_disk_change = DiskEdits(db, index, service.stored_path).record
    service.estimate_vectors_ready_at = embeddings.estimate_ready_at
    return OpenVault(
        vault=vault,
        index=index,
        indexer=indexer,
        embeddings=embeddings,
        service=service,
        search=SearchService(db, index, service, embeddings, clock),
        history=VersionHistory(vault, db, service),
        health=MemoryHealth(vault, index, indexer, embeddings, service.cache),
        watcher=VaultWatcher(
            _watched_folder(vault),
            indexer,
            reconcile_seconds=settings.memory.reconcile_seconds,
            poll=settings.memory.poll,
        ),
        is_elsewhere=bool(name) or settings.memory.vault_dir is not None,
    )


def _head_event(tx: Tx, tenant: str, task_id: str) -> str:
    """Return the event of a task under which a memory access for it is recorded."""
    return require_task(tx, tenant, task_id).provenance_id


def vault_folder(settings: Settings) -> Path:
    return settings.memory.vault_dir or settings.storage.data_dir / "vault"


def _open_default_vault(settings: Settings) -> FolderVault | PluginVault:
    return open_plugin_vault(settings) or FolderVault(vault_folder(settings), is_mirrored, MAX_NOTE_BYTES)


def open_plugin_vault(settings: Settings) -> PluginVault | None:
    """Return the vault behind the configured plugin; None without one. Raises StartRefused."""
    if not settings.memory.plugin_url:
        return None
    address = plugin_client.parse_base_url(settings.memory.plugin_url, "SERVICE_VAULT_PLUGIN_URL")
    return PluginVault(PluginClient(address, settings.memory.plugin_key))


def _watched_folder(vault: FolderVault | PluginVault) -> Path | None:
    return vault.root if isinstance(vault, FolderVault) else None


def _other_folders(settings: Settings, default: Path | None) -> Iterator[tuple[str, Path]]:
    """Raises StartRefused for folders that overlap, because their notes would be in both vaults."""
    known = {} if default is None else {DEFAULT_VAULT: default.resolve()}
    for vault in settings.memory.vaults:
        name, _, folder = vault.partition("=")
        path = Path(folder).resolve()
        for other, taken in known.items():
            if path.is_relative_to(taken) or taken.is_relative_to(path):
                raise StartRefused(f"SERVICE_VAULTS: the folders of the vaults {name!r} and {other!r} overlap.")
        known[name] = path
        yield name, path


def _open_index(settings: Settings, driver: Driver, name: str) -> SearchIndex:
    """In PostgreSQL if the service's rows are there, so that all processes share it; else in a file of its own."""
    if not driver.shared:
        folder = settings.storage.data_dir / "index"
        return open_index(folder / "vaults" / name if name else folder)
    module = importlib.import_module("stentor.domains.memory.index.postgres.schema")
    index: SearchIndex = module.open_index(driver, name)
    if index.warning:
        log.warning("index: vectors are searched in the memory of this process: %s", index.warning)
    return index


def open_embedder(settings: Settings) -> Embedder | None:
    """Return the embedding service of the settings, else the model on this machine, if there is one."""
    if settings.memory.embedding_url:
        return RemoteEmbedder(
            settings.memory.embedding_url, settings.memory.embedding_model, settings.memory.embedding_key
        )
    if settings.memory.embedding_model == "none":
        return None
    folder = Path(settings.memory.embedding_model) if settings.memory.embedding_model else None
    if folder is None and not is_package_installed():
        return None
    return LocalEmbedder(settings.storage.data_dir / "index" / "models", folder)


def _min_similarity(settings: Settings) -> float:
    """Return the least similarity of a match; models differ in scale, so only the packaged one has a default."""
    if (chosen := settings.memory.embedding_floor) is not None:
        return chosen
    return -1.0 if _is_other_model(settings) else PACKAGED_MODEL_MIN_SIMILARITY


def _is_other_model(settings: Settings) -> bool:
    return bool(settings.memory.embedding_url or settings.memory.embedding_model)


def report_lookup(memory: Memory | None, tenant: str) -> ReportLookup:
    """Return a function that finds the reports on a task; those in the vault belong only to the vault's tenant."""
    if memory is None:
        return no_reports
    reports = ReportService(memory.default.vault)

    async def find(caller_tenant: str, task_id: str) -> list[VaultReport]:
        return await reports.list_for_task(task_id) if caller_tenant == tenant else []

    return find
