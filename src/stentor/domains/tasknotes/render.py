"""A task's note as text: the record above, what went in and what came out below. Pure.

Inputs and results are anybody's text. They stand in fences longer than any in them, without control
characters, and cut where they are long, so that nothing in them is read as part of the note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.domains.notes import emit
from stentor.domains.tasknotes.model import READ, Record, Written, frontmatter, place

SHOWN = 50_000
"""Characters of an input, a result or an error that a note shows."""
_CONTROL = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {0x7F: "␡"}
_UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def note(tenant: str, record: Record) -> Written:
    """The whole note; the same for the same record."""
    parts = [head(frontmatter(record)), "\n## Input\n\n", fenced(record.input)]
    if record.result is not None:
        parts += ["\n## Result\n\n", fenced(record.result)]
    if record.error is not None:
        parts += ["\n## Error\n\n", fenced(record.error)]
    return Written(*place(tenant, record.task_id, record.created_at), encoded("".join(parts)))


def head(values: Mapping[str, Any]) -> str:
    """The frontmatter with its two lines of dashes."""
    return "---\n" + "".join(emit.entry(key, value, "\n") for key, value in values.items()) + "---\n"


def fenced(stored: str) -> str:
    """A stored JSON text as a block: a text as itself, all else as indented JSON."""
    text, kind, whole = readable(stored)
    return block(text, kind, whole=whole)


def block(text: str, kind: str, *, whole: bool = True) -> str:
    """Any text as a code block, cut after `SHOWN` characters."""
    shown = plain(text[:SHOWN])
    fence = _fence(shown)
    end = "" if shown.endswith("\n") or not shown else "\n"
    made = f"{fence}{kind}\n{shown}{end}{fence}\n"
    if whole and len(text) <= SHOWN:
        return made
    return f"{made}\n*The first {SHOWN:,} characters; all of it is in the task's record.*\n"


def readable(stored: str) -> tuple[str, str, bool]:
    """A stored JSON text for people: the text, its kind, and whether that is all of it."""
    if len(stored) > READ:
        return stored, "json", False
    value = jsontext.load(stored)
    if isinstance(value, str):
        return value, "text", True
    # What is short is not worth its indentation.
    return stored if len(stored) < 80 else msgspec.json.format(stored, indent=2), "json", True


def plain(text: str) -> str:
    """Lines that end in a newline alone, and control characters as their pictures."""
    if _UNWANTED.search(text) is None:
        return text
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROL)


def encoded(text: str) -> bytes:
    """Half a surrogate pair is no character; it is shown as its number."""
    return text.encode(errors="backslashreplace")


def _fence(text: str) -> str:
    ticks, waves = (max(map(len, re.findall(f"{sign}+", text)), default=0) for sign in "`~")
    return "`" * max(3, ticks + 1) if ticks <= waves or ticks < 3 else "~" * max(3, waves + 1)
