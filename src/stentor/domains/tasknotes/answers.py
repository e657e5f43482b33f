"""The note beside a person's note: what an agent answered, or why nobody did. Pure."""

from __future__ import annotations

from typing import Any

from stentor.core import jsontext
from stentor.domains.tasknotes import render
from stentor.domains.tasknotes.model import READ, Record

SPOKEN = ("answer", "summary", "text", "content", "message")
"""Keys of a result that is an object under which agents say what they have to say."""
SHOWN = READ
AGAIN = "Change the note and save it: it is tried again."


def of_task(record: Record, agent: str | None, *, changed: bool = False) -> bytes:
    """The result as Markdown, or the error, of a task that is over. `agent` is the name to show.

    `changed`: the note is no longer as it was when it became the task.
    """
    values: dict[str, Any] = {
        "task_id": record.task_id,
        "status": record.shown_status,
        "agent": agent or record.assigned_agent,
    }
    if changed:
        values["note_changed"] = True
    body = _result(record.result or "null") if record.status == "completed" else _failure(record)
    return render.encoded(render.head(values) + "\n" + body)


def of_problem(problem: str) -> bytes:
    """What is wrong with a note that is no task; `problem` has a line for each."""
    lines = "".join(f"- {line}\n" for line in problem.splitlines())
    return render.encoded(
        render.head({"task_id": None, "status": "refused", "agent": None})
        + f"\nThis note cannot become a task:\n\n{lines}\n{AGAIN}\n"
    )


def _result(stored: str) -> str:
    text, kind, whole = render.readable(stored)
    if kind == "text":
        return _spoken(text)
    value = jsontext.load(stored) if whole else None
    if not isinstance(value, dict):
        return render.block(text, kind, whole=whole)
    said = next((key for key in SPOKEN if isinstance(value.get(key), str)), None)
    if said is None:
        return render.block(text, kind)
    rest = {key: other for key, other in value.items() if key != said}
    return _spoken(value[said]) + _citations(rest.pop("citations", None)) + _rest(rest)


def _spoken(text: str) -> str:
    shown = render.plain(text[:SHOWN]).strip("\n") + "\n"
    return shown if len(text) <= SHOWN else f"{shown}\n*The first {SHOWN:,} characters.*\n"


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


def _rest(rest: dict[str, Any]) -> str:
    return "\n" + render.fenced(jsontext.dump(rest)) if rest else ""


def _failure(record: Record) -> str:
    """Why there is no result, and what a person can do about it."""
    said = "The task was cancelled.\n" if record.status == "cancelled" else f"The task is {record.shown_status}.\n"
    if record.error is None:
        return said
    text, kind, whole = render.readable(record.error)
    value = jsontext.load(record.error) if whole else None
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        code = value.get("code")
        said = render.plain(value["message"][: render.SHOWN]).strip() + (
            f" ({code})\n" if isinstance(code, str) else "\n"
        )
    else:
        said += "\n" + render.block(text, kind, whole=whole)
    return f"{said}\n{AGAIN}\n" if record.shown_status == "routing_failed" else said
