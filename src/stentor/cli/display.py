"""What people see: tables, relative times, and texts of others without their control characters."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from stentor.cli.output import out, plain
from stentor.core import jsontext

COLOURS = {
    "completed": "green",
    "active": "green",
    "delivered": "green",
    "ok": "green",
    "failed": "red",
    "aborted": "red",
    "quarantined": "red",
    "problem": "red",
    "pending_approval": "yellow",
    "suspended": "yellow",
    "warning": "yellow",
    "executing": "cyan",
}
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def cell(value: Any) -> Text:
    """A value as it is, never read as markup; states get their colour."""
    text = "-" if value is None else value if isinstance(value, str) else jsontext.dump(value)
    return Text(plain(text), style=COLOURS.get(text, ""), overflow="fold")


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]], title: str | None = None) -> Table:
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        # What one copies is never broken: the id in the first column, and names.
        made.add_column(name, no_wrap=number == 0 or name == "name", overflow="fold")
    for row in rows:
        made.add_row(*(value if isinstance(value, Text) else cell(value) for value in row))
    return made


def fields(record: Mapping[str, Any]) -> Table:
    """A record, one field a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in record.items():
        grid.add_row(name, cell(value))
    return grid


def ago(moment: str | None, now: datetime | None = None) -> str:
    """`3 min ago` for an ISO 8601 time; `-` for none."""
    if moment is None:
        return "-"
    seconds = int(((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds())
    size, unit = next(((s, u) for s, u in UNITS if abs(seconds) >= s), (1, "s"))
    number = f"{abs(seconds) // size} {unit}"
    return f"in {number}" if seconds < 0 else f"{number} ago"


def say_value(value: Any) -> None:
    """A result on standard output, not wrapped: text as text, anything else as indented JSON."""
    import json

    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    sys.stdout.write(plain(text) + "\n")
    sys.stdout.flush()


def say(message: str) -> None:
    out.print(plain(message), markup=False, soft_wrap=True)
