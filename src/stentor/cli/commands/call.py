"""`stentor call`: every operation of the service by its name, also those that have no command of their own."""

from __future__ import annotations

import difflib
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stentor.bootstrap.operations import OPERATIONS
from stentor.cli.command import NOT_UTF_8, Access, DataDir, Key, ServiceTarget, Url
from stentor.cli.input_files import STANDARD_INPUT, reading
from stentor.cli.operation_help import print_operation_help
from stentor.cli.output import EXIT_USAGE, CommandFailed, console, print_json, render_table, report_errors
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.web.operations import Operation, http_request
from stentor.web.wire import API_PREFIX

CALLABLE = {operation.name: operation for operation in OPERATIONS if not operation.has_own_route}


def call(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="OPERATION", help="Name of the operation; without it, all are listed.")
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Its parameters.")] = None,
    body: Annotated[str | None, typer.Option(help="Its body as JSON; @FILE reads a file, - standard input.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    wants_help: Annotated[
        bool, typer.Option("--help", help="Show this message, or what the named operation takes, and exit.")
    ] = False,
) -> None:
    """Call any operation of the HTTP API by its name, and print the response as JSON.

    For example: stentor call tasks.list status=failed limit=5
    """
    if wants_help:
        _print_help(ctx, name)
        return
    if name is None:
        console.print(render_table(("operation", "needs", "what it does"), map(_row, CALLABLE.values())))
        return
    with report_errors(as_json=True):
        operation = _find(name)
        try:
            method, path, content = http_request(operation, _parse(operation, arguments or [], body))
        except UnicodeEncodeError:
            raise CommandFailed(NOT_UTF_8, EXIT_USAGE) from None
    ServiceTarget(data_dir, url, key, as_json=True).call(
        lambda api: api.request(method, path.removeprefix(API_PREFIX), object, content),
        print_json,
        access=_access(operation),
    )


def _print_help(ctx: typer.Context, name: str | None) -> None:
    if name is None:
        typer.echo(ctx.get_help())
        return
    with report_errors():
        print_operation_help(_find(name))


def _row(operation: Operation) -> tuple[str, str, str]:
    summary = (inspect.getdoc(operation.run) or "").split("\n")[0]
    return operation.name, operation.permission, summary


def _find(name: str) -> Operation:
    if name not in CALLABLE:
        similar = difflib.get_close_matches(name, CALLABLE, 1)
        hint = f" Did you mean {similar[0]!r}?" if similar else ""
        raise CommandFailed(f"There is no operation {name!r}.{hint} `stentor call` lists all of them.", EXIT_USAGE)
    return CALLABLE[name]


def _parse(operation: Operation, arguments: list[str], body: str | None) -> JsonObject:
    """Return the arguments by name; the service checks their values."""
    parameters = {n: p for n, p in operation.signature.parameters.items() if n not in ("self", "caller")}
    values: JsonObject = {}
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if not separator or name not in parameters or name == "body":
            known = ", ".join(n for n in parameters if n != "body") or "none"
            raise CommandFailed(f"{argument!r} is not NAME=VALUE of a parameter. Parameters: {known}.", EXIT_USAGE)
        values[name] = value
    if body is not None:
        values["body"] = _read_body(body)
    # Only those of the path: without them there is no address. The service names the others.
    missing = [n for n in parameters if f"{{{n}}}" in operation.http and not values.get(n)]
    if missing:
        raise CommandFailed(f"{operation.name} needs {missing[0]}=VALUE.", EXIT_USAGE)
    return values


def _read_body(text: str) -> Any:
    try:
        with reading(f"--body: {text[1:]}"):
            if text == STANDARD_INPUT:
                return jsontext.decode(sys.stdin.buffer.read())
            return jsontext.decode(Path(text[1:]).read_bytes() if text.startswith("@") else text.encode())
    except InvalidRequest as error:
        raise CommandFailed(f"--body: {error.message}", EXIT_USAGE) from None


def _access(operation: Operation) -> Access:
    # Also those that read: only this access opens the vault and its index.
    if operation.name.startswith("memory."):
        return "memory"
    return "read" if operation.http.startswith("GET ") else "change"
