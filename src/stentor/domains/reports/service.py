"""Which reports there are: the vault's folder is looked through each time, unchanged notes are read once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from stentor.core.errors import StentorError
from stentor.domains.notes.model import NoSuchNote, NoteTooLarge, Stat, Vault
from stentor.domains.reports import model
from stentor.domains.reports.model import NOTE_SUFFIX, REPORTS_FOLDER, VaultReport

MAX_REPORTS = 500
"""Reports of an answer: those that were written last."""
MAX_CACHED = 10_000
MAX_BYTES = 1_000_000
"""Of a longer note only the name is shown."""
log = logging.getLogger(__name__)


class ReportsUnreadable(StentorError):
    """The vault with the reports cannot be read: a 500, as the contract wants it, and no outage to wait for."""


class ReportService:
    """Only reads. Without a vault there are none."""

    def __init__(self, vault: Vault | None) -> None:
        self._vault = vault
        self._known: dict[str, tuple[Stat, VaultReport]] = {}

    async def list_latest(self) -> list[VaultReport]:
        """At most `MOST`, the last written first. Raises ReportsUnreadable."""
        return await _readable(self._newest(MAX_REPORTS))

    async def list_for_task(self, task_id: str) -> list[VaultReport]:
        """Those whose frontmatter has exactly this task id. Raises ReportsUnreadable."""
        found = await _readable(self._newest(MAX_CACHED))
        return [report for report in found if report.task_id == task_id][:MAX_REPORTS]

    async def _newest(self, most: int) -> list[VaultReport]:
        return await self._read(await self._stats(), most)

    async def _stats(self) -> list[Stat]:
        if self._vault is None:
            return []
        stats = [stat for stat in await self._vault.walk(REPORTS_FOLDER) if stat.path.endswith(NOTE_SUFFIX)]
        return sorted(stats, key=lambda stat: (-stat.modified_at, stat.path))

    async def _read(self, stats: list[Stat], most: int) -> list[VaultReport]:
        found = []
        for stat in stats[:most]:
            known = self._known.get(stat.path)
            report = known[1] if known and known[0] == stat else await self._fresh(stat)
            if report is not None:
                found.append(report)
        if len(self._known) > MAX_CACHED:
            self._known.clear()
        return found

    async def _fresh(self, stat: Stat) -> VaultReport | None:
        """None for a note that is gone since it was listed."""
        assert self._vault is not None
        try:
            content = (await self._vault.read(stat.path)).content if stat.size <= MAX_BYTES else b""
        except NoSuchNote:
            return None
        except NoteTooLarge:
            content = b""
        report = model.parse_report(stat, content.decode(errors="replace"))
        self._known[stat.path] = (stat, report)
        return report


async def _readable(reading: Awaitable[list[VaultReport]]) -> list[VaultReport]:
    """Fails closed: a report that may exist and cannot be read is an error, not an empty list."""
    try:
        return await reading
    except Exception as error:
        log.exception("the reports cannot be read")
        raise ReportsUnreadable("The reports cannot be read. The service's log says why.") from error
