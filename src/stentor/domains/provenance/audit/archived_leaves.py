"""Events of which only the leaf is in the database, in the verification of the tree.

A mark says that the body is in an archive, and the event `tasks_archived` of that archive has a digest of all leaves
that it took. So an event that was deleted and then marked is found without the archive.
"""

from __future__ import annotations

from collections import defaultdict

from stentor.core.db import Tx
from stentor.core.db.driver import Row
from stentor.core.runlog import EVENT_COLUMNS
from stentor.domains.provenance import archived_store
from stentor.domains.provenance.audit.findings import AuditFinding
from stentor.domains.provenance.model import LeavesDigest, parse_record

ARCHIVED = object()
"""Stands for the id of an event whose body is in an archive, in a row of a page."""
_NO_BODY = (None,) * (len(EVENT_COLUMNS) - 1)


class ArchivedLeaves:
    """The archived leaves that the pass over all numbers has met, by the number of their archive."""

    def __init__(self, tx: Tx) -> None:
        self.count = 0
        self._tx = tx
        self._digests = defaultdict[int, LeavesDigest](LeavesDigest)

    def fill_in(self, rows: list[Row], first: int, end: int) -> list[Row]:
        """Return the rows of a page, with ARCHIVED as the event of those that are in an archive.

        A row is number, event id, hash and the columns of the event, None if there is none.
        """
        archives = archived_store.list_numbers(self._tx, first, end)
        if not archives:
            return rows
        return [self._fill_in(row, archives[row[0]]) if row[0] in archives else row for row in rows]

    def _fill_in(self, row: Row, archive: int) -> Row:
        self._digests[archive].add(row[0], str(row[2]))
        if row[3] is not None:
            return row
        self.count += 1
        return (*row[:3], ARCHIVED, *_NO_BODY)

    def check(self) -> list[AuditFinding]:
        """Compare the leaves of each archive with the event that recorded it."""
        findings = []
        for number, name, metadata in archived_store.iter_archives(self._tx):
            record = None if metadata is None else parse_record(metadata)
            digest = self._digests.pop(number, LeavesDigest())
            if record is None or (record.number, record.archive) != (number, name):
                findings.append(AuditFinding("archive", f"no event of the log records the archive {name}"))
            elif (digest.count, digest.text) != (record.events, record.leaves):
                text = f"{digest.count} events are marked as archived in {name}, not the {record.events} that it took"
                findings.append(AuditFinding("archive", text))
        for number, digest in self._digests.items():
            text = f"{digest.count} events are marked as archived in an archive {number} that does not exist"
            findings.append(AuditFinding("archive", text))
        return findings
