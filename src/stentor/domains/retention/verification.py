"""Compares the files of archives with the run log: each file with its recorded hash, each event with its leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stentor.core.db import Tx
from stentor.core.db.driver import Driver
from stentor.domains.provenance import archived_store
from stentor.domains.provenance.audit.findings import AuditFinding
from stentor.domains.provenance.audit.verification import hash_event
from stentor.domains.provenance.model import ArchiveRecord, parse_record
from stentor.domains.retention import parquet_files, store
from stentor.domains.retention.model import EVENTS
from stentor.domains.retention.parquet_files import READ_ERRORS

Progress = Callable[[int, int], None]


class ArchiveReport(msgspec.Struct):
    """`archives` counts those of the database, `events` the events that match their leaf.

    `unknown` are folders that the database does not know, such as those from before a restore of the database.
    """

    archives: int
    events: int
    findings: list[AuditFinding]
    unknown: list[str]

    @property
    def is_intact(self) -> bool:
        return not self.findings


def verify_archives(driver: Driver, folder: Path, progress: Progress | None = None) -> ArchiveReport:
    """Verify all archives in a folder against the database. Raises StoreUnavailable, and StartRefused without pyarrow.

    Whether the leaves themselves are what was signed is verified by `provenance.audit`.
    """
    parquet_files.require_library()
    # The files of one archive may take minutes.
    connection = driver.reader(may_idle=True)
    try:
        tx = Tx(connection, connection.begin())
        archives = list(archived_store.iter_archives(tx))
        report = ArchiveReport(len(archives), 0, [], [])
        for done, (number, name, metadata) in enumerate(archives, 1):
            record = None if metadata is None else parse_record(metadata)
            if record is None:
                report.findings.append(AuditFinding("archive", f"no event of the log records the archive {name}"))
            else:
                report.findings += _verify_archive(tx, folder, number, record, report)
            if progress is not None:
                progress(done, len(archives))
        names = {archive.name for archive in store.list_archives(tx)}
        report.unknown = [name for name in parquet_files.list_folders(folder) if name not in names]
        return report
    finally:
        connection.close()


def _verify_archive(
    tx: Tx, folder: Path, number: int, record: ArchiveRecord, report: ArchiveReport
) -> Iterator[AuditFinding]:
    for name, recorded in record.files.items():
        try:
            path = parquet_files.locate(folder, record.archive, name)
        except ValueError as error:
            yield AuditFinding("archive", str(error))
            continue
        try:
            if parquet_files.hash_file(path) != recorded:
                yield AuditFinding("archive", f"the file {path} is not the one that was recorded")
        except OSError as error:
            yield AuditFinding("archive", f"the file {path} cannot be read: {error.strerror}")
    has_events = parquet_files.file_name(EVENTS) in record.files
    try:
        rows = parquet_files.read_events(parquet_files.events_file(folder, record.archive)) if has_events else []
    except READ_ERRORS as error:
        yield AuditFinding(
            "archive", f"the events of the archive {record.archive} cannot be read: {type(error).__name__}"
        )
        return
    leaves = store.list_leaves(tx, number)
    for event_number, *event in rows:
        leaf = leaves.pop(event_number, None)
        if leaf is None:
            text = f"the archive {record.archive} has an event that it did not take"
            yield AuditFinding("inserted", text, event_number, event[0], event[2])
        elif hash_event(tuple(event)).hex() != leaf:
            text = f"the event in the archive {record.archive} is not what was recorded"
            yield AuditFinding("changed", text, event_number, event[0], event[2])
        else:
            report.events += 1
    for event_number in leaves:
        yield AuditFinding("removed", f"the event is missing in the archive {record.archive}", event_number)
