"""`stentor session ...`: make, read, extend and delete conversations that outlive tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import typer

from stentor.cli import output
from stentor.cli.client.client import RequestFailed, ServiceClient, omit_none, on_record, quote_segment
from stentor.cli.client.responses import Response
from stentor.cli.command import ServiceTarget, with_service
from stentor.cli.input_files import read_input
from stentor.cli.output import EXIT_REFUSED, CommandFailed, console, format_age, shorten_id
from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.presenters.conversation import Part, read_message

MAX_CHARACTERS = 2_000
"""Characters of a text that are printed; `--json` has all."""
INDENT = "    "
app = typer.Typer(help="Create, read, extend and delete conversations that outlive tasks.", no_args_is_help=True)

T = TypeVar("T")
SessionRef = Annotated[
    str, typer.Argument(metavar="SESSION", help="Its id, the beginning or end of the id, or its name.")
]
NEWEST = 20
PAGE = 1_000


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
        output.print_line(f"Created session {session.session_id}.")
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
    """Return untrusted text as part of a line, so that it cannot look like the line of another item."""
    return " ".join(text.split())[:80]


@app.command()
@with_service
def create(
    service: ServiceTarget,
    session_id: Annotated[str, typer.Argument(metavar="ID", help="Your own id: a user, a thread, a ticket.")],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
) -> None:
    """Create a session; one that exists is not changed."""
    body = omit_none({"id": session_id, "name": name})
    service.call(lambda api: api.post(SessionList.path, MadeSession, body), show_created, access="create")


@app.command("list")
@with_service
def list_sessions(
    service: ServiceTarget,
    ref: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only those whose id begins or ends with it, or whose name it is."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of sessions.")] = 50,
) -> None:
    """List sessions, the most recently changed first."""
    service.call(lambda api: api.get(SessionList.path, SessionList, ref=ref, limit=limit), show_list)


@app.command()
@with_service
def show(service: ServiceTarget, session: SessionRef) -> None:
    """Show one session without its items."""
    service.call(
        _on_session(session, lambda api, path: api.get(path, JsonObject)),
        lambda record: console.print(output.render_record(record)),
    )


@app.command()
@with_service
def items(
    service: ServiceTarget,
    session: SessionRef,
    everything: Annotated[bool, typer.Option("--all", help=f"All items, not only the newest {NEWEST}.")] = False,
) -> None:
    """Show the items of a session as a transcript, oldest first."""

    async def read(api: ServiceClient, path: str) -> Response[ListedItems]:
        if everything:
            return await _read_all(api, f"{path}/items")
        return await api.get(f"{path}/items", ListedItems, newest="true", limit=NEWEST)

    service.call(_on_session(session, read), show_items)


@app.command()
@with_service
def append(
    service: ServiceTarget,
    session: SessionRef,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The text of the message.")] = None,
    role: Annotated[str, typer.Option(help="Who says it: user, assistant, system or tool.")] = "user",
    value: Annotated[str | None, typer.Option(metavar="JSON", help="A whole value in place of a message.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with the text; - for standard input.")] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="A summary: models get it in place of all items before it.")
    ] = False,
    expected_count: Annotated[
        int | None, typer.Option(min=0, help="Append only if the session has this many items.")
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the session with this id if it does not exist.")
    ] = False,
) -> None:
    """Append a message, or any value, to a session."""
    if [text, value, file].count(None) != 2:
        raise typer.BadParameter("Pass exactly one of TEXT, --value and --file.")
    content = read_input(text, value, file)
    item = {"value": content if value is not None else {"role": role, "content": content}}
    item |= {"kind": "summary"} if summary else {}
    body = omit_none({"items": [item], "expected_count": expected_count})

    async def send(api: ServiceClient, path: str) -> Response[SessionRow]:
        return await api.post(f"{path}/items", SessionRow, body)

    async def send_to_existing(api: ServiceClient) -> Response[SessionRow]:
        try:
            return await _on_session(session, send)(api)
        except RequestFailed as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            message = f"There is no session {session!r}. Pass --create to create it."
            raise RequestFailed(error.status, error.reason, message) from None

    async def make_and_send(api: ServiceClient) -> Response[SessionRow]:
        # A session that exists stays as it is.
        await api.post(SessionList.path, SessionRow, {"id": session})
        return await send(api, _path(session))

    service.call(make_and_send if create else send_to_existing, show_appended, access="create" if create else "change")


@app.command()
@with_service
def delete(service: ServiceTarget, session: SessionRef) -> None:
    """Delete a session with its items and values; its tasks stay."""
    service.call(
        _on_session(session, lambda api, path: api.request("DELETE", path, RemovedSession)),
        lambda deleted: output.print_line(f"Deleted session {deleted.session_id}."),
        access="change",
    )


def _on_session(
    ref: str, call: Callable[[ServiceClient, str], Awaitable[Response[T]]]
) -> Callable[[ServiceClient], Awaitable[Response[T]]]:
    """Return the call with the path of the session that the user refers to."""
    if not ref:
        raise typer.BadParameter("SESSION: must not be empty.")
    return on_record(SessionList, ref, call)


async def _read_all(api: ServiceClient, path: str) -> Response[ListedItems]:
    """Return all items as one page."""
    after: int | None = 0
    listed: list[Any] = []
    document: JsonObject = {}
    while after is not None:
        response = await api.get(path, ListedItems, after=after, limit=PAGE)
        document = response.document
        listed += document["items"]
        following = response.value.next_after
        # Otherwise a faulty service would keep this loop running for ever.
        if following is not None and following <= after:
            raise CommandFailed("The service sent the same page of items again.", EXIT_REFUSED)
        after = following
    return Response(document | {"items": listed}, ListedItems)


def _path(session_id: str) -> str:
    return f"{SessionList.path}/{quote_segment(session_id)}"
