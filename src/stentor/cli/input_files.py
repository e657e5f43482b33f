"""Reads what options of the command line have as files or as JSON, with one message for what cannot be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from stentor.cli.output import EXIT_USAGE, CommandFailed
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest

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


def parse_json_option(option: str, text: str) -> Any:
    """Return the JSON value of an option. Raises BadParameter."""
    try:
        return jsontext.decode(text.encode())
    except (InvalidRequest, UnicodeEncodeError) as error:
        # Decoded like a request body, but the message must not call the option a body.
        reason = str(error).removeprefix("The body is ")
        raise typer.BadParameter(f"{option}: {reason}") from None


def read_input(text: str | None, as_json: str | None, file: Path | None) -> Any:
    """Return the task's input from the one option that specifies it. Raises BadParameter."""
    if [text, as_json, file].count(None) != 2:
        raise typer.BadParameter("Pass the input with exactly one of --input, --input-json and --file.")
    if text is not None:
        return text
    if as_json is not None:
        return parse_json_option("--input-json", as_json)
    assert file is not None
    try:
        return read_file_or_stdin(file, typer.BadParameter).decode()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not valid UTF-8 text.") from None
