"""Wires the archiver of tasks, and the reading of archived events for proofs."""

from __future__ import annotations

from pathlib import Path

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.core.db.driver import Row
from stentor.core.errors import StartRefused
from stentor.domains.monitoring.service import Check, HealthComponent
from stentor.domains.provenance.service import ArchivedBodyReader
from stentor.domains.retention import parquet_files
from stentor.domains.retention.service import TaskArchiver


def open_archiver(infra: Infrastructure) -> TaskArchiver:
    """Raises StartRefused if tasks are to be archived and the library for it is not installed."""
    storage = infra.settings.storage
    if storage.retention_days:
        parquet_files.require_library()
    return TaskArchiver(infra.db, infra.runlog, infra.clock, storage.archive_dir, storage.retention_days)


def archive_check(archiver: TaskArchiver) -> Check:
    """Return the health check of the component `archive`."""

    async def check() -> HealthComponent:
        if archiver.problem is not None:
            return HealthComponent("unavailable", archiver.problem)
        return HealthComponent("available", f"tasks are archived {archiver.days} days after their end")

    return check


def archived_body_reader(folder: Path) -> ArchivedBodyReader:
    """Return a function that reads an archived event; None without the library or the archive."""

    def read(archive: str, event_id: str) -> Row | None:
        try:
            parquet_files.require_library()
            rows = parquet_files.read_events(parquet_files.events_file(folder, archive), event_id)
        except (StartRefused, *parquet_files.READ_ERRORS):
            return None
        return rows[0][1:] if rows else None

    return read
