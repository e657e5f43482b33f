"""The vaults of a service by name: the default one, and those in SERVICE_VAULTS. Each has its own memory and index."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stentor.core.errors import InvalidRequest
from stentor.domains.memory.embedding.embedding_worker import EmbeddingWorker
from stentor.domains.memory.health import MemoryHealth
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.protocols import IndexMaintenance
from stentor.domains.memory.search import SearchService
from stentor.domains.memory.service import MemoryService
from stentor.domains.memory.versions.history import VersionHistory

DEFAULT_VAULT = "default"


class VaultParts(msgspec.Struct, frozen=True):
    """The services of one vault that routes, messages and tools use."""

    memory: MemoryService
    search: SearchService
    history: VersionHistory
    maintenance: IndexMaintenance
    health: MemoryHealth
    embedding_worker: EmbeddingWorker
    index: SearchIndex


class VaultRegistry:
    """The configured vaults."""

    def __init__(self, by_name: Mapping[str, VaultParts]) -> None:
        self._by_name = dict(by_name)

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def get(self, name: str) -> VaultParts:
        """Return a vault. Raises InvalidRequest if it is not configured: its notes must not end up in another one."""
        parts = self._by_name.get(name)
        if parts is None:
            known = ", ".join(self._by_name)
            raise InvalidRequest(
                f"vault: there is no vault {name[:80]!r}. Known vaults: {known}. SERVICE_VAULTS adds others.",
                {"known_vaults": self.names},
            )
        return parts
