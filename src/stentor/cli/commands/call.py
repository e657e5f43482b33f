"""`stentor call`: every operation of the service by its name, also those that have no command of their own."""

from __future__ import annotations

import difflib
import inspect
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from stentor.bootstrap.operations import OPERATIONS
from stentor.cli.command import NOT_UTF_8, Access, DataDir, Key, ServiceTarget, Url
from stentor.cli.input_files import STANDARD_INPUT, reading
from stentor.cli.output import EXIT_USAGE, CommandFailed, console, print_json, render_table, report_errors
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.web.operations import Operation, http_request
from stentor.web.wire import API_PREFIX, Disconnected

CALLABLE = {operation.name: operation for operation in OPERATIONS if not operation.has_own_route}
Row = tuple[str, str, str, str]


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
    # Checks only the path parameters, without which there is no URL. The service reports the others.
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
    # Applies to reads too: only this access opens the vault and its index.
    if operation.name.startswith("memory."):
        return "memory"
    return "read" if operation.http.startswith("GET ") else "change"


def print_operation_help(operation: Operation) -> None:
    """Print a command to copy, what the operation does, and its parameters and fields with their types."""
    parameters = {
        name: parameter
        for name, parameter in operation.signature.parameters.items()
        if name not in ("self", "caller") and parameter.annotation != Disconnected
    }
    schemas = {name: operation.parameters[name].json_schema() for name in parameters}
    body = schemas.pop("body", None)
    console.print(f"\n {_command(operation, schemas, body)}\n", markup=False, soft_wrap=True)
    console.print(inspect.getdoc(operation.run) or "", markup=False)
    method, _, path = operation.http.partition(" ")
    address = f"{method} {API_PREFIX}{path}"
    console.print(f"\nIt needs a key with {operation.permission}. Over HTTP: {address}\n", markup=False, soft_wrap=True)
    rows = [
        _field_row(name, schema, required=parameters[name].default is inspect.Parameter.empty)
        for name, schema in schemas.items()
    ]
    if rows:
        console.print(render_table(("parameter", "type", "needed", "what it is"), rows))
    if body is not None:
        console.print(render_table(("field of --body", "type", "needed", "what it is"), _fields(body)))


def _command(operation: Operation, schemas: dict[str, JsonObject], body: JsonObject | None) -> str:
    """Return a command with what the address needs, and the example of the body."""
    words = [f"{name}=..." for name in schemas if f"{{{name}}}" in operation.http]
    if body is not None:
        example = next(iter(body.get("examples", ())), dict.fromkeys(body.get("required", ()), "..."))
        words += ["--body", shlex.quote(jsontext.dump(example))]
    return " ".join(("stentor call", operation.name, *words))


def _fields(body: JsonObject) -> Iterator[Row]:
    required = body.get("required", ())
    for name, schema in body.get("properties", {}).items():
        yield _field_row(name, schema, required=name in required)


def _field_row(name: str, schema: JsonObject, *, required: bool) -> Row:
    return name, _describe_type(schema), "yes" if required else "", str(schema.get("description", ""))


def _describe_type(schema: JsonObject) -> str:
    """Return the type of a value in words; null, which stands for a parameter that is left out, is not named."""
    if options := [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]:
        return " or ".join(dict.fromkeys(map(_describe_type, options)))
    values: list[Any] = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if values:
        return ", ".join(map(str, values))
    if "$ref" in schema:
        return "object"
    if schema.get("type") == "array":
        return f"list of {_describe_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any JSON"))
