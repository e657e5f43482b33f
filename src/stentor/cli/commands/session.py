"""`stentor session ...`: make, read, extend and delete conversations that outlive tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from stentor.cli import output
from stentor.cli.client import RequestFailed, ServiceClient, omit_none, on_record, quote_segment
from stentor.cli.command import ServiceTarget, with_service
from stentor.cli.input_files import read_input
from stentor.cli.output import EXIT_REFUSED, CommandFailed, console
from stentor.cli.responses import Response
from stentor.cli.sessions import view
from stentor.cli.sessions.view import ListedItems, MadeSession, RemovedSession, SessionList, SessionRow
from stentor.core.jsontext import JsonObject

app = typer.Typer(help="Create, read, extend and delete conversations that outlive tasks.", no_args_is_help=True)

T = TypeVar("T")
SessionRef = Annotated[
    str, typer.Argument(metavar="SESSION", help="Its id, the beginning or end of the id, or its name.")
]
NEWEST = 20
PAGE = 1_000


@app.command()
@with_service
def create(
    service: ServiceTarget,
    session_id: Annotated[str, typer.Argument(metavar="ID", help="Your own id: a user, a thread, a ticket.")],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
) -> None:
    """Create a session; one that exists is not changed."""
    body = omit_none({"id": session_id, "name": name})
    service.call(lambda api: api.post(SessionList.path, MadeSession, body), view.show_created, access="create")


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
    """List sessions, the last changed first."""
    service.call(lambda api: api.get(SessionList.path, SessionList, ref=ref, limit=limit), view.show_list)


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

    service.call(_on_session(session, read), view.show_items)


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

    service.call(
        make_and_send if create else send_to_existing, view.show_appended, access="create" if create else "change"
    )


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
