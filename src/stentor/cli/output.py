"""The output of commands: tables for people, one JSON document for scripts, errors on standard error.

Texts that come from agents and other services are printed without control characters and never read as markup.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from stentor.core import jsontext
from stentor.core.clock import format_relative_time
from stentor.core.errors import StartRefused, StentorError
from stentor.core.lazy_import import lazy_module

if TYPE_CHECKING:
    from rich import box
    from rich import console as rich_console
    from rich import table as rich_table
    from rich import text as rich_text
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from stentor.core.settings import config_file

    console: Console
    error_console: Console
else:
    # Most commands read no settings.
    config_file = lazy_module("stentor.core.settings.config_file")
    # A service prints no tables. Importing these takes 2 MB and 2 % of its start.
    box, rich_console = lazy_module("rich.box"), lazy_module("rich.console")
    rich_table, rich_text = lazy_module("rich.table"), lazy_module("rich.text")

EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 2, 3, 4, 130
"""Exit codes: failure; wrong usage; error response (4xx) of the service; no service reachable; Ctrl-C."""

T = TypeVar("T")
StyledPart = str | tuple[str, str]
"""A text, or a text with its style, such as `("text", "bold")`."""


def __getattr__(name: str) -> Any:
    """Return `console` or `error_console`, made at their first use."""
    if name not in ("console", "error_console"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _console(is_error=name == "error_console")


@cache
def _console(*, is_error: bool) -> Console:
    # Without emoji, which would replace texts such as `:id:` in a message.
    return rich_console.Console(stderr=is_error, highlight=False, emoji=False)


def own_command() -> str:
    """Return how the user can call this program again: by its path if a shell would not find the name."""
    called = Path(sys.argv[0])
    if called.name != "stentor" or shutil.which("stentor"):
        return "stentor"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


class CommandFailed(Exception):
    """Ends a command with an error message and an exit code."""

    def __init__(self, message: str, code: int = EXIT_FAILED, details: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


_DIRECTIONS = frozenset(("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"))
"""Bidirectional classes of the characters that reverse the text after them, so that it reads differently."""


def strip_controls(text: str) -> str:
    """Replace control characters, including those for text direction: an agent's text must not control the terminal."""
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_control(c) else c for c in text)


def _is_control(character: str) -> bool:
    category, kind = unicodedata.category(character), unicodedata.bidirectional(character)
    return character not in "\n\t" and (category in ("Cc", "Cs") or kind in _DIRECTIONS)


def print_notice(message: str, style: str = "") -> None:
    """Print a line for people on standard error."""
    _print_parts([(message, style)], is_error=True)


def print_line(*parts: StyledPart) -> None:
    """Print a line of texts, each with an optional style, on standard output."""
    _print_parts(parts)


def _print_parts(parts: Iterable[StyledPart], *, is_error: bool = False) -> None:
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    pairs = [(strip_controls(text), style) for text, style in pairs]
    stream = sys.stderr if is_error else sys.stdout
    if stream.isatty() or os.environ.get("FORCE_COLOR"):
        _console(is_error=is_error).print(rich_text.Text.assemble(*pairs), soft_wrap=True)
    else:
        # The same without rich.
        stream.write("".join([text for text, _ in pairs]) + "\n")
        stream.flush()


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on standard output, in UTF-8 whatever the encoding of the terminal.

    A terminal gets control characters as JSON escapes.
    """
    text = jsontext.encode(value).decode()
    if sys.stdout.isatty() and not text.isprintable():
        text = "".join(f"\\u{ord(character):04x}" if _is_control(character) else character for character in text)
    # Not through rich, which would wrap the line.
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()


def print_result(
    result: T, to_document: Callable[[T], Any], show: Callable[[T], Any], *, as_json: bool, is_success: bool = True
) -> None:
    """Print a result as JSON, or for people with `show`. Ends the command with exit code 1 unless `is_success`."""
    if as_json:
        print_json(to_document(result))
    else:
        show(result)
    if not is_success:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def report_errors(*, as_json: bool = False) -> Iterator[None]:
    """Print an error as one line and exit with its code; exit silently on Ctrl-C."""
    try:
        yield
    except (CommandFailed, StentorError) as error:
        code = error.code if isinstance(error, CommandFailed) else EXIT_REFUSED
        message = str(error)
        if isinstance(error, StartRefused):
            message = f"{message} {config_file.explain_variables(message, os.environ)}".rstrip()
        # On standard output, where a script reads; the text for people goes to standard error as well.
        if as_json:
            print_json({"error": message, "details": getattr(error, "details", None)})
        _print_parts([("error:", "red"), f" {message}"], is_error=True)
        raise typer.Exit(int(code) if isinstance(code, int) else EXIT_REFUSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


STATUS_STYLES = {
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
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def render_cell(value: Any) -> Text:
    """Return a cell with the text of a value, never read as markup; statuses are coloured."""
    # Text and not str: rich would interpret markup in a str.
    text = "-" if value is None else value if isinstance(value, str) else jsontext.dump(value)
    return rich_text.Text(strip_controls(text), style=STATUS_STYLES.get(text, ""), overflow="fold")


MAX_NAME_CHARACTERS = 20
"""Maximum length of an agent's name in a list."""
UNBROKEN_COLUMNS = frozenset(("id", "name", "agent", "status", "role", "expires", "budget"))
"""Columns that are never wrapped, whatever their width."""
MAX_UNBROKEN = 16
"""Words and columns up to this width are not wrapped. Longer words are mostly hashes and addresses."""


def render_table(columns: Iterable[str], rows: Iterable[Iterable[Any]], title: str | None = None) -> Table:
    """Return a table; in a terminal that is too narrow for its words, each row as a record of one field per line.

    A pipe always gets a table, so that programs find a row in one line where it fits.
    """
    names = list(columns)
    cells = [[value if isinstance(value, rich_text.Text) else render_cell(value) for value in row] for row in rows]
    # People copy ids (the first column) and names, so these are never wrapped.
    unwrapped = {number for number, name in enumerate(names) if number == 0 or name in UNBROKEN_COLUMNS}
    widths = [max(len(name), *(row[number].cell_len for row in cells)) for number, name in enumerate(names) if cells]
    short = {number for number, width in enumerate(widths) if width <= MAX_UNBROKEN}
    terminal = _console(is_error=False)
    if _min_table_width(names, cells, widths, unwrapped | short) <= terminal.width:
        unwrapped |= short
    elif terminal.is_terminal:
        return _render_rows_as_records(names, cells, title)
    table = rich_table.Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for number, name in enumerate(names):
        table.add_column(name, no_wrap=number in unwrapped, overflow="fold")
    for row in cells:
        table.add_row(*row)
    if not cells:
        table.caption = "none"
    return table


def _min_table_width(
    names: Sequence[str], rows: Iterable[Sequence[Text]], widths: Sequence[int], unwrapped: Container[int]
) -> int:
    """Return the width of a table that breaks no word: a space on each side, two between columns."""
    wrapped = [number for number in range(len(widths)) if number not in unwrapped]
    words = [word for number in wrapped for word in names[number].split()]
    words += [word for row in rows for number in wrapped for word in row[number].plain.split()]
    # Rich gives the columns that it wraps the same width.
    word_width = max((len(word) for word in words if len(word) <= MAX_UNBROKEN), default=0)
    total = sum(word_width if number in wrapped else width for number, width in enumerate(widths))
    return total + 2 * len(widths)


def _render_rows_as_records(names: Iterable[str], rows: Iterable[Iterable[Text]], title: str | None) -> Table:
    grid = _record_grid()
    grid.title, grid.title_justify = title, "left"
    for number, row in enumerate(rows):
        if number:
            grid.add_row()
        for name, cell in zip(names, row, strict=True):
            grid.add_row(name, cell)
    return grid


def _record_grid() -> Table:
    grid = rich_table.Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def render_record(record: Mapping[str, Any]) -> Table:
    """Return a record as a table with one field per row."""
    grid = _record_grid()
    for name, value in record.items():
        is_words = isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
        grid.add_row(name, render_cell(", ".join(value) if is_words else value))
    return grid


def is_empty(value: Any) -> bool:
    """Return whether a value is None or empty, or an object whose fields all are."""
    if isinstance(value, Mapping):
        return all(map(is_empty, value.values()))
    return value in (None, "", [])


def shorten_id(record_id: str) -> str:
    """Return the last group of a UUID, by which commands find the record; any other id in full.

    Not the first group: UUIDs of version 7 begin with the time, so those of records created together begin alike.
    """
    return record_id.rpartition("-")[2] if _UUID.fullmatch(record_id) else record_id


def shorten_name(name: str) -> str:
    """Return an agent's name as a list shows it, where other columns need room."""
    return name if len(name) <= MAX_NAME_CHARACTERS else name[: MAX_NAME_CHARACTERS - 1] + "…"


def format_age(moment: str | None) -> str:
    """Format an ISO 8601 time as `3 min ago`, or `-` for None."""
    if moment is None:
        return "-"
    return format_relative_time((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def print_value(value: Any) -> None:
    """Print a result on standard output, not wrapped: text as it is, anything else as indented JSON."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    sys.stdout.write(strip_controls(text) + "\n")
    sys.stdout.flush()
