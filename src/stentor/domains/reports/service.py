"""Lists reports: walks the vault's folder at each request and reads only notes that changed since the last one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from stentor.core.errors import StentorError
from stentor.domains.reports import model
from stentor.domains.reports.model import NOTE_SUFFIX, REPORTS_FOLDER, VaultReport
from stentor_vault.notes.model import NoSuchNote, NoteTooLarge, Stat, Vault

MAX_REPORTS = 500
"""Maximum number of reports of a response: the ones modified last."""
MAX_CACHED = 10_000
"""Maximum number of reports in the cache, and most notes that are searched for the reports of a task."""
MAX_BYTES = 1_000_000
"""Largest note that is read; of a larger one only the name is shown."""
log = logging.getLogger(__name__)


class ReportsUnreadable(StentorError):
    """The vault with the reports cannot be read. A 500 and not a 503: the contract wants it so."""


class ReportService:
    """Lists the reports of a vault; without a vault there are none."""

    def __init__(self, vault: Vault | None) -> None:
        self._vault = vault
        self._cache: dict[str, tuple[Stat, VaultReport]] = {}

    async def list_latest(self) -> list[VaultReport]:
        """Return at most `MAX_REPORTS` reports, the last modified first. Raises ReportsUnreadable."""
        return await _require_readable(self._newest(MAX_REPORTS))

    async def list_for_task(self, task_id: str) -> list[VaultReport]:
        """Return the reports whose frontmatter has exactly this task id. Raises ReportsUnreadable."""
        reports = await _require_readable(self._newest(MAX_CACHED))
        return [report for report in reports if report.task_id == task_id][:MAX_REPORTS]

    async def _newest(self, limit: int) -> list[VaultReport]:
        return await self._read(await self._stats(), limit)

    async def _stats(self) -> list[Stat]:
        if self._vault is None:
            return []
        stats = [stat for stat in await self._vault.walk(REPORTS_FOLDER) if stat.path.endswith(NOTE_SUFFIX)]
        return sorted(stats, key=lambda stat: (-stat.modified_at, stat.path))

    async def _read(self, stats: list[Stat], limit: int) -> list[VaultReport]:
        reports = []
        for stat in stats[:limit]:
            cached = self._cache.get(stat.path)
            report = cached[1] if cached and cached[0] == stat else await self._read_note(stat)
            if report is not None:
                reports.append(report)
        # Deleted notes stay in the cache; emptying it when it is full is cheaper than tracking them.
        if len(self._cache) > MAX_CACHED:
            self._cache.clear()
        return reports

    async def _read_note(self, stat: Stat) -> VaultReport | None:
        """Read and cache a report; None for a note that was deleted since it was listed."""
        assert self._vault is not None
        try:
            content = (await self._vault.read(stat.path)).content if stat.size <= MAX_BYTES else b""
        except NoSuchNote:
            return None
        except NoteTooLarge:
            content = b""
        report = model.parse_report(stat, content.decode(errors="replace"))
        self._cache[stat.path] = (stat, report)
        return report


async def _require_readable(reading: Awaitable[list[VaultReport]]) -> list[VaultReport]:
    """Fails closed: reports that may exist and cannot be read are an error, not an empty list."""
    try:
        return await reading
    except Exception as error:
        log.exception("reports: read failed")
        raise ReportsUnreadable("The reports in the vault cannot be read. See the log of the service.") from error
