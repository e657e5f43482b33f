"""The responses of `stentor session`, and the output of sessions as a list."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from stentor.cli import output
from stentor.cli.output import console, format_age


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
