"""How commands speak: tables for people, one JSON document for scripts, errors on standard error."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from stentor.core import jsontext
from stentor.core.errors import StentorError

FAILED, USAGE, REFUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit codes: it failed; wrong usage; the service refused it; no service answers; Ctrl-C."""

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class CommandFailed(Exception):
    """Ends a command with a sentence and an exit code."""

    def __init__(self, message: str, code: int = FAILED, details: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


def plain(text: str) -> str:
    """Without control characters: an agent's text must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if _steers(c) else c for c in text)


def _steers(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cs")


def notice(message: str, style: str = "") -> None:
    """A line for people on standard error: what goes on, what they should know."""
    err.print(plain(message), style=style, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One line on standard output."""
    sys.stdout.write(jsontext.dump(value) + "\n")
    sys.stdout.flush()


@contextmanager
def reporting(*, as_json: bool = False) -> Iterator[None]:
    """Turn errors into one sentence and an exit code, Ctrl-C into a quiet end."""
    try:
        yield
    except (CommandFailed, StentorError) as error:
        code = error.code if isinstance(error, CommandFailed) else REFUSED
        if as_json:
            print_json({"error": str(error), "details": getattr(error, "details", None)})
        err.print("[red]error:[/]", end=" ")
        notice(str(error))
        raise typer.Exit(int(code) if isinstance(code, int) else REFUSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
