"""Progress bars of long commands: on standard error, removed at the end, and nothing outside a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from stentor.cli.output import error_console

if TYPE_CHECKING:
    from stentor.core.db.transfer.database_copy import Progress as TableProgress


@contextmanager
def progress_bar(word: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar; yields the function that updates it with (done, total)."""
    with _open_progress(TextColumn(word), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def table_progress_bar(word: str) -> Iterator[TableProgress]:
    """Show the progress table by table; `word` says what is done."""
    columns = TextColumn(word), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with _open_progress(*columns) as progress:
        task = progress.add_task("", total=None)
        yield lambda table, done, total: progress.update(task, description=table, completed=done, total=total)


@contextmanager
def counter(word: str) -> Iterator[Callable[[str], None]]:
    """Show a bar without an end; yields the function that updates the text beside it."""
    columns = TextColumn(word), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with _open_progress(*columns) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)


def _open_progress(*columns: ProgressColumn) -> Progress:
    return Progress(*columns, console=error_console, transient=True, disable=not error_console.is_terminal)
