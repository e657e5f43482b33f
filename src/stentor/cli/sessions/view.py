"""The responses of `stentor session`: sessions as a list, and their items as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from stentor.cli import output
from stentor.cli.output import console, format_age, shorten_id
from stentor.core import jsontext
from stentor.surfaces.dashboard.presenters.conversation import Part, read_message

MAX_CHARACTERS = 2_000
"""Characters of a text that are printed; `--json` has all."""
INDENT = "    "


class SessionRow(msgspec.Struct, frozen=True):
    session_id: str
    name: str | None
    created_by: str
    updated_at: str
    item_count: int
    value_count: int
    stored_bytes: int


class SessionList(msgspec.Struct, frozen=True):
    path: ClassVar[str] = "/sessions"
    noun: ClassVar[str] = "session"

    sessions: list[SessionRow]
    next_cursor: str | None = None

    @property
    def labels(self) -> dict[str, str]:
        return {session.session_id: session.name or f"{session.item_count} items" for session in self.sessions}


class SessionItem(msgspec.Struct, frozen=True):
    position: int
    kind: str
    value: Any
    size: int
    created_at: str
    task_id: str | None


class ListedItems(msgspec.Struct, frozen=True):
    items: list[SessionItem]
    item_count: int
    next_after: int | None


class MadeSession(msgspec.Struct, frozen=True):
    """A session; `created` is False for one that existed before."""

    session_id: str
    item_count: int
    created: bool


class RemovedSession(msgspec.Struct, frozen=True):
    session_id: str


def show_list(page: SessionList) -> None:
    if not page.sessions:
        output.print_notice("There are no sessions. Create one with: stentor session create ID")
        return
    rows = [
        [
            session.session_id,
            session.name,
            f"{session.item_count:,}",
            f"{session.value_count:,}",
            f"{session.stored_bytes:,}",
            format_age(session.updated_at),
            session.created_by,
        ]
        for session in page.sessions
    ]
    columns = ["session", "name", "items", "values", "bytes", "changed", "created by"]
    console.print(output.render_table(columns, rows))
    if page.next_cursor is not None:
        output.print_notice("There are more; raise --limit.")


def show_created(session: MadeSession) -> None:
    if session.created:
        output.print_line(f"Made session {session.session_id}.")
    else:
        output.print_line(f"Session {session.session_id} exists already; it has {count_items(session.item_count)}.")


def show_appended(session: SessionRow) -> None:
    output.print_line(f"Appended to session {session.session_id}; it has {count_items(session.item_count)}.")


def count_items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"


def show_items(page: ListedItems) -> None:
    """Print a page of items, oldest first, with a line for each that says who said it and when."""
    for item in page.items:
        output.print_value("\n".join(_render(item)) + "\n")
    if len(page.items) == page.item_count:
        output.print_notice(f"{count_items(page.item_count)}.")
    else:
        output.print_notice(f"The newest {len(page.items):,} of {count_items(page.item_count)}; --all shows all.")


def _render(item: SessionItem) -> Iterator[str]:
    message = read_message(item.value)
    speaker = "no message" if message is None else message.role
    of_task = f", task {shorten_id(item.task_id)}" if item.task_id else ""
    label = f"summary of everything before, {speaker}" if item.kind == "summary" else speaker
    yield f"[{item.position}] {_line(label)}, {format_age(item.created_at)}{of_task}"
    if message is None:
        yield from _block(item.value if isinstance(item.value, str) else jsontext.dump(item.value))
    elif not message.parts:
        yield f"{INDENT}(empty)"
    for part in message.parts if message else ():
        yield from _render_part(part)


def _render_part(part: Part) -> Iterator[str]:
    if part.kind == "call":
        yield f"{INDENT}calls {_line(part.name)}:"
    elif part.kind == "result":
        yield f"{INDENT}result of {_line(part.name)}:" if part.name else f"{INDENT}result:"
    elif part.kind != "text":
        yield f"{INDENT}{part.kind}:"
    yield from _block(part.text)


def _block(text: str) -> Iterator[str]:
    shown = text[:MAX_CHARACTERS]
    for line in shown.split("\n"):
        yield f"{INDENT}{line}".rstrip()
    if len(text) > MAX_CHARACTERS:
        yield f"{INDENT}... {len(text) - MAX_CHARACTERS:,} more characters; --json has all"


def _line(text: str) -> str:
    """Return a text of somebody else as part of a line: it cannot look like the line of another item."""
    return " ".join(text.split())[:80]
