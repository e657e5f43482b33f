"""Lists reports: walks the vault's folder at each request and reads only notes that changed since the last one."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from stentor.core.clock import format_iso
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor_vault.notes import frontmatter
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.notes.model import NoSuchNote, NoteTooLarge, Stat, Vault

MAX_REPORTS = 500
"""Maximum number of reports of a response: the ones modified last."""
MAX_CACHED = 10_000
"""Maximum number of reports in the cache, and most notes that are searched for the reports of a task."""
MAX_BYTES = 1_000_000
"""Largest note that is read; of a larger one only the name is shown."""
log = logging.getLogger(__name__)
REPORTS_FOLDER = "Reports"
NOTE_SUFFIX = ".md"
MAX_FIELD_LENGTH = 500
"""Longest field in characters; a longer one is cut."""
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


class ReportsUnreadable(StentorError):
    """The vault with the reports cannot be read. A 500 and not a 503, as the contract requires."""


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
        report = parse_report(stat, content.decode(errors="replace"))
        self._cache[stat.path] = (stat, report)
        return report


async def _require_readable(reading: Awaitable[list[VaultReport]]) -> list[VaultReport]:
    """Fails closed: reports that may exist and cannot be read are an error, not an empty list."""
    try:
        return await reading
    except Exception as error:
        log.exception("reports: read failed")
        raise ReportsUnreadable("The reports in the vault cannot be read. See the log of the service.") from error


class VaultReport(msgspec.Struct, frozen=True):
    """The fields of a report. Times are in ISO 8601; a field that the note lacks is None."""

    path: str
    title: str
    task_id: str | None
    agent_name: str | None
    created_at: str | None
    modified_at: str
    summary: str | None


def report_out(report: VaultReport) -> JsonObject:
    """Return a report in its JSON form."""
    return dict(msgspec.structs.asdict(report))


def parse_report(stat: Stat, text: str) -> VaultReport:
    """Parse a note. Fails open: a note with invalid frontmatter is listed under its name and belongs to no task."""
    parts = frontmatter.split(text)
    try:
        values: Mapping[str, Any] = frontmatter.parse_values(parts)
    except InvalidFrontmatter:
        values = {}
    heading = _HEADING.search(parts.body)
    name = stat.path.rpartition("/")[2].removesuffix(NOTE_SUFFIX)
    return VaultReport(
        path=stat.path,
        title=_text(values, "title") or (heading[1].strip()[:MAX_FIELD_LENGTH] if heading else name),
        task_id=_id(values.get("task_id")),
        agent_name=_text(values, "agent_name", "agent"),
        created_at=_text(values, "created_at", "created", "date"),
        modified_at=format_iso(stat.modified_at),
        summary=_text(values, "summary") or _first_paragraph(parts.body),
    )


def _text(values: Mapping[str, Any], *names: str) -> str | None:
    """Return the first of the named fields that has a text."""
    text = next((values[name] for name in names if isinstance(values.get(name), str) and values[name].strip()), None)
    return None if text is None else str(text).strip()[:MAX_FIELD_LENGTH]


def _id(value: Any) -> str | None:
    """Return the exact id; YAML parses an id of only digits as a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def _first_paragraph(body: str) -> str | None:
    """Return the text up to the first empty line or heading, without the headings before it."""
    # Only the beginning is searched, because the body may have a megabyte.
    text = _HEADING.sub("\n", body.replace("\r\n", "\n")[: 20 * MAX_FIELD_LENGTH])
    paragraph = next((part for part in map(str.strip, re.split(r"\n[ \t]*\n", text)) if part), None)
    return None if paragraph is None else " ".join(paragraph.split())[:MAX_FIELD_LENGTH]
