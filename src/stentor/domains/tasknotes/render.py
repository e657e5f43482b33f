"""A task's note as text: the record above, what went in and what came out below. Pure.

Inputs and results are anybody's text. They stand in fences longer than any in them, without control
characters, and cut where they are long, so that nothing in them is read as part of the note.

The note beside a person's note: what an agent answered, or why nobody did. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.domains.notes import yaml_codec
from stentor.domains.tasknotes.model import MAX_READ_CHARS, RenderedNote, TaskNoteRecord, build_frontmatter, locate_note

MAX_BLOCK_CHARS = 50_000
"""Characters of an input, a result or an error that a note shows."""
_CONTROL = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {0x7F: "␡"}
_UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def render_note(tenant: str, record: TaskNoteRecord) -> RenderedNote:
    """The whole note; the same for the same record."""
    parts = [render_frontmatter(build_frontmatter(record)), "\n## Input\n\n", render_stored_json(record.input)]
    if record.result is not None:
        parts += ["\n## Result\n\n", render_stored_json(record.result)]
    if record.error is not None:
        parts += ["\n## Error\n\n", render_stored_json(record.error)]
    return RenderedNote(*locate_note(tenant, record.task_id, record.created_at), encode_text("".join(parts)))


def render_frontmatter(values: Mapping[str, Any]) -> str:
    """The frontmatter with its two lines of dashes."""
    return "---\n" + "".join(yaml_codec.dump_entry(key, value, "\n") for key, value in values.items()) + "---\n"


def render_stored_json(stored: str) -> str:
    """A stored JSON text as a block: a text as itself, all else as indented JSON."""
    text, kind, whole = format_stored_json(stored)
    return render_code_block(text, kind, is_complete=whole)


def render_code_block(text: str, kind: str, *, is_complete: bool = True) -> str:
    """Any text as a code block, cut after `SHOWN` characters."""
    shown = escape_control_characters(text[:MAX_BLOCK_CHARS])
    fence = _fence(shown)
    end = "" if shown.endswith("\n") or not shown else "\n"
    made = f"{fence}{kind}\n{shown}{end}{fence}\n"
    if is_complete and len(text) <= MAX_BLOCK_CHARS:
        return made
    return f"{made}\n*The first {MAX_BLOCK_CHARS:,} characters; all of it is in the task's record.*\n"


def format_stored_json(stored: str) -> tuple[str, str, bool]:
    """A stored JSON text for people: the text, its kind, and whether that is all of it."""
    if len(stored) > MAX_READ_CHARS:
        return stored, "json", False
    value = jsontext.load(stored)
    if isinstance(value, str):
        return value, "text", True
    # What is short is not worth its indentation.
    return stored if len(stored) < 80 else msgspec.json.format(stored, indent=2), "json", True


def escape_control_characters(text: str) -> str:
    """Lines that end in a newline alone, and control characters as their pictures."""
    if _UNWANTED.search(text) is None:
        return text
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROL)


def encode_text(text: str) -> bytes:
    """Half a surrogate pair is no character; it is shown as its number."""
    return text.encode(errors="backslashreplace")


def _fence(text: str) -> str:
    ticks, waves = (max(map(len, re.findall(f"{sign}+", text)), default=0) for sign in "`~")
    return "`" * max(3, ticks + 1) if ticks <= waves or ticks < 3 else "~" * max(3, waves + 1)


TEXT_KEYS = ("answer", "summary", "text", "content", "message")
"""Keys of a result that is an object under which agents say what they have to say."""
MAX_ANSWER_CHARS = MAX_READ_CHARS
RETRY_HINT = "Change the note and save it: it is tried again."


def render_answer(record: TaskNoteRecord, agent: str | None, *, note_changed: bool = False) -> bytes:
    """The result as Markdown, or the error, of a task that is over. `agent` is the name to show.

    `changed`: the note is no longer as it was when it became the task.
    """
    values: dict[str, Any] = {
        "task_id": record.task_id,
        "status": record.display_status,
        "agent": agent or record.assigned_agent,
    }
    if note_changed:
        values["note_changed"] = True
    body = _result(record.result or "null") if record.status == "completed" else _failure(record)
    return encode_text(render_frontmatter(values) + "\n" + body)


def render_problem(problem: str) -> bytes:
    """What is wrong with a note that is no task; `problem` has a line for each."""
    lines = "".join(f"- {line}\n" for line in problem.splitlines())
    return encode_text(
        render_frontmatter({"task_id": None, "status": "refused", "agent": None})
        + f"\nThis note cannot become a task:\n\n{lines}\n{RETRY_HINT}\n"
    )


def _result(stored: str) -> str:
    text, kind, whole = format_stored_json(stored)
    if kind == "text":
        return _render_text(text)
    value = jsontext.load(stored) if whole else None
    if not isinstance(value, dict):
        return render_code_block(text, kind, is_complete=whole)
    said = next((key for key in TEXT_KEYS if isinstance(value.get(key), str)), None)
    if said is None:
        return render_code_block(text, kind)
    rest = {key: other for key, other in value.items() if key != said}
    return _render_text(value[said]) + _citations(rest.pop("citations", None)) + _render_other_keys(rest)


def _render_text(text: str) -> str:
    shown = escape_control_characters(text[:MAX_ANSWER_CHARS]).strip("\n") + "\n"
    return shown if len(text) <= MAX_ANSWER_CHARS else f"{shown}\n*The first {MAX_ANSWER_CHARS:,} characters.*\n"


def _citations(value: Any) -> str:
    """Links to the notes that the librarian cites; anything else is nothing."""
    if not isinstance(value, list):
        return ""
    lines = [_citation(n, each) for n, each in enumerate(value, 1) if isinstance(each, dict)]
    return "\n" + "".join(lines) if lines else ""


def _citation(number: int, value: dict[str, Any]) -> str:
    path, heading = value.get("path"), value.get("heading")
    link = "".join(c for c in str(path) if c.isprintable() and c not in "[]|").removesuffix(".md")
    where = f", {' '.join(str(heading).split())}" if heading else ""
    return f"{number}. [[{link}]]{where}\n"


def _render_other_keys(rest: dict[str, Any]) -> str:
    return "\n" + render_stored_json(jsontext.dump(rest)) if rest else ""


def _failure(record: TaskNoteRecord) -> str:
    """Why there is no result, and what a person can do about it."""
    said = "The task was cancelled.\n" if record.status == "cancelled" else f"The task is {record.display_status}.\n"
    if record.error is None:
        return said
    text, kind, whole = format_stored_json(record.error)
    value = jsontext.load(record.error) if whole else None
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        code = value.get("code")
        said = escape_control_characters(value["message"][:MAX_BLOCK_CHARS]).strip() + (
            f" ({code})\n" if isinstance(code, str) else "\n"
        )
    else:
        said += "\n" + render_code_block(text, kind, is_complete=whole)
    return f"{said}\n{RETRY_HINT}\n" if record.display_status == "routing_failed" else said
