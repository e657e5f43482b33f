"""Tables in terminals of several widths."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from stentor.cli import output

COLUMNS = ("name", "capabilities", "trust", "status", "presence", "id")
ROWS = [
    ("summarizer", "summarize", "unscored", "active", "online", "cfeb92dc1e7e"),
    ("Übersetzer", "search, answer", "unscored", "active", "online", "9b965a6fea3b"),
]


def printed(monkeypatch: pytest.MonkeyPatch, width: int, *, is_terminal: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(output, "_console", lambda *, is_error: console)
    console.print(output.render_table(COLUMNS, ROWS, "Agents"))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 60])
def test_a_table_that_would_break_words_is_printed_as_records(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = printed(monkeypatch, width)
    assert "Agents" in lines[0]
    assert lines[1:7] == [
        "name          summarizer",
        "capabilities  summarize",
        "trust         unscored",
        "status        active",
        "presence      online",
        "id            cfeb92dc1e7e",
    ]
    assert lines[7:9] == ["", "name          Übersetzer"]


@pytest.mark.parametrize(("width", "is_terminal"), [(80, True), (200, True), (80, False), (60, False)])
def test_a_table_that_fits_or_that_a_program_reads_stays_one(
    monkeypatch: pytest.MonkeyPatch, width: int, is_terminal: bool
) -> None:
    lines = printed(monkeypatch, width, is_terminal=is_terminal)
    assert len([line for line in lines if line.lstrip().startswith("───")]) == 1


@pytest.mark.parametrize("width", range(30, 90))
def test_each_word_is_whole_at_every_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = printed(monkeypatch, width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert {"capabilities", "presence", "unscored", "summarize", "Übersetzer", "cfeb92dc1e7e"} <= set(words)
