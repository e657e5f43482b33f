"""Reads files that the command line names, with one message for those that cannot be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stentor.cli.output import EXIT_USAGE, CommandFailed

STANDARD_INPUT = "-"
"""The path that means standard input, in the options that say so."""


def usage_error(message: str) -> CommandFailed:
    return CommandFailed(message, EXIT_USAGE)


@contextmanager
def reading(name: str, failure: Callable[[str], Exception] = usage_error) -> Iterator[None]:
    """Raise `failure` for an OSError of the block, which reads `name`: a path, with or without its option."""
    try:
        yield
    except OSError as error:
        raise failure(f"{name} cannot be read: {error.strerror}.") from None


def read_file_or_stdin(path: Path, failure: Callable[[str], Exception] = usage_error) -> bytes:
    """Return the content of a file, or of standard input for `-`. Raises `failure`."""
    with reading(str(path), failure):
        return sys.stdin.buffer.read() if str(path) == STANDARD_INPUT else path.read_bytes()


def read_start(path: Path, max_bytes: int) -> bytes:
    """Return at most the first `max_bytes` of a file. Raises CommandFailed."""
    with reading(str(path)), path.open("rb") as file:
        return file.read(max_bytes)


def read_key_text(option: str, text: str) -> str:
    """Return the text of a key that an option names by its file, or as the text itself.

    Raises CommandFailed, and UnicodeDecodeError for a file that is not UTF-8.
    """
    path = Path(text)
    with reading(f"{option} {text}"):
        return path.read_text("utf-8") if path.is_file() else text


def parse_json(content: bytes, path: Path) -> Any:
    """Return the JSON value in the content of a file. Raises CommandFailed."""
    try:
        return json.loads(content.decode())
    except ValueError as error:
        raise usage_error(f"{path} is not valid JSON: {error}.") from None
