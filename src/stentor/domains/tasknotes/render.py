"""Renders the note of a task, and the answer to a note of the inbox, as Markdown. Pure.

Inputs and results are untrusted text. They are put into fences longer than any inside them, without control characters,
and cut if they are long, so that nothing in them is read as part of the note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.domains.memory.validity.frontmatter_keys import DERIVED_FROM, MAX_SOURCE_CHARS, MAX_SOURCES
from stentor.domains.tasknotes.model import MAX_READ_CHARS, RenderedNote, TaskNoteRecord, build_frontmatter, locate_note
from stentor_vault.notes import yaml_writer

MAX_BLOCK_CHARS = 50_000
"""Maximum number of characters of an input, a result or an error that a note shows."""
MAX_ANSWER_CHARS = MAX_READ_CHARS
TEXT_KEYS = ("answer", "summary", "text", "content", "message")
"""Fields of a result object that may hold its text; the first that exists is shown as Markdown."""
RETRY_HINT = "To try again, change the note and save it."
_CONTROL = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {0x7F: "␡"}
_NOT_LINKED = re.compile(r"[#^|\[\]]")
"""Characters that a link cannot have in a path or a heading."""
_UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def render_note(tenant: str, record: TaskNoteRecord) -> RenderedNote:
    """Render a task's note; always the same for the same record, so that `verify` can compare it."""
    parts = [render_frontmatter(build_frontmatter(record)), "\n## Input\n\n", render_stored_json(record.input)]
    if record.result is not None:
        parts += ["\n## Result\n\n", render_stored_json(record.result)]
    if record.error is not None:
        parts += ["\n## Error\n\n", render_stored_json(record.error)]
    return RenderedNote(*locate_note(tenant, record.task_id, record.created_at), encode_text("".join(parts)))


def render_frontmatter(values: Mapping[str, Any]) -> str:
    """Render a frontmatter with its two lines of dashes."""
    return "---\n" + "".join([yaml_writer.dump_entry(key, value, "\n") for key, value in values.items()]) + "---\n"


def render_stored_json(stored: str) -> str:
    """Render a stored JSON text as a code block: a string as its text, everything else as indented JSON."""
    text, kind, is_complete = format_stored_json(stored)
    return render_code_block(text, kind, is_complete=is_complete)


def render_code_block(text: str, kind: str, *, is_complete: bool = True) -> str:
    """Render a text as a code block, cut after `MAX_BLOCK_CHARS` characters."""
    shown = escape_control_characters(text[:MAX_BLOCK_CHARS])
    fence = _fence(shown)
    line_end = "" if shown.endswith("\n") or not shown else "\n"
    block = f"{fence}{kind}\n{shown}{line_end}{fence}\n"
    if is_complete and len(text) <= MAX_BLOCK_CHARS:
        return block
    return f"{block}\n*The first {MAX_BLOCK_CHARS:,} characters; all of it is in the task's record.*\n"


def format_stored_json(stored: str) -> tuple[str, str, bool]:
    """Return the readable text of a stored JSON text, its kind, and whether it is complete."""
    if len(stored) > MAX_READ_CHARS:
        return stored, "json", False
    value = jsontext.load(stored)
    if isinstance(value, str):
        return value, "text", True
    # A short value is easier to read on one line.
    return stored if len(stored) < 80 else msgspec.json.format(stored, indent=2), "json", True


def escape_control_characters(text: str) -> str:
    """Normalize line ends to newlines, and replace control characters by their pictures (U+2400)."""
    if _UNWANTED.search(text) is None:
        return text
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROL)


def encode_text(text: str) -> bytes:
    """Encode as UTF-8; an unpaired surrogate is written as its escape sequence."""
    return text.encode(errors="backslashreplace")


def _fence(text: str) -> str:
    """Return a fence that the text does not contain."""
    if "`" not in text and "~" not in text:
        return "```"
    backticks, tildes = (max(map(len, re.findall(f"{mark}+", text)), default=0) for mark in "`~")
    # The kind of which the text has the shorter runs, so that a text full of backticks gets no endless fence.
    return "`" * max(3, backticks + 1) if backticks <= tildes or backticks < 3 else "~" * max(3, tildes + 1)


def render_answer(record: TaskNoteRecord, agent: str | None, *, note_changed: bool) -> bytes:
    """Render the answer of a finished task: its result as Markdown, or its error. `agent` is the name to show.

    `note_changed`: the note was changed after it was submitted.
    """
    values: JsonObject = {
        "task_id": record.task_id,
        "status": record.display_status,
        "agent": agent or record.assigned_agent,
    }
    if note_changed:
        values["note_changed"] = True
    if record.status == "completed" and (sources := _list_sources(record.result or "null")):
        values[DERIVED_FROM] = sources
    body = _result(record.result or "null") if record.status == "completed" else _failure(record)
    return encode_text(render_frontmatter(values) + "\n" + body)


def render_problem(problem: str) -> bytes:
    """Render the answer to a note that cannot become a task; each line of `problem` is one problem."""
    lines = "".join(f"- {line}\n" for line in problem.splitlines())
    return encode_text(
        render_frontmatter({"task_id": None, "status": "refused", "agent": None})
        + f"\nThis note cannot become a task:\n\n{lines}\n{RETRY_HINT}\n"
    )


def _result(stored: str) -> str:
    text, kind, is_complete = format_stored_json(stored)
    if kind == "text":
        return _render_text(text)
    value = jsontext.load(stored) if is_complete else None
    if not isinstance(value, dict):
        return render_code_block(text, kind, is_complete=is_complete)
    text_key = next((key for key in TEXT_KEYS if isinstance(value.get(key), str)), None)
    if text_key is None:
        return render_code_block(text, kind)
    rest = {key: other for key, other in value.items() if key != text_key}
    return _render_text(value[text_key]) + _citations(rest.pop("citations", None)) + _render_other_keys(rest)


def _render_text(text: str) -> str:
    shown = escape_control_characters(text[:MAX_ANSWER_CHARS]).strip("\n") + "\n"
    return shown if len(text) <= MAX_ANSWER_CHARS else f"{shown}\n*The first {MAX_ANSWER_CHARS:,} characters.*\n"


def _citations(value: Any) -> str:
    """Render links to the notes that the librarian cites; empty if `value` is not a list of citations."""
    if not isinstance(value, list):
        return ""
    lines = [_citation(number, entry) for number, entry in enumerate(value, 1) if isinstance(entry, dict)]
    return "\n" + "".join(lines) if lines else ""


def _list_sources(stored: str) -> list[str]:
    """Return what a result cites as entries of `derived_from`."""
    value = jsontext.load(stored) if len(stored) <= MAX_READ_CHARS else None
    citations = value.get("citations") if isinstance(value, dict) else None
    entries = [entry for entry in citations if isinstance(entry, dict)] if isinstance(citations, list) else []
    sources = dict.fromkeys(_source(entry) for entry in entries if entry.get("path"))
    return [source for source in sources if len(source) <= MAX_SOURCE_CHARS][:MAX_SOURCES]


def _source(citation: JsonObject) -> str:
    path, heading = str(citation["path"]), _NOT_LINKED.sub(" ", str(citation.get("heading") or ""))
    name = path.removesuffix(".md")
    # A link to `a.md` refers to the note of this name, not to the file `a.md.md`; a path without `.md` is not a note.
    if name == path or name.endswith(".md") or _NOT_LINKED.search(path):
        return path
    anchor = f"#{' '.join(heading.split())}" if heading.strip() else ""
    return f"[[{name}{anchor}]]"


def _citation(number: int, value: JsonObject) -> str:
    path, heading = value.get("path"), value.get("heading")
    link = "".join(c for c in str(path) if c.isprintable() and c not in "[]|").removesuffix(".md")
    where = f", {' '.join(str(heading).split())}" if heading else ""
    return f"{number}. [[{link}]]{where}\n"


def _render_other_keys(rest: JsonObject) -> str:
    return "\n" + render_stored_json(jsontext.dump(rest)) if rest else ""


def _failure(record: TaskNoteRecord) -> str:
    """Render why there is no result, and what the user can do."""
    message = "The task was cancelled.\n" if record.status == "cancelled" else f"The task is {record.display_status}.\n"
    if record.error is None:
        return message
    text, kind, is_complete = format_stored_json(record.error)
    value = jsontext.load(record.error) if is_complete else None
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        code = value.get("code")
        message = escape_control_characters(value["message"][:MAX_BLOCK_CHARS]).strip() + (
            f" ({code})\n" if isinstance(code, str) else "\n"
        )
    else:
        message += "\n" + render_code_block(text, kind, is_complete=is_complete)
    return f"{message}\n{RETRY_HINT}\n" if record.display_status == "routing_failed" else message
