"""A report, read from the text of its note: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stentor.core.clock import format_iso
from stentor.domains.notes import frontmatter
from stentor.domains.notes.frontmatter import InvalidFrontmatter
from stentor.domains.notes.model import Stat

REPORTS_FOLDER = "Reports"
NOTE_SUFFIX = ".md"
MAX_FIELD_LENGTH = 500
"""Characters of a field that are shown."""
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


class VaultReport(msgspec.Struct, frozen=True):
    """Times are ISO 8601 texts; what the note does not say is None. `path` is that of the note in the vault."""

    path: str
    title: str
    task_id: str | None
    agent_name: str | None
    created_at: str | None
    modified_at: str
    summary: str | None


def report_out(report: VaultReport) -> dict[str, Any]:
    """A report as every surface shows it."""
    return dict(msgspec.structs.asdict(report))


def parse_report(stat: Stat, text: str) -> VaultReport:
    """Fails open: a note whose frontmatter cannot be read is listed by its name, and belongs to no task."""
    parts = frontmatter.split(text)
    try:
        said: Mapping[str, Any] = frontmatter.parse_values(parts)
    except InvalidFrontmatter:
        said = {}
    heading = _HEADING.search(parts.body)
    name = stat.path.rpartition("/")[2].removesuffix(NOTE_SUFFIX)
    return VaultReport(
        path=stat.path,
        title=_text(said, "title") or (heading[1].strip()[:MAX_FIELD_LENGTH] if heading else name),
        task_id=_id(said.get("task_id")),
        agent_name=_text(said, "agent_name", "agent"),
        created_at=_text(said, "created_at", "created", "date"),
        modified_at=format_iso(stat.modified_at),
        summary=_text(said, "summary") or _first_paragraph(parts.body),
    )


def _text(said: Mapping[str, Any], *names: str) -> str | None:
    found = next((said[name] for name in names if isinstance(said.get(name), str) and said[name].strip()), None)
    return None if found is None else str(found).strip()[:MAX_FIELD_LENGTH]


def _id(value: Any) -> str | None:
    """Exactly as it stands there; an id of digits alone is a number to YAML."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def _first_paragraph(body: str) -> str | None:
    """Up to the first empty line or heading. A heading ends with its line, whether an empty one follows or not."""
    text = _HEADING.sub("\n", body.replace("\r\n", "\n")[: 20 * MAX_FIELD_LENGTH])
    found = next((part for part in map(str.strip, re.split(r"\n[ \t]*\n", text)) if part), None)
    return None if found is None else " ".join(found.split())[:MAX_FIELD_LENGTH]
