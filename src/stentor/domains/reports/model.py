"""A report, parsed from the text of its note. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stentor.core.clock import format_iso
from stentor.core.jsontext import JsonObject
from stentor_vault.notes import frontmatter
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.notes.model import Stat

REPORTS_FOLDER = "Reports"
NOTE_SUFFIX = ".md"
MAX_FIELD_LENGTH = 500
"""Longest field in characters; a longer one is cut."""
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


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
